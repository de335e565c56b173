"""uvicorn's HTTP protocol with deadlines, bounds, and a short way for a whole answer. Nothing of MCP is used here.

An answer that is complete is written at once: ASGI's two messages, a check of our own headers and two writes took 30 of
140 µs. Only public attributes of uvicorn are used; where one is missing, plain ASGI does the work.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.gateway.fronts.http.connections import Connections

log = logging.getLogger("holdfast.gateway")

HEAD_BYTES = 128 * 1024  # of a request's first line and headers, of its trailers, and between two pieces of its body
PIPELINED = 16  # requests on a connection that were not answered when the next one came
SOME_BYTES = 16 * 1024  # that a client which is sent more must take within `clients.write`: a very slow phone does
MUCH = 1024 * 1024  # bytes that a client has not taken yet: the connections of many such clients are checked soon
_FRAMING = (b"content-length", b"transfer-encoding")
_REFUSED = {
    400: b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    503: b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
}
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def json_at_once(send: Callable[[dict[str, Any]], Awaitable[None]], body: bytes) -> bool:
    """Write a whole JSON answer, if the connection can take it now and stays open. False: send it by ASGI."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or not cycle.keep_alive or cycle.response_started:
        return False
    if cycle.flow.write_paused or cycle.scope["method"] != "POST":
        return False
    if cycle.disconnected:
        return True  # the client is gone
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(_JSON_HEAD % len(body) + body)
    cycle.message_event.set()
    cycle.on_response()
    return True


def hang_up(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Close the connection of a request. Plain ASGI can't do that before the application returns."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is RequestResponseCycle:
        cycle.disconnected = True
        cycle.message_event.set()
        cycle.transport.close()


def belongs_to(send: Callable[[dict[str, Any]], Awaitable[None]], owner: str) -> None:
    """Record the caller of a request, so that what is not taken of its answer counts as this caller's."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is RequestResponseCycle:
        transport: object = cycle.transport
        if isinstance(transport, Corked):
            transport.belong_to(owner)


async def answer_was_taken(send: Callable[[dict[str, Any]], Awaitable[None]]) -> bool:
    """Is the connection still there after an answer was written, with nothing of it left to send?"""
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return True  # another ASGI server, where this can't be found out
    if cycle.disconnected:
        return False
    for _ in range(2):
        await asyncio.sleep(0)  # what was corked goes out, and a hang-up that has arrived is seen
    if not cycle.keep_alive:
        return True  # we close it ourselves, so that its end says nothing
    return not cycle.disconnected and not cycle.transport.is_closing() and not cycle.transport.get_write_buffer_size()


class Corked:
    """A transport that sends together what is written in one turn of the loop. uvicorn writes head and body apart."""

    owner: str | None = None
    """The principal of the last request on its connection."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, much: Callable[[], None] = lambda: None
    ) -> None:
        self._transport = transport
        self._much = much  # called when much was written that the client has not taken
        self._loop = loop
        self._held: list[bytes] = []
        self.written = 0  # bytes in all

    def belong_to(self, owner: str) -> None:
        self.owner = owner

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self.written += len(data)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():  # uvloop raises for one that the client has closed meanwhile
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))
            if self._transport.get_write_buffer_size() > MUCH:
                self._much()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _TooMuch(Exception):
    """A client sends requests faster than it could be answered."""


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with our own reading: the parser alone decides where a message ends, whatever it offers.

    httptools ends a request that offers an upgrade (`Upgrade`, and `Connection: upgrade`; or CONNECT) at its head, so
    that its body would be parsed as the next request. The gateway never upgrades: the head is given to the parser a
    second time without the offer, and what follows is that request's body.
    """

    _again = False  # the parser reads a head for the second time
    _past_head = False
    _unframed = 0  # bytes read since the last byte of a body, or since the last end of a head or of a message

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all = connections
        self._since: float | None = None  # when the present request, or the wait for the first, began
        self._taken = 0  # bytes that the client had taken
        self.taken_at = 0.0  # when it took the last of them
        self._parser: Any = self.parser
        self._earlier: list[RequestResponseCycle] = []  # requests that were not answered when the next one came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._corked = Corked(transport, self.loop, self._all.look_soon)
        super().connection_made(self._corked)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self._since = self.taken_at = self.loop.time()
        if not self._all.add(self):
            self._refuse(503)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._since is None:
            self._since = self.loop.time()
        self._unframed += len(data)
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    self._read_head_again()
                    data = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self._refuse(400)
            return
        if self._unframed > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431)

    # The clock, once a second or so: see Connections

    @property
    def owner(self) -> str | None:
        return self._corked.owner

    def look(self, now: float) -> int:
        """Close the connection if the client sends or reads too slowly. Returns the bytes that it has not taken yet."""
        limits, cycle = self._all.limits, self._last
        if self._since is None:
            pass
        elif self._past_head:
            if self.flow.read_paused:
                self._since = now
            elif now - self._since > limits.body:
                self._refuse(408)
        elif cycle is not None and not cycle.response_complete:
            self._since = now  # after a request that is being answered: it is parsed later
        elif now - self._since > limits.head:
            self._refuse(408) if self._unframed else self.transport.close()
        unsent = self.transport.get_write_buffer_size()
        taken = self._corked.written - unsent
        if not unsent or taken - self._taken >= SOME_BYTES:
            self._taken, self.taken_at = taken, now
        elif now - self.taken_at > limits.write:
            self.cut("it does not take what it is sent")
        return unsent

    def cut(self, why: str) -> None:
        log.info("closed a client's connection: %s", why)
        self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = self._last
        if cycle is None or cycle.response_complete:
            self._all.waits(self)

    def _read_head_again(self) -> None:
        """Give the parser what frames the body, without what offered an upgrade. The method frames nothing."""
        framing = [b"%s: %s\r\n" % (name, value) for name, value in self.headers if name in _FRAMING]
        version = self.scope["http_version"].encode()
        if not self._parser.should_keep_alive():  # it stops after the head, and would skip the body
            framing.append(b"connection: close\r\n")
            self.parser = self._parser = httptools.HttpRequestParser(self)
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn: it is read and dropped
        self._again = True
        try:
            self._parser.feed_data(b"POST / HTTP/%s\r\n%s\r\n" % (version, b"".join(framing)))
        finally:
            self._again = False

    def _refuse(self, status: int) -> None:
        """Refuse what comes, and close. Nothing is written into the middle of an answer that is on its way."""
        if self.transport.is_closing():
            return
        cycle = self._last
        if cycle is not None and self._past_head:
            may_answer = not cycle.response_started and not self.pipeline
        else:
            may_answer = cycle is None or cycle.response_complete
        self._hang_up_on_cycles()
        if may_answer:
            self.transport.write(_REFUSED[status])
        self.transport.close()

    @property
    def _last(self) -> RequestResponseCycle | None:
        """The last request, if any: uvicorn's annotation leaves out that there may be none."""
        return self.cycle

    def _hang_up_on_cycles(self) -> None:
        """Mark every request that is not answered as disconnected. uvicorn marks the last one only."""
        for cycle in (*self._earlier, *(cycle for cycle, _ in self.pipeline), self._last):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._hang_up_on_cycles()
        self._earlier.clear()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._parser = None  # it holds us, too

    # The parser calls these.

    def on_message_begin(self) -> None:
        if self._again:
            return
        self._unframed, self._past_head = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._past_head:  # trailers are ignored: the headers have been checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._again:
            return
        self._unframed, self._past_head = 0, True
        self._since = self.loop.time()
        self._all.answers(self)
        before = self._last
        super().on_headers_complete()
        if before is not None and not before.response_complete:
            self._earlier = [each for each in (*self._earlier, before) if not each.response_complete]
            if len(self._earlier) > PIPELINED:
                raise _TooMuch

    def on_body(self, body: bytes) -> None:
        self._unframed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._again and self._parser.should_upgrade():
            return  # only its head is: see data_received
        self._unframed, self._past_head, self._since = 0, False, None
        super().on_message_complete()
