"""The SDK's client side over a link: as `Dispatcher` for `ClientSession`, as `Transport` for `mcp.Client`.

The link has made the handshake already, so a session's own handshake is answered from what the link knows, in the era
that the session expects. The only exception that leaves is `MCPError`, with ours as its cause: any other would end the
SDK's session. `tests/links/test_sdk_assumptions.py` lists what this relies on.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.message import ClientMessageMetadata, MessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from holdfast.core.eras import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    NAMED_BY,
    PROTOCOL_VERSION,
    UNSUPPORTED_VERSION,
    Era,
    result_in,
)
from holdfast.core.retry import HINT_SECONDS
from holdfast.errors import (
    AnswerTimeout,
    BadAnswer,
    ErrorAnswer,
    HoldfastError,
    LimitReached,
    OutcomeUnknown,
    Unavailable,
    UsageError,
)
from holdfast.links.background import CancelReason
from holdfast.links.backlog import DROPPABLE, Backlog
from holdfast.links.calls.call import LISTEN
from holdfast.links.calls.handlers import OnProgress, OnResumeToken, Params, RawProgress
from holdfast.links.crossing.crossing import Crossing
from holdfast.links.crossing.request import SessionRequest
from holdfast.links.crossing.shapes import discover_result, initialize_result
from holdfast.links.link import Link
from holdfast.links.trace import sent_by_sdk

CANCELLED = "notifications/cancelled"
BACKLOG = 256  # messages for the session that it has not read yet
_keys = itertools.count()
log = logging.getLogger("holdfast.links")
_OURS = frozenset({"mcp-protocol-version", "mcp-method", "mcp-session-id"})


_safe_tools: WeakKeyDictionary[Link, dict[str, tuple[object, float]]] = WeakKeyDictionary()
"""The tools of a link's server that may be repeated, by their annotations, each with the server's version and the time
of the listing: for all sessions over that link."""


_schemas: WeakKeyDictionary[Link, dict[str, Any]] = WeakKeyDictionary()
"""The input schemas of a 2026 server's tools: which parameters go into headers, where the session does not know."""


class Bridge:
    """What dispatcher and transport share: one session's calls, carried by a link."""

    def __init__(self, link: Link, *, probes: bool = False, sharer: Callable[[], object | None] | None = None) -> None:
        self.link = link
        self._probes = probes
        self._sharer = sharer
        self.crossing = Crossing(link, self._learn, self.on_notification, self._param_headers)

    async def call(
        self,
        method: str,
        params: Params,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        id: RequestId | None = None,
        resume: str | None = None,
        on_resume_token: OnResumeToken | None = None,
    ) -> dict[str, Any]:
        """A session's request. Raises `MCPError` only, or the caller's own cancellation."""
        meta = _members(params and params.get("_meta"))
        is_2026 = PROTOCOL_VERSION in meta
        try:
            if method == "initialize":
                return await self._initialize(params or {}, timeout)
            if method == "server/discover":
                return await self._discover(params or {}, timeout)
            if self.link.generation == 0 and is_2026:  # a client with a pinned era, which makes no handshake
                self.link.introduction.introduce(
                    _members(meta.get(CLIENT_INFO)), _members(meta.get(CLIENT_CAPABILITIES))
                )
                self.link.introduction.assume(str(meta[PROTOCOL_VERSION]))
            safe, timeout = await self._is_safe(method, params, timeout)
            # The name of a vendor's request is known to the session alone.
            ours = _OURS | {"mcp-name"} if method in NAMED_BY else _OURS
            extra = {name: value for name, value in (headers or {}).items() if name.lower() not in ours}
            sharer = self._sharer() if self._sharer is not None else None
            request = SessionRequest(
                method, params or {}, safe, extra, timeout, on_progress, id, sharer, resume, on_resume_token
            )
            crosses = self.crossing.is_needed(is_2026)
            if crosses:
                result = await self.crossing.request(request)
            else:
                result = await self.link.request(
                    method,
                    params,
                    safe=safe,
                    headers=extra,
                    timeout=timeout,
                    on_progress=on_progress,
                    id=id,
                    sharer=sharer,
                    resume=resume,
                    on_resume_token=on_resume_token,
                )
                if self.crossing.is_needed(is_2026):  # the server came back in the other era
                    crosses, result = True, await self.crossing.crossed(request, result)
        except HoldfastError as error:
            raise as_mcp_error(error) from error
        except (TypeError, ValueError, AttributeError, KeyError) as error:  # a handshake that is not what it should be
            bad = BadAnswer(
                f"the handshake with {self.link.name!r} can't be read: {error!r:.200}", server=self.link.name
            )
            raise as_mcp_error(bad) from error
        if crosses and (not is_2026 or result.get("resultType") == "input_required"):
            return result
        if method == "tools/list":
            self._learn(result)
        if is_2026:
            return result_in(Era.Y2026, method, result)
        self.crossing.answered(method, params)
        return result

    def _param_headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        schema = _schemas.get(self.link, {}).get(str(params.get("name"))) if method == "tools/call" else None
        if schema is None or find_invalid_x_mcp_header(schema) is not None:
            return {}
        return mcp_param_headers(x_mcp_header_map(schema), _members(params.get("arguments")))

    async def _is_safe(self, method: str, params: Params, timeout: float | None) -> tuple[bool | None, float | None]:
        """May it be repeated, and how much of its timeout is left."""
        if method != "tools/call" or params is None:
            return None, timeout
        hint = _safe_tools.get(self.link, {}).get(str(params.get("name")))
        if hint is None:
            return False, timeout
        version, listed = hint
        clock = self.link.clock
        began = clock.monotonic()
        if began - listed > HINT_SECONDS:
            return False, timeout
        if self.link.handshake is None:  # the handshake tells which version will be called
            await self.link.open(timeout=timeout)
            timeout = None if timeout is None else max(0.0, timeout - (clock.monotonic() - began))
        return version == self._version(), timeout

    def _version(self) -> object:
        return None if self.link.handshake is None else (self.link.handshake.server_info or {})

    def _learn(self, result: dict[str, Any]) -> None:
        """Which tools may be repeated, by their annotations. Another page adds to what is known."""
        hint = (self._version(), self.link.clock.monotonic())
        safe = _safe_tools.setdefault(self.link, {})
        schemas = dict[str, Any]()
        listed = result.get("tools")
        for tool in cast("list[Any]", listed) if isinstance(listed, list) else ():
            listed_tool = _members(tool)
            name, hints = listed_tool.get("name"), _members(listed_tool.get("annotations"))
            if isinstance(name, str):  # else the session will say what is wrong with it
                safe.pop(name, None)
                if hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True:
                    safe[name] = hint
                schemas[name] = listed_tool.get("inputSchema")
        if self.link.era is Era.Y2026:
            _schemas[self.link] = _schemas.get(self.link, {}) | schemas

    def on_notification(self, method: str) -> None:
        """A notification: what was listed may not hold any more."""
        if method == "notifications/tools/list_changed":
            _safe_tools.pop(self.link, None)
            _schemas.pop(self.link, None)

    async def _initialize(self, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        self.link.introduction.introduce(params.get("clientInfo") or {}, params.get("capabilities") or {})
        self.link.introduction.prefer(Era.Y2025)
        handshake = await self.link.open(timeout=timeout)
        await self.crossing.began(Era.Y2025)
        if handshake.era is Era.Y2025:
            return dict(handshake.result)
        return initialize_result(handshake, self.link.name, params.get("protocolVersion"))

    async def _discover(self, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        meta = cast("Mapping[str, Any]", params.get("_meta") or {})
        self.link.introduction.introduce(meta.get(CLIENT_INFO) or {}, meta.get(CLIENT_CAPABILITIES) or {})
        if not self._probes:
            self.link.introduction.prefer(Era.Y2026)
        handshake = await self.link.open(timeout=timeout)
        if self._probes and handshake.era is Era.Y2025 and self.crossing.era is None:
            raise MCPError(  # which takes either era: in the server's own, nothing has to be crossed
                UNSUPPORTED_VERSION,
                f"{self.link.name!r} speaks {handshake.version}: begin with initialize, or pin a version of 2026",
                {"supported": [handshake.version], "requested": str(meta.get(PROTOCOL_VERSION))},
            )
        await self.crossing.began(Era.Y2026)
        return discover_result(handshake) if handshake.era is Era.Y2025 else dict(handshake.result)

    async def notify(self, method: str, params: Params) -> None:
        """A session's notification. The link has sent `initialized` itself."""
        if method == "notifications/initialized" or not self.crossing.has_notification(method):
            return
        try:
            await self.link.notify(method, params)
        except HoldfastError as error:
            raise as_mcp_error(error) from error


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_mcp_error(error: HoldfastError) -> MCPError:
    """Ours in the SDK's words: kind, server and remedy. Figures are in `data["holdfast"]`, the rest in `__cause__`."""
    if isinstance(error, ErrorAnswer):
        return MCPError(INTERNAL_ERROR if error.code is None else error.code, error.message, error.data)
    if isinstance(error, AnswerTimeout):
        code = REQUEST_TIMEOUT
    elif isinstance(error, Unavailable | OutcomeUnknown):
        code = CONNECTION_CLOSED
    else:
        code = INVALID_PARAMS if isinstance(error, UsageError) else INTERNAL_ERROR
    # An agent shows an MCPError's text to its model, a proxy sends both text and data on to its client: both get what
    # they may read. A program in this process has all of it in `__cause__`.
    return MCPError(code, error.public_text(), {"holdfast": error.public_fields()})


class LinkDispatcher:
    """`ClientSession(dispatcher=LinkDispatcher(link))`. The link stays the caller's to close.

    The server is taken in the era that the session asks for, by `initialize()` or `discover()`, where it has that.
    `probes=True`: the client tries `discover()` by itself, so the link's own preference decides.
    `sharer`: returns which of the link's `sharers` calls.
    """

    def __init__(self, link: Link, *, probes: bool = False, sharer: Callable[[], object | None] | None = None) -> None:
        self._bridge = Bridge(link, probes=probes, sharer=sharer)
        self._link = link
        self._given: set[RequestId] = set()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request of the session over the link, and return its result."""
        opts = opts or {}
        id = opts.get("request_id")
        if id is not None:
            if id in self._given:
                raise ValueError(f"request id {id!r} is already in flight")
            self._given.add(id)
        try:
            return await self._bridge.call(
                method,
                params,
                headers=opts.get("headers"),
                timeout=opts.get("timeout"),
                on_progress=opts.get("on_progress"),
                id=id,
                resume=opts.get("resumption_token"),
                on_resume_token=opts.get("on_resumption_token"),
            )
        finally:
            if id is not None:
                self._given.discard(id)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification of the session over the link."""
        with suppress(MCPError):  # fire and forget, by the SDK's contract; the link has reported it as an event
            await self._bridge.notify(method, params)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the session until its block ends."""
        async with anyio.create_task_group() as tasks:

            async def answer(method: str, params: Params, id: str | int) -> dict[str, Any]:
                try:
                    return await on_request(_Context(self, id), method, params)
                except MCPError as error:
                    raise ErrorAnswer(error.message, message=error.message, data=error.data, code=error.code) from error

            backlog, ended = Backlog(self._link.name), asyncio.get_running_loop().create_future()

            async def pass_on(key: int, method: str, params: Params) -> None:
                try:
                    await on_notify(_Context(self, None), method, params)
                finally:
                    backlog.release(key)

            def deliver(method: str, params: Params) -> None:
                if ended.done() or run_notify_intercept(on_notify_intercept, method, params):
                    return
                try:
                    size = backlog.admit(method, params)
                except LimitReached as error:
                    log.warning("a session has ended: %s", error.what)
                    ended.set_result(error)
                    return
                if size is not None:
                    key = next(_keys)
                    backlog.hold(key, size)
                    tasks.start_soon(pass_on, key, method, params)

            self._bridge.crossing.attach(deliver, answer)
            try:
                task_status.started()
                error = await ended
                raise as_mcp_error(error) from error
            finally:
                with anyio.CancelScope(shield=True):
                    await self._bridge.crossing.detach()


class _Counted:
    """What a session reads, with a report of each message that it takes."""

    def __init__(
        self,
        stream: MemoryObjectReceiveStream[SessionMessage | Exception],
        taken: Callable[[SessionMessage | Exception], None],
    ) -> None:
        self._stream = stream
        self._taken = taken

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        self._taken(item)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def close(self) -> None:
        self._stream.close()

    def __aiter__(self) -> "_Counted":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "_Counted":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class _Context:
    """The SDK's `DispatchContext` of a message from the server."""

    transport = TransportContext(kind="holdfast", can_send_request=True)
    message_metadata: MessageMetadata = None
    can_send_request = True

    def __init__(self, dispatcher: LinkDispatcher, id: RequestId | None) -> None:
        self._dispatcher = dispatcher
        self.request_id = id
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        return await self._dispatcher.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._dispatcher.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Clients report no progress to servers through this seam."""


_context_type: type[DispatchContext[TransportContext]] = _Context


class LinkTransport:
    """`mcp.Client(LinkTransport(link))`. Leaving it closes the link, as leaving the SDK's own transport would."""

    def __init__(self, link: Link, *, close: bool = True) -> None:
        self._link = link
        self._bridge = Bridge(link, probes=True)
        self._close = close
        self._calls: dict[RequestId, asyncio.Task[None]] = {}
        self._asked: dict[RequestId, asyncio.Future[JSONRPCResponse | JSONRPCError]] = {}
        self._to_session: MemoryObjectSendStream[SessionMessage | Exception] | None = None
        self._streams: tuple[Any, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog = Backlog(link.name)
        self._failure: LimitReached | None = None

    async def __aenter__(self) -> tuple[_Counted, MemoryObjectSendStream[SessionMessage]]:
        to_session, for_session = anyio.create_memory_object_stream[SessionMessage | Exception](BACKLOG)
        from_session, written = anyio.create_memory_object_stream[SessionMessage](BACKLOG)
        self._to_session = to_session
        self._streams = (to_session, for_session, from_session, written)
        self._bridge.crossing.attach(self._on_notification, self._on_question)
        self._start(self._read(written))
        return _Counted(for_session, lambda item: self._backlog.release(id(item))), from_session

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._bridge.crossing.detach()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        for stream in self._streams:
            stream.close()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        if self._close:
            await self._link.close()
        if self._failure is not None and exc is None:
            raise as_mcp_error(self._failure) from self._failure

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Not a task of the link: if the link is closed, calls under way must still be answered."""
        task = asyncio.get_running_loop().create_task(coroutine, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, written: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for item in written:
            message = item.message
            if isinstance(message, JSONRPCRequest):
                task = self._start(self._answer(message, item.metadata))
                self._calls[message.id] = task
                task.add_done_callback(_forgetter(self._calls, message.id))
            elif isinstance(message, JSONRPCNotification):
                self._take_notification(message)
            elif message.id is not None:
                waiting = self._asked.get(message.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    def _take_notification(self, message: JSONRPCNotification) -> None:
        if message.method == CANCELLED:
            params = message.params or {}
            task = self._calls.get(params.get("requestId", ""))
            if task is not None:
                reason = params.get("reason")  # the link notifies the server in the way of its era
                task.cancel(CancelReason(reason) if isinstance(reason, str) else None)
                return
            if self._link.era is not Era.Y2025:
                return  # 2026 has no such notification over HTTP
        self._start(self._notify(message))

    async def _notify(self, message: JSONRPCNotification) -> None:
        with suppress(MCPError):
            await self._bridge.notify(message.method, message.params)

    async def _answer(self, message: JSONRPCRequest, metadata: MessageMetadata) -> None:
        hints = metadata if isinstance(metadata, ClientMessageMetadata) else ClientMessageMetadata()
        token = cast("dict[str, Any]", (message.params or {}).get("_meta") or {}).get("progressToken")
        try:
            with sent_by_sdk(message.method, (message.params or {}).get("_meta")):
                result = await self._bridge.call(
                    message.method,
                    message.params,
                    headers=hints.headers,
                    on_progress=self._progress(token) if token is not None else None,
                    # The server names a subscription by the id of its request, and the session finds it by that.
                    id=message.id if message.method == LISTEN else None,
                    resume=hints.resumption_token,
                    on_resume_token=hints.on_resumption_token_update,
                )
        except MCPError as error:
            await self._send(JSONRPCError(jsonrpc="2.0", id=message.id, error=error.error))
        else:
            await self._send(JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result))

    def _progress(self, token: Any) -> OnProgress:
        async def report(params: Mapping[str, Any]) -> None:
            known = {**params, "progressToken": token}
            await self._send(JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=known))

        return RawProgress(report)

    async def _send(self, message: JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError) -> None:
        await self._send_wrapped(SessionMessage(message))

    async def _send_wrapped(self, message: SessionMessage) -> None:
        assert self._to_session is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._to_session.send(message)

    def _on_notification(self, method: str, params: Params) -> None:
        assert self._to_session is not None
        if self._failure is not None:
            return
        try:
            size = self._backlog.admit(method, params)
        except LimitReached as error:
            log.warning("a session has ended: %s", error.what)
            self._failure = error
            self._to_session.close()
            return
        if size is None:
            return
        message = SessionMessage(
            JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params) if params else None)
        )
        drop: Callable[[], object] | None = None
        try:
            self._to_session.send_nowait(message)
        except anyio.WouldBlock:  # a slow session gets it late
            late = self._start(self._send_wrapped(message))
            drop = late.cancel if method in DROPPABLE else None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return
        self._backlog.hold(id(message), size, drop)

    async def _on_question(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        waiting = self._asked[id] = asyncio.get_running_loop().create_future()
        try:
            request = JSONRPCRequest(jsonrpc="2.0", id=id, method=method, params=dict(params) if params else None)
            await self._send(request)
            answer = await waiting
        except asyncio.CancelledError as cancelled:
            reason = cancelled.args[0] if cancelled.args else "the server cancelled its request"
            self._on_notification(CANCELLED, {"requestId": id, "reason": reason})
            raise
        finally:
            self._asked.pop(id, None)
        if isinstance(answer, JSONRPCError):
            error: ErrorData = answer.error
            raise ErrorAnswer(error.message, message=error.message, data=error.data, code=error.code)
        return answer.result


def _forgetter(calls: dict[RequestId, asyncio.Task[None]], id: RequestId) -> Callable[[asyncio.Task[None]], None]:
    def forget(_: asyncio.Task[None]) -> None:
        calls.pop(id, None)

    return forget
