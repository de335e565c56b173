"""One HTTP request over ASGI: its headers, its body, and the bytes of its answer.

A body that is too large is refused, and so is a repeated header that may have one value only.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

from holdfast.gateway.fronts.http.uvicorn_protocol import answer_was_taken, belongs_to, hang_up, json_at_once
from holdfast.gateway.fronts.refusals import Refused
from holdfast.links.codec import encode_known

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

KEEP_ALIVE = 15.0  # seconds of silence on a stream before a comment: proxies close what is silent for a minute
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


class Request:
    """One HTTP request. Headers by lower-case name; the body is read when asked for."""

    __slots__ = (
        "_extra",
        "_receive",
        "_scope",
        "_send",
        "begun",
        "headers",
        "method",
        "principal",
        "repeated",
        "revoked",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._extra: tuple[tuple[bytes, bytes], ...] = ()
        self.begun = False
        """The answer's head is written."""
        self.revoked = False
        """The token that let it in is no longer valid: the task that answers it is cancelled, and must end."""
        self.principal: str | None = None
        """Who sent it, once that is known."""
        self.method: str = scope["method"]
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(raw)
        self.repeated: frozenset[bytes] = frozenset()
        """Headers that occur more than once."""
        if len(self.headers) != len(raw):
            self._refuse_repeated(raw)

    def _refuse_repeated(self, raw: list[tuple[bytes, bytes]]) -> None:
        seen: set[bytes] = set()
        repeated: set[bytes] = set()
        for name, _ in raw:
            if name in seen:
                repeated.add(name)
                if name in _SINGLE or name.startswith(b"mcp-param-"):
                    raise Refused(400, f"the header {name.decode('latin-1')} occurs twice")
                if name == b"accept":
                    self.headers[name] = b", ".join(each for header, each in raw if header == name)
            seen.add(name)
        self.repeated = frozenset(repeated)

    def revoke(self) -> None:
        """The token that let it in is no longer valid."""
        self.revoked = True

    @property
    def streams(self) -> bool:
        """Can it be answered with an event stream? HTTP/1.0 has no chunks."""
        return self._scope.get("http_version") != "1.0"

    def allow_origin(self) -> None:
        """Let a web page of this request's origin read the answer."""
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
        """The whole body. `grows_to` is called with the bytes read so far, and may raise `Refused`."""
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
        """Return when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def was_read(self) -> bool:
        """Was the whole answer sent over a connection that is still open? What arrived at the client's machine may
        still be lost there."""
        return await answer_was_taken(self._send)

    async def reply(self, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.begun = True
        sent = [*(headers or ()), *self._extra]
        if status != 204:
            sent.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_json(
        self,
        status: int,
        message: dict[str, Any] | list[dict[str, Any]],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        many = isinstance(message, list)
        body = b"[%s]" % b",".join(encode_known(each) for each in message) if many else encode_known(message)
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
        """Record, here and at the connection, whose request it is."""
        self.principal = owner
        belongs_to(self._send, owner)

    @property
    def address(self) -> str | None:
        """The address that the connection comes from."""
        client = self._scope.get("client")
        return None if client is None else str(client[0])

    @property
    def origin(self) -> tuple[str, str | None]:
        """Scheme and host by which its client reached us."""
        return str(self._scope.get("scheme", "http")), self.header(b"host")

    def hang_up(self) -> None:
        """Close the connection, in the middle of an answer or not."""
        hang_up(self._send)

    async def stream(self, events: AsyncGenerator[bytes]) -> None:
        """Send an event stream until it ends or the client hangs up. Comments fill its silence."""
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
