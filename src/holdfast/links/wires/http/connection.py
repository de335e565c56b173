"""One HTTP/1.1 connection, for one exchange at a time, on httptools, the parser of uvicorn.

docs/decisions/0014 has the measurements that led to a client of our own.
"""

import asyncio
import select
import time
import zlib
from typing import Any, Protocol, cast

import httptools

from holdfast.links.wires.http.failures import Broken, NotHttp
from holdfast.links.wires.http.response import Response
from holdfast.links.wires.http.route import Route

HEAD_BYTES = 64 * 1024  # of anything between two pieces of a body: status, headers, chunk sizes, trailers
HEADERS = 256  # of one answer: servers send a dozen

TLS_ALERT = b"\x15\x03"  # how a server that expects TLS may answer plain HTTP


class Body:
    """A request body that records whether any of it was passed to a socket."""

    __slots__ = ("sent", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.sent = False


class Owner(Protocol):
    """The owner of a connection: the pool."""

    def give_back(self, connection: "Connection") -> None:
        """Take back a connection that can be used again."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Remove a connection that can't be used any more."""
        ...


class Connection(asyncio.Protocol):
    """One socket, for one exchange at a time."""

    def __init__(self, owner: Owner, route: Route) -> None:
        self._owner = owner
        self.key = route.key
        self._plain = route.scheme == "http"
        self.alive = True
        self.idle_since = 0.0
        """When its latest exchange ended, by the monotonic clock."""
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._poll: Any = None
        self._response: Response | None = None
        self._head: asyncio.Future[Response] | None = None
        self._head_size = self._head_count = 0
        self._beside = 0  # bytes since the last piece of a body
        self._complete = False  # the answer has been received completely
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
        if self._response is None:  # there was no request
            self._drop()
            return
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
            if self._beside > HEAD_BYTES:  # the parser itself has no limit and stores all of an unfinished header
                raise NotHttp(f"more than {HEAD_BYTES} bytes of the answer are not part of its body")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, NotHttp, zlib.error) as error:
            self._kept = False
            if not self._complete:
                what = f"the answer is not HTTP: {error.__cause__ or error.__context__ or error}"
                if self._plain and data[:2] == TLS_ALERT:
                    what = "the answer is TLS, not HTTP: use a URL that begins with https://"
                self._fail(NotHttp(what))
            self._drop()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._owner.forget(self)
        self._parser = self._poll = None  # break the reference cycle with the parser
        response = self._response
        if response is not None and not self._complete and not response.failed:
            lengthless = "content-length" not in response.headers and response.headers.get("transfer-encoding") is None
            if self._head is not None and self._head.done() and lengthless and exc is None:
                self._complete = True  # without a length, the end of the connection is the end of the body
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
        if self._complete:
            raise NotHttp("more than one answer to one request: the first is used, the connection is not used again")

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
        if response is None or self._complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            response.headers.clear()  # the final one follows
            return
        response.begin(status)
        self._beside = 0
        if self._head is not None and not self._head.done():
            self._head.set_result(response)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)  # the answer has arrived, even if the server reads no more of the request

    def on_body(self, data: bytes) -> None:
        self._beside = 0
        if self._response is not None and not self._complete:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or response.status == 0 or self._complete:
            return
        self._complete = True
        self._beside = 0
        self._kept = bool(self._parser.should_keep_alive())
        response.finish(None)

    # The pool, and the response

    @property
    def stale(self) -> bool:
        """Whether the other end may have closed it, even if the event loop has not noticed:
        a server sends nothing without a request, so an idle connection with data to read has ended.
        """
        transport = self._transport
        if not self.alive or transport is None or transport.is_closing():
            return True
        if self._poll is not None:
            return bool(self._poll.poll(0))
        sock = transport.get_extra_info("socket")
        return sock is None or sock.fileno() < 0 or bool(select.select([sock], [], [], 0)[0])

    async def exchange(self, head: bytes, body: Body | None) -> Response:
        """Send one request; returns when the answer's head has arrived."""
        transport = self._transport
        assert transport is not None
        response = self._response = Response(self)
        self._complete = self._kept = False
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
            response.close()
            raise
        return response

    def release(self, complete: bool) -> None:
        """The response is no longer needed."""
        self._response = self._head = None
        sent = self._transport is not None and self._transport.get_write_buffer_size() == 0
        if complete and self._complete and self._kept and self.alive and sent:
            self.resume()
            self.idle_since = time.monotonic()
            self._owner.give_back(self)
        else:
            self._drop()

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and self.alive:
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # the caller may have been cancelled
        if self._response is not None:
            self._response.finish(error)

    def _drop(self) -> None:
        self.alive = False
        self._owner.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._response is not None and not self._complete:
            self._fail(Broken("the link is closed"))
        self._drop()
