"""Notifications of 2025 clients: which servers get one, and in what form.

Progress goes to the server whose question is answered, or to the only one, the status of a task to the server for which
the client runs it, those of extensions and vendors to the servers that have them.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.methods import NOTICES_FROM_CLIENTS, is_foreign
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.passed_headers import HasHeaders
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.methods.foreign import LONGEST_METHOD, ForeignMethods
from holdfast.gateway.sessions.questions import is_own_token
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.tasks.messages import STATUS, names_tasks
from holdfast.links.codec import weight

log = logging.getLogger("holdfast.gateway")

PROGRESS = "notifications/progress"


class ClientNotices:
    """The notifications of one gateway's clients."""

    def __init__(self, gateway: Gateway, foreign: ForeignMethods) -> None:
        self._gateway = gateway
        self._foreign = foreign

    def take(
        self, session: GatewaySession, method: str, params: dict[str, Any], headers: HasHeaders | None = None
    ) -> None:
        """Pass a notification on, soon. One that no server has is dropped."""
        if method == PROGRESS:
            known = session.questions.progressed(params)
            if known is not None:
                asker, passed = known
                self._put(session, asker.server, method, passed, asker.notify)
            elif len(self._gateway.backends) == 1 and not is_own_token(params.get("progressToken")):
                (server,) = self._gateway.backends
                self._put_by_choice(session, server, method, params, headers, own_link=True)
        elif method == STATUS:
            for server in session.tasks.servers_of(params.get("taskId")):
                self._put_by_choice(session, server, method, params, headers)
        elif method not in NOTICES_FROM_CLIENTS and (method.startswith("notifications/") or is_foreign(method)):
            context = RequestContext(session.principal, Era.Y2025, session, session.client, headers)
            owners = self._foreign.owners(context, method) if len(method) <= LONGEST_METHOD else []
            if not owners:
                log.info(
                    "session %s: no server has the notification %r",
                    session.key[:8],
                    method[:80],
                    extra={"session": session.key},
                )
            for backend in owners:
                self._put_by_choice(session, backend.name, method, params, headers)

    def _put_by_choice(
        self,
        session: GatewaySession,
        server: str,
        method: str,
        params: dict[str, Any],
        headers: HasHeaders | None,
        *,
        own_link: bool = False,
    ) -> None:
        """Send it over the link that the client's calls would take. `own_link`: only if no other session shares it."""
        context = RequestContext(session.principal, Era.Y2025, session, session.client, headers)

        async def notify(method: str, params: Mapping[str, Any]) -> None:
            backend: Backend | None = self._gateway.backends.get(server)
            backend_link = await self._gateway.link_choice.for_call(context, backend) if backend is not None else None
            if backend_link is not None and (
                backend_link.session is not None or not own_link
            ):  # else each call has a session of its own
                await backend_link.link.notify(method, params)

        self._put(session, server, method, params, notify)

    def _put(
        self,
        session: GatewaySession,
        server: str,
        method: str,
        params: dict[str, Any],
        notify: Callable[[str, Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        async def send() -> None:
            passed = params
            if names_tasks(method, params):
                await self._gateway.sessions.task_ids.prepare()
                passed = session.tasks.to_server(server, method, params)
            await notify(method, passed)

        session.outbox.put(server, send, weight(params))
