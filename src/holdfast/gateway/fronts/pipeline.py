"""The steps that every front takes with a message: begin a session, discover, notify, answer, deliver.

A front owns how messages arrive and leave. What one era does differently is in `http_2025.py` and `http_2026.py`.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, cast

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundLadderRejection, classify_inbound_request

from holdfast.core.disclosure import INTERNAL_ERROR, rpc_error
from holdfast.core.eras import INVALID_PARAMS, UNSUPPORTED_VERSION
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.links.passed_headers import HasHeaders
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.dispatch import Methods
from holdfast.gateway.fronts.handshake import BadHandshake, client_of, discovery, handshake
from holdfast.gateway.fronts.messages import Message
from holdfast.gateway.fronts.refusals import CANCELLED, Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.methods.client_notices import ClientNotices
from holdfast.gateway.observer import RequestObserver
from holdfast.gateway.sessions.questions import ReplyChannel
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.background import CancelReason

log = logging.getLogger("holdfast.gateway")

REQUEST_CANCELLED: Mapping[str, Any] = {"code": CANCELLED, "message": "Request cancelled"}


class AnswerChannel(ReplyChannel, Protocol):
    """The way back to the client of one request, its answer included."""

    def cancelled(self) -> Mapping[str, Any] | None:
        """Called while a `CancelledError` is handled. The error to answer with; None if no client is left to read it.
        Raises the `CancelledError` again if it was not the call that was cancelled, but the task."""
        ...

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        """Send the answer."""
        ...

    async def was_read(self) -> bool:
        """Did the client take the answer, as far as can be known here?"""
        ...


class Answer(NamedTuple):
    """The answer to one request, before it is sent."""

    message: dict[str, Any]
    error: HoldfastError | None = None
    """What the answer's error was made from."""
    status: int = 200
    """Of the answer over HTTP, as long as nothing of it is sent."""


def error_of(error: Exception) -> dict[str, Any]:
    """The JSON-RPC error for what a request raised. What is not meant for callers is logged, and not disclosed."""
    if isinstance(error, Refused):
        return error.error
    if isinstance(error, HoldfastError):
        return rpc_error(error)
    log.error("a request could not be answered", exc_info=error)
    return {"code": INTERNAL_ERROR, "message": "Internal error"}


class Pipeline:
    """The steps that the fronts of one gateway share."""

    def __init__(self, gateway: Gateway, transport: str) -> None:
        """`transport` is `tcp` or `pipe`, for those who observe."""
        self._gateway = gateway
        self.observer = RequestObserver(gateway.sink, transport)
        self.methods = Methods(gateway)
        self._notices = ClientNotices(gateway, self.methods.foreign)

    def refuse_if_draining(self) -> None:
        if not self._gateway.lifecycle.takes_sessions:
            raise Refused.for_now("the gateway is going down")

    async def initialize(
        self, context: RequestContext, params: dict[str, Any]
    ) -> tuple[GatewaySession, dict[str, Any]]:
        """Begin a 2025 session, which the request then belongs to. Returns it, and the result of `initialize`."""
        try:
            client = client_of(params)
        except BadHandshake as error:
            raise Refused(400, str(error), code=INVALID_PARAMS) from None
        context.identify(client)
        session = await self._gateway.sessions.begin(context.principal, client)
        context.enter(session)
        await self._gateway.caller_lists.learn(context)
        return session, handshake(self._gateway, context)

    def client_2026(self, message: Message, headers: Mapping[str, str] | None = None) -> Client:
        """The client of a 2026 request, once its envelope, and the headers that repeat it, are checked."""
        body = message.body if headers is not None else {"method": message.method, "params": message.params}
        checked = classify_inbound_request(body, headers=headers)
        if isinstance(checked, InboundLadderRejection):
            raise Refused(
                ERROR_CODE_HTTP_STATUS.get(checked.code, 400), checked.message, code=checked.code, data=checked.data
            )
        return Client(_mapping(checked.client_info), _mapping(checked.client_capabilities), checked.protocol_version)

    async def discover(self, context: RequestContext) -> dict[str, Any]:
        """The result of `server/discover`. A client that speaks both eras is refused where it should take 2025."""
        await self._gateway.settled()
        client = context.client
        steered = self._gateway.steers(client.info, client.version)
        if steered is not None:
            message, supported = steered
            raise Refused(400, message, code=UNSUPPORTED_VERSION, data=supported)
        await self._gateway.caller_lists.learn(context)
        return discovery(self._gateway, context)

    def notify(
        self,
        session: GatewaySession | None,
        calls: Mapping[str | int, "asyncio.Task[Any]"],
        message: Message,
        headers: HasHeaders | None = None,
    ) -> None:
        """A notification from the client of these calls under way. Unknown ones are dropped."""
        if message.method == "notifications/cancelled":
            id = message.params.get("requestId")
            task = calls.get(id) if isinstance(id, str | int) else None
            if task is not None:
                reason = message.params.get("reason")
                task.cancel(CancelReason(reason) if isinstance(reason, str) else None)
        elif message.method == "notifications/roots/list_changed" and session is not None:
            session.links.notify_roots()
        elif session is not None and message.method is not None:
            self._notices.take(session, message.method, message.params, headers)

    async def answer(
        self,
        context: RequestContext,
        channel: AnswerChannel,
        message: Message,
        work: Coroutine[Any, Any, dict[str, Any]],
    ) -> Answer | None:
        """Do the work of a request. Returns its result or its error; None if no client is left to read it."""
        id = message.id
        assert id is not None
        served = self.observer.begin(context, id, str(message.method), message.params)
        if served is None:
            return await self._answer(context, channel, id, work)
        try:
            answer = await self._answer(context, channel, id, work)
        except BaseException as error:
            served.failed(error)
            raise
        served.answered(None if answer is None else answer.message, is_ours=answer is not None and answer.status == 500)
        return answer

    async def _answer(
        self,
        context: RequestContext,
        channel: AnswerChannel,
        id: str | int,
        work: Coroutine[Any, Any, dict[str, Any]],
    ) -> Answer | None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        try:
            if self._gateway.audit_room is not None:
                await self._gateway.audit_room()
            message["result"] = await work
        except Refused as refused:
            message["error"] = error_of(refused)
        except HoldfastError as error:
            context.failed_with(error)
            message["error"] = error_of(error)
            return Answer(message, error)
        except asyncio.CancelledError:
            work.close()  # it may not have begun
            cancelled = channel.cancelled()
            if cancelled is None:
                return None
            message["error"] = cancelled
        except Exception as error:
            message["error"] = error_of(error)
            return Answer(message, status=500)
        return Answer(message)

    async def deliver(
        self, context: RequestContext, channel: AnswerChannel, message: dict[str, Any], status: int = 200
    ) -> None:
        """Send an answer. A loss that it reports counts as reported once the client has read it."""
        await channel.finish(message, status)
        if context.reporting is not None and await channel.was_read():
            context.reported()


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
