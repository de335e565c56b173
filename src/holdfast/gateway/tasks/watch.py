"""`notifications/tasks` of the 2026 extension: listens at servers for the tasks that one client's listen names."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from holdfast.core.eras import Era, without_subscription
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.calls.link_choice import LinkChoice
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.tasks.ids import TaskIds
from holdfast.gateway.tasks.messages import with_ids
from holdfast.links.calls.handlers import CallHandlers
from holdfast.links.codec import weight
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

LISTEN_TASKS = 64  # tasks that one listen may name
UPDATE_BYTES = 256 * 1024  # of one update in memory, which waits for its client; tasks/get gives a larger one
AGREE_SECONDS = 10.0  # for a server to acknowledge a listen
QUIET_SECONDS = 86_400.0  # for which a listen may be silent
CLOSE_SECONDS = 5.0  # for listens to take their end
AGAIN_SECONDS = 1.0  # before a listen that has ended is begun again
NOTICE = "notifications/tasks"
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
OnUpdate = Callable[[str, Mapping[str, Any]], None]
"""Takes the id by which the client knows a task, and the parameters of its notification."""


class TaskWatch:
    """The tasks that one listen of a client follows, at all servers."""

    def __init__(
        self, choice: LinkChoice, ids: TaskIds, context: RequestContext, meta: Mapping[str, Any], on_update: OnUpdate
    ) -> None:
        self._choice = choice
        self._ids = ids
        self._context = context
        self._meta = meta
        self._on_update = on_update
        self._following: list[asyncio.Task[None]] = []

    async def add(self, backends: Mapping[str, Backend], ids: list[str]) -> list[str]:
        """Follow these tasks. Returns those that their servers agreed to."""
        await self._ids.prepare()
        scope = self._context.task_scope
        by_server: dict[str, list[str]] = {}
        for id in dict.fromkeys(ids):
            found = self._ids.opened(scope, backends, id)
            if found is not None:
                by_server.setdefault(found[0], []).append(found[1])
        agreed = await asyncio.gather(*(self._begin(backends[name], own) for name, own in by_server.items()))
        taken = {self._ids.sealed(scope, name, id) for name, own in zip(by_server, agreed, strict=True) for id in own}
        return [id for id in dict.fromkeys(ids) if id in taken]

    async def _begin(self, backend: Backend, ids: list[str]) -> list[str]:
        """A listen at one server; a program sends its notifications on no listen's own stream."""
        try:
            backend_link = await self._choice.for_call(self._context, backend)
        except HoldfastError as error:
            log.info("%s: tasks are not followed: %s", backend.name, error.what)
            return []
        if backend_link is None or backend.is_child or backend_link.link.era is not Era.Y2026:
            return []
        agreed: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        work = self._follow(backend_link.link, backend.name, ids, agreed)
        following = asyncio.get_running_loop().create_task(work, name=f"tasks of {backend.name}")
        self._following.append(following)
        await asyncio.wait((following, agreed), timeout=AGREE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not agreed.done():
            following.cancel()
            return []
        return [id for id in ids if id in agreed.result()]

    async def _follow(self, link: Link, server: str, ids: list[str], agreed: "asyncio.Future[list[str]]") -> None:
        def on_notice(method: str, params: Mapping[str, Any] | None) -> None:
            if method == _ACKNOWLEDGED and not agreed.done():
                listed = members((params or {}).get("notifications")).get("taskIds")
                agreed.set_result([str(id) for id in cast("list[object]", listed)] if isinstance(listed, list) else [])
            elif method == NOTICE and params is not None and params.get("taskId") in ids:
                self._pass_on(server, params)

        asked = {"notifications": {"taskIds": ids}, "_meta": dict(self._meta)}
        while True:
            try:
                await link.request(
                    "subscriptions/listen",
                    asked,
                    safe=True,
                    silence=QUIET_SECONDS,
                    handlers=CallHandlers(on_notification=on_notice),
                )
            except HoldfastError as error:
                log.info("%s: a listen for tasks has ended: %s", server, error.what)
            if not agreed.done():
                return
            await asyncio.sleep(AGAIN_SECONDS)

    def _pass_on(self, server: str, params: Mapping[str, Any]) -> None:
        if weight(dict(params)) > UPDATE_BYTES:
            log.info("%s: an update of a task is over %d bytes, and left out", server, UPDATE_BYTES)
            return
        scope = self._context.task_scope
        passed = with_ids(NOTICE, without_subscription(params), lambda id: self._ids.sealed(scope, server, id))
        self._on_update(str(passed["taskId"]), passed)

    async def close(self) -> None:
        """End the listens, here and at the servers."""
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(tuple(self._following), timeout=CLOSE_SECONDS)
