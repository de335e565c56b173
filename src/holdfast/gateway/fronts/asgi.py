"""Plain HTTP for the front: a request that is read once, an answer as JSON or as an event stream.

It owns bytes and headers. It refuses a body over the cap, and a header that says two things.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from holdfast.core.disclosure import INTERNAL_ERROR, disclosed
from holdfast.errors import HoldfastError, LimitReached, OutcomeUnknown, Unavailable
from holdfast.gateway.fronts.streams import Stream
from holdfast.gateway.fronts.uvicorn_protocol import answer_was_taken, belongs_to, hang_up, json_at_once
from holdfast.links.codec import encode_known

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("holdfast.gateway")

KEEP_ALIVE = 15.0  # seconds of silence on a stream before a comment: proxies cut what is silent for a minute
JSON_TYPE = (b"content-type", b"application/json")
_JSON_ONLY: list[tuple[bytes, bytes]] = [JSON_TYPE]
_SINGLE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"last-event-id",
        b"mcp-method",
        b"mcp-name",
        b"mcp-protocol-version",
        b"mcp-session-id",
        b"origin",
        b"traceparent",
    }
)
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Refused(Exception):
    """A request that is answered with a status at once."""

    def __init__(self, status: int, message: str, *, code: int = -32600, data: Any = None, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.error: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    @classmethod
    def because(cls, error: HoldfastError) -> "Refused":
        """The answer to a request that an error of ours stopped, in the words that a caller may see."""
        seen = disclosed(error)
        if not isinstance(error, Unavailable | OutcomeUnknown | LimitReached):
            return cls(500, seen.text, code=INTERNAL_ERROR, data=dict(seen.fields))
        wait = str(max(1, math.ceil(error.retry_after or 1)))
        return cls(503, seen.text, code=-32000, data=dict(seen.fields), retry_after=wait)


class Request:
    """One HTTP request. Headers by lower-case name; the body is read when asked for."""

    __slots__ = ("_extra", "_receive", "_scope", "_send", "begun", "doubled", "headers", "method", "revoked")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._extra: tuple[tuple[bytes, bytes], ...] = ()
        self.begun = False
        """The answer's head is written."""
        self.revoked = False
        """The token that let it in is no longer valid: whoever answers it is cancelled and must not go on."""
        self.method: str = scope["method"]
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(raw)
        self.doubled: frozenset[bytes] = frozenset()
        """Headers that stand there more than once."""
        if len(self.headers) != len(raw):
            self._refuse_doubles(raw)

    def _refuse_doubles(self, raw: list[tuple[bytes, bytes]]) -> None:
        seen: set[bytes] = set()
        doubled: set[bytes] = set()
        for name, _ in raw:
            if name in seen:
                doubled.add(name)
                if name in _SINGLE or name.startswith(b"mcp-param-"):
                    raise Refused(400, f"the header {name.decode('latin-1')} stands here twice")
                if name == b"accept":
                    self.headers[name] = b", ".join(each for header, each in raw if header == name)
            seen.add(name)
        self.doubled = frozenset(doubled)

    @property
    def streams(self) -> bool:
        """HTTP/1.0 knows no chunks, so no stream of ours."""
        return self._scope.get("http_version") != "1.0"

    def allow_origin(self) -> None:
        """A web page of an origin that may call reads the answer."""
        self._extra = (
            (b"access-control-allow-origin", self.headers[b"origin"]),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", self.headers.get(b"access-control-request-headers", b"*")),
            (b"access-control-expose-headers", b"mcp-session-id, www-authenticate, retry-after"),
            (b"vary", b"origin"),
        )

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.strip().decode("latin-1")

    def get(self, name: str) -> str | None:
        """A header by its name in lower case."""
        value = self.headers.get(name.encode("latin-1"))
        return None if value is None else value.strip().decode("latin-1")

    def plain_headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.strip().decode("latin-1") for name, value in self.headers.items()}

    async def body(self, cap: int, grows_to: Callable[[int], None]) -> bytes:
        """All of it. `grows_to` hears how much of it is there, and may refuse it."""
        length = self.headers.get(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > cap):
            raise Refused(413 if length.isdigit() else 400, f"a body has at most {cap} bytes")
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > cap:
                raise Refused(413, f"a body has at most {cap} bytes")
            grows_to(len(body))
            return body
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the connection ended before the body did")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > cap:
                raise Refused(413, f"a body has at most {cap} bytes")
            grows_to(size)
            parts.append(part)
        return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def was_read(self) -> bool:
        """Was the answer, once written, taken from us over a connection that still stands? As far as we can know: what
        the client's machine has taken may still be lost there."""
        return await answer_was_taken(self._send)

    async def reply(self, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.begun = True
        sent = [*(headers or ()), *self._extra]
        if status != 204:
            sent.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_json(
        self, status: int, message: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        body = encode_known(message)
        if status == 200 and not headers and not self._extra and json_at_once(self._send, body):
            return
        await self.reply(status, body, [JSON_TYPE, *headers] if headers else _JSON_ONLY)

    async def refuse(self, refused: Refused, id: Any = None) -> None:
        message = {"jsonrpc": "2.0", "id": id, "error": refused.error}
        await self.reply_json(refused.status, message, refused.headers)

    async def begin_stream(self, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.begun = True
        sent = [*_STREAM_HEADERS, *(headers or ()), *self._extra]
        await self._send({"type": "http.response.start", "status": 200, "headers": sent})

    async def chunk(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    def is_of(self, owner: str) -> None:
        """Say to the connection whose request it is."""
        belongs_to(self._send, owner)

    def hang_up(self) -> None:
        """End the connection, in the midst of an answer or not."""
        hang_up(self._send)

    async def stream(self, events: AsyncGenerator[bytes]) -> None:
        """An event stream, until it ends or the client hangs up. Silence is filled with comments."""
        await self.begin_stream()
        gone = asyncio.ensure_future(self.gone())
        following: asyncio.Future[bytes] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait((gone, following), timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
                if gone in done:
                    return
                if following in done:
                    try:
                        event, following = following.result(), None
                    except StopAsyncIteration:
                        following = None
                        await self.end_stream()
                        return
                    await self.chunk(event)
                else:
                    await self.chunk(b": still here\n\n")
        finally:
            for task in (gone, following):
                if task is not None:
                    task.cancel()
                    await asyncio.wait((task,))
            await events.aclose()


class PostReplyChannel:
    """The answer to one POST: JSON if nothing comes before the result, else an event stream. See `ReplyChannel`."""

    is_alone = False
    __slots__ = ("_json", "_new", "_pump", "_request", "_stream", "can_ask")

    def __init__(self, request: Request, *, json: bool, sse: bool, stream: Callable[[], Stream]) -> None:
        self._request = request
        self._json = json
        self._new = stream
        self._pump: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self.can_ask = sse

    def say(self, message: Mapping[str, Any]) -> None:
        if not self.can_ask:
            return  # a client that takes no stream is told nothing but the result
        self._begun().add(message)

    def _begun(self) -> Stream:
        if self._stream is None:
            self._stream = self._new()
            self._stream.expect_reader()
            self._pump = asyncio.get_running_loop().create_task(self._write(self._stream), name="answer stream")
        return self._stream

    async def keep_up(self) -> None:
        if self._stream is not None:
            await self._stream.keep_up()

    async def _write(self, stream: Stream) -> None:
        await self._request.begin_stream()
        if first := stream.first():
            await self._request.chunk(first)
        async for event in stream.after(0, until_whole=True):
            await self._request.chunk(event)
        if stream.cut_off and stream.id is None:
            log.info("a client is hung up on: it does not keep up with the answer to its call")
            self._request.hang_up()
        else:
            await self._request.end_stream()  # one that was cut off is resumed, as far as it is kept

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        """The last word."""
        if self._pump is None and self._json:
            await self._request.reply_json(status, message)
            return
        stream = self._begun()
        stream.add(message)
        stream.finish()
        assert self._pump is not None
        try:
            await asyncio.shield(self._pump)
        except asyncio.CancelledError:
            self.drop()
            raise

    def drop(self) -> None:
        """Nobody is there any more."""
        if self._pump is not None:
            self._pump.cancel()
        if self._stream is not None:
            self._stream.expect_reader(False)
            self._stream.finish()


def event_of(message: Mapping[str, Any]) -> bytes:
    """A message as an event that can't be resumed."""
    return b"event: message\ndata: %s\n\n" % encode_known(dict(message))
