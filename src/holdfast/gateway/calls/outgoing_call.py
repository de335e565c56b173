"""One call over one link to a server: how it is sent, and what its server sends and asks until it is answered."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.eras import LOG_LEVEL, Era
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.call_logs import MESSAGE, USUAL, CallLog
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.lists.looks import LISTS
from holdfast.gateway.backends.refused_questions import RefusedQuestions
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.names.routing import Route
from holdfast.gateway.sessions.questions import Asker, ReplyChannel
from holdfast.links.calls.handlers import CallHandlers, RawProgress

UPDATED = "notifications/resources/updated"


@dataclass(slots=True)
class BackendRequest:
    """What is requested of a backend."""

    route: Route
    method: str
    params: dict[str, Any]
    safe: bool
    """Repeating it changes nothing at the backend."""


class OutgoingCall:
    """One call, from before it is sent until it is answered."""

    __slots__ = ("_handlers", "_on_progress", "_safe", "backend", "backend_link", "context", "log", "method", "refused")

    def __init__(
        self,
        context: RequestContext,
        backend: Backend,
        backend_link: BackendLink,
        request: BackendRequest,
        params: Mapping[str, Any],
    ) -> None:
        self.context = context
        self.backend = backend
        self.backend_link = backend_link
        self.method = request.method
        self.refused = RefusedQuestions(backend.name)
        self.log: CallLog | None = None
        """The log messages that the client wants with this call; None if the level of its link is its own."""
        self._safe = request.safe
        self._handlers: CallHandlers | None = None
        self._on_progress: RawProgress | None = None
        reply_channel = context.reply_channel
        if reply_channel is not None:
            meta = members(params.get("_meta"))
            if context.era is Era.Y2026 and LOG_LEVEL in meta:
                self.log = CallLog(reply_channel, meta[LOG_LEVEL])
            elif (level := _level_of_session(context, backend_link)) is not None:
                self.log = CallLog(reply_channel, level)
            self._handlers = self._make_handlers(reply_channel)
            token = meta.get("progressToken")
            if token is not None:
                self._on_progress = _progress(reply_channel, token)

    def send(
        self, params: Mapping[str, Any], headers: Mapping[str, str] | None, id: str | None = None
    ) -> Awaitable[dict[str, Any]]:
        """Send it, or send it again."""
        server = self.backend.entry.server
        return self.backend_link.link.request(
            self.method,
            params,
            safe=self._safe,
            headers=headers,
            timeout=server.timeout,
            silence=server.silence,
            on_progress=self._on_progress,
            id=id,
            handlers=self._handlers,
        )

    def begin(self) -> None:
        """What its server sends and asks on no call's own stream may belong to it from now on."""
        self.backend_link.calls.begin(self.refused, self.log, self.context.parkable)

    def end(self) -> None:
        """It is answered, or has failed."""
        self.backend_link.calls.end(self.refused, self.log, self.context.parkable)

    def refusal(self) -> HoldfastError | None:
        """Why a question of the server was refused during this call."""
        context = self.context
        if context.parkable is not None and context.parkable.refusal is not None:
            return context.parkable.refusal
        return self.refused.error(context.client.capabilities if context.era is Era.Y2026 else None)

    def _make_handlers(self, reply_channel: ReplyChannel) -> CallHandlers:
        context, backend, backend_link, call_log = self.context, self.backend, self.backend_link, self.log
        session, era = context.session, context.era
        # A program's pipe is for all its calls, which may be of several clients.
        keep_up = None if backend.is_child and not reply_channel.is_alone else reply_channel.keep_up
        own = session is not None and backend_link.session is not None

        def on_notice(method: str, params: Mapping[str, Any] | None) -> None:
            # Lists: the gateway reads them again first, and then announces the change.
            # Updates of resources: 2026 has them on subscriptions only.
            if method in LISTS or (method == UPDATED and era is Era.Y2026):
                if own and session is not None:
                    session.links.on_notification(backend.name, method, params)
                else:
                    backend.on_notification(method, params, backend_link.caller)
                return
            if method == MESSAGE and (era is Era.Y2026 or call_log is not None):
                if call_log is not None:
                    call_log.take(params)
                return
            known = params or {}
            passed = session.tasks.notice(backend.name, method, known) if session is not None else dict(known)
            if passed is not None:
                reply_channel.send({"jsonrpc": "2.0", "method": method, "params": passed})

        if session is None or era is Era.Y2026:
            parkable = context.parkable
            return CallHandlers(parkable.ask if parkable is not None else self.refused.refuse, on_notice, keep_up)
        asker = Asker(backend.name, backend_link.link.notify)
        return CallHandlers(
            lambda method, params, _: session.questions.ask(method, params, reply_channel, asker), on_notice, keep_up
        )


def _level_of_session(context: RequestContext, backend_link: BackendLink) -> str | None:
    """The level of a 2025 client over a link that is not its session's own, where other callers may want another."""
    if context.session is None or context.era is Era.Y2026 or backend_link.session is not None:
        return None
    return context.session.record.log_level or (USUAL if backend_link.link.log_level is not None else None)


def _progress(reply_channel: ReplyChannel, token: Any) -> RawProgress:
    def pass_on(params: Mapping[str, Any]) -> None:
        own = {**params, "progressToken": token}
        reply_channel.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": own})

    return RawProgress(pass_on)
