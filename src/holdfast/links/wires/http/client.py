"""A small HTTP/1.1 client for the one thing that links do: POST, read, again. On httptools, the parser of uvicorn.

It owns connections, their reuse, and one exchange on each at a time. It refuses to write on a kept connection whose
other end has already closed, and knows no proxies: with one, aiohttp does the work (`pool.py`). Why it is here,
measured: docs/decisions/0014.
"""

import asyncio
import select
import ssl
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httptools

KEEP_ALIVE = 60.0  # seconds an idle connection is kept; servers close theirs after five to seventy-five
HEAD_BYTES = 64 * 1024  # of whatever comes between two pieces of a body: status, headers, chunk sizes, trailers
HEADERS = 256  # of one answer: servers send a dozen
MEMBERS = 64  # of one packed answer: each costs a copy of the rest
INFLATED = 16 * 1024 * 1024  # bytes that one read of a packed answer may become
BUFFER = 256 * 1024  # bytes of a body that wait to be read, before the socket is left alone


TLS_ALERT = b"\x15\x03"  # how a server that expects TLS may answer anything else
PLAIN = "if the server speaks plain HTTP, its URL begins with http://"


class Broken(OSError):
    """The other end closed, or the pool did, before the answer was whole."""


class NotHttp(ValueError):
    """What came is not HTTP."""


class Body:
    """A request body that knows whether any of it was handed to a socket."""

    __slots__ = ("sent", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.sent = False


class Response:
    """One answer: its head, and its body as it comes. The part of aiohttp's that links use, under the same names."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_connection",
        "_eof",
        "_error",
        "_waiting",
        "closed",
        "headers",
        "members",
        "status",
        "unzip",
    )

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.closed = False
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._eof = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.unzip: Any = None
        self.members = 0

    @property
    def content(self) -> "Response":
        return self

    @property
    def content_length(self) -> int | None:
        length = self.headers.get("content-length", "")
        return int(length) if length.isdigit() else None

    def is_eof(self) -> bool:
        return self._eof and not self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    async def iter_any(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered -= len(chunk)
                if self._buffered <= BUFFER:
                    self._connection.go_on()
                yield chunk
            if self._error is not None:
                raise self._error
            if self._eof:
                return
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    async def read(self) -> bytes:
        if self._eof and len(self._chunks) == 1:  # nearly always: it came with the head
            self._buffered = 0
            return self._chunks.popleft()
        return b"".join([chunk async for chunk in self.iter_any()])

    def release(self) -> None:
        """Done with it. A body that was not read to its end costs the connection."""
        if not self.closed:
            self.closed = True
            self._connection.done(self._eof)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.done(False)

    # From the connection

    def feed(self, data: bytes) -> None:
        if self.unzip is not None:
            data = self._inflated(data)
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > BUFFER:
            self._connection.wait()
        self._wake()

    def _inflated(self, data: bytes) -> bytes:
        """Nobody asked for a packed answer; what swells beyond all measure is refused."""
        found = b""
        while data:
            found += self.unzip.decompress(data, INFLATED - len(found))
            if self.unzip.unconsumed_tail:
                raise NotHttp(f"a packed answer grows beyond {INFLATED} bytes a read")
            data = self.unzip.unused_data
            if data:
                self.members += 1
                if self.members > MEMBERS:
                    raise NotHttp(f"a packed answer has more than {MEMBERS} members")
                self.unzip = zlib.decompressobj(47)  # another member follows
        return found

    @property
    def failed(self) -> bool:
        return self._error is not None

    def finish(self, error: Exception | None) -> None:
        if self._eof:
            return  # whole is whole, whatever comes behind it
        self._eof, self._error = error is None, error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Connection(asyncio.Protocol):
    """One socket, for one exchange at a time."""

    def __init__(self, pool: "Pool", key: tuple[str, str, int]) -> None:
        self._pool = pool
        self.key = key
        self.alive = True
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._poll: Any = None
        self._response: Response | None = None
        self._head: asyncio.Future[Response] | None = None
        self._head_size = self._head_count = 0
        self._beside = 0  # bytes since the last piece of a body
        self._whole = False  # the answer has been received to its end
        self._kept = False  # and the connection may be used again
        self._paused = False
        self._writable: asyncio.Future[None] | None = None
        self._full = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)  # for all answers on this connection
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nobody asked for anything
            self._drop()
            return
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
            if self._beside > HEAD_BYTES:  # the parser itself reads on for ever, and keeps all of an unfinished header
                raise NotHttp(f"over {HEAD_BYTES} bytes of an answer hold nothing of its body")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, NotHttp, zlib.error) as error:
            self._kept = False
            if not self._whole:
                said = f"the answer is not HTTP: {error.__cause__ or error.__context__ or error}"
                if self.key[0] == "http" and data[:2] == TLS_ALERT:
                    said = "the answer is TLS, not HTTP: its URL begins with https://"
                self._fail(NotHttp(said))
            self._drop()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._pool.forget(self)
        self._parser = self._poll = None  # the parser holds us, too
        response = self._response
        if response is not None and not self._whole and not response.failed:
            lengthless = "content-length" not in response.headers and response.headers.get("transfer-encoding") is None
            if self._head is not None and self._head.done() and lengthless and exc is None:
                self._whole = True  # without a length, the end of the connection is the end of the body
                response.finish(None)
            else:
                self._fail(Broken(f"the server closed the connection{f': {exc}' if exc else ''}"))
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # httptools

    def on_message_begin(self) -> None:
        self._head_size = self._head_count = 0
        if self._whole:
            raise NotHttp("more than one answer to one request: the first counts, the connection does not")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        self._head_count += 1
        if self._head_size > HEAD_BYTES or self._head_count > HEADERS:
            raise NotHttp(f"an answer's headers are over {HEAD_BYTES} bytes, or more than {HEADERS}")
        response = self._response
        if response is None or response.status:  # a trailer, or another answer
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        response.headers[key] = f"{response.headers[key]}, {text}" if key in response.headers else text

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None or self._whole:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            response.headers.clear()  # the real one follows
            return
        response.status = status
        self._beside = 0
        encoding = response.headers.get("content-encoding", "").lower()
        if encoding in ("gzip", "deflate", "x-gzip"):
            response.unzip = zlib.decompressobj(47)
        if self._head is not None and not self._head.done():
            self._head.set_result(response)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)  # it has its answer, whether or not it reads the rest of our body

    def on_body(self, data: bytes) -> None:
        self._beside = 0
        if self._response is not None and not self._whole:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or response.status == 0 or self._whole:
            return
        self._whole = True
        self._beside = 0
        self._kept = bool(self._parser.should_keep_alive())
        response.finish(None)

    # The pool, and the response

    @property
    def stale(self) -> bool:
        """May the other end have closed it, whether or not the loop has noticed? An idle server has nothing to say."""
        transport = self._transport
        if not self.alive or transport is None or transport.is_closing():
            return True
        if self._poll is not None:
            return bool(self._poll.poll(0))
        sock = transport.get_extra_info("socket")
        return sock is None or sock.fileno() < 0 or bool(select.select([sock], [], [], 0)[0])

    async def exchange(self, head: bytes, body: Body | None) -> Response:
        """Send one request; returns when the answer's head is there."""
        transport = self._transport
        assert transport is not None
        response = self._response = Response(self)
        self._whole = self._kept = False
        self._beside = 0
        self._head = asyncio.get_running_loop().create_future()
        try:
            if body is not None:
                body.sent = True
                transport.write(head + body.value)
            else:
                transport.write(head)
            if self._full:
                self._writable = asyncio.get_running_loop().create_future()
                await self._writable
            await self._head
        except BaseException:
            response.closed = True
            self._drop()
            raise
        return response

    def done(self, whole: bool) -> None:
        """The response is done with."""
        self._response = self._head = None
        sent = self._transport is not None and self._transport.get_write_buffer_size() == 0
        if whole and self._whole and self._kept and self.alive and sent:
            self.go_on()
            self._pool.give_back(self)
        else:
            self._drop()

    def wait(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._paused and self._transport is not None and self.alive:
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # whoever waited may be gone
        if self._response is not None:
            self._response.finish(error)

    def _drop(self) -> None:
        self.alive = False
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._response is not None and not self._whole:
            self._fail(Broken("the link is closed"))
        self._drop()


class Pool:
    """Connections by origin. As many as there are calls: a call must never wait for a connection that it blocks."""

    def __init__(self, connect_seconds: float, tls: ssl.SSLContext | None) -> None:
        self._connect = connect_seconds
        self._tls = tls
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._all: set[Connection] = set()
        self._targets: dict[str, tuple[tuple[str, str, int], str, str]] = {}
        self._pruning: asyncio.TimerHandle | None = None
        self.closed = False

    async def request(self, verb: str, url: str, headers: Mapping[str, str], body: Body | None) -> Response:
        if self.closed:
            raise Broken("the link is closed")
        key, path, host = self._targets.get(url) or self._target(url)
        lines = [f"{verb} {path} HTTP/1.1\r\nhost: {host}\r\n"]
        lines.extend(f"{name}: {value}\r\n" for name, value in headers.items())
        lines.append(f"content-length: {len(body.value)}\r\n\r\n" if body is not None else "\r\n")
        head = "".join(lines).encode("latin-1", "strict")
        breaks = len(headers) + 3 + (body is not None)
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise ValueError("a header has a line break or a NUL")
        connection = self._take(key)
        if connection is None:
            connection = await self._open(key)
        return await connection.exchange(head, body)

    def _target(self, url: str) -> tuple[tuple[str, str, int], str, str]:
        parts = urlsplit(url)
        name = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        shown = f"[{name}]" if ":" in name else name
        host = shown if parts.port is None else f"{shown}:{parts.port}"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        found = self._targets[url] = ((parts.scheme, name, port), path, host)
        return found

    def _take(self, key: tuple[str, str, int]) -> Connection | None:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if time.monotonic() - connection.idle_since < KEEP_ALIVE and not connection.stale:
                return connection
            connection.close()
        return None

    async def _open(self, key: tuple[str, str, int]) -> Connection:
        scheme, name, port = key
        tls: ssl.SSLContext | None = None
        if scheme == "https":
            tls = self._tls or _default_tls()
        try:
            async with asyncio.timeout(self._connect):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self, key), name, port, ssl=tls, server_hostname=name if tls else None
                )
        except TimeoutError as error:
            what = "TLS" if tls else "connection"
            raise TimeoutError(f"no {what} within {self._connect:g} s{f'; {PLAIN}' if tls else ''}") from error
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if tls is None:
                raise
            raise Broken(f"the server closed the connection during the TLS handshake; {PLAIN}") from error
        if self.closed:
            connection.close()
            raise Broken("the link is closed")
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        if self.closed:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        idle = self._idle.setdefault(connection.key, [])
        idle.append(connection)
        if self._pruning is None:
            self._pruning = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._prune)

    def _prune(self) -> None:
        """Connections that nobody has used for long are let go, whether or not anybody comes again."""
        self._pruning = None
        oldest = time.monotonic() - KEEP_ALIVE
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.pop(0).close()
        if any(self._idle.values()) and not self.closed:
            self._pruning = asyncio.get_running_loop().call_later(KEEP_ALIVE / 4, self._prune)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        self.closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        for connection in tuple(self._all):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # sockets are closed by the loop's next turn


_tls_of_all: list[ssl.SSLContext] = []


def _default_tls() -> ssl.SSLContext:
    """One for all: making one takes 20 ms and 700 KB."""
    if not _tls_of_all:
        _tls_of_all.append(ssl.create_default_context())
    return _tls_of_all[0]
