"""The lower door of uvicorn: fewer steps between our answer and the socket, and an end to headers.

It owns what is said to uvicorn beyond ASGI: an answer that is there whole is written at once, where
two messages, a check of our own headers and two writes took 30 of 140 µs. It refuses to know MCP. Everything it touches
of uvicorn is a public attribute; where one is missing, plain ASGI does the work.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 128 * 1024  # of a request's first line and headers
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def json_at_once(send: Callable[[dict[str, Any]], Awaitable[None]], body: bytes) -> bool:
    """Write a whole JSON answer, if the connection can take it now and lives on. False: say it by ASGI."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or not cycle.keep_alive or cycle.response_started:
        return False
    if cycle.flow.write_paused or cycle.scope["method"] != "POST":
        return False
    if cycle.disconnected:
        return True  # nobody is there to hear it
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(_JSON_HEAD % len(body) + body)
    cycle.message_event.set()
    cycle.on_response()
    return True


class Corked:
    """A transport that sends what is written in one turn of the loop together: uvicorn writes head and body apart."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """uvicorn's, with an end to headers (its parser takes them however long they are), and one write an answer."""

    _head = 0
    _past_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def data_received(self, data: bytes) -> None:
        if not self._past_head:
            self._head += len(data)
            if b"pgrade:" in data:
                # Java's client offers h2c with every POST. Whoever does not upgrade goes on in HTTP/1.1, but the parser
                # would end the message at its head.
                end = data.find(b"\r\n\r\n")
                data = _UPGRADE.sub(b"\r\nx-not-upgraded:", data, count=1) if end >= 0 else data
        super().data_received(data)
        if self._head > HEAD_BYTES and not self._past_head and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def on_message_begin(self) -> None:
        self._head, self._past_head = 0, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._past_head = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head, self._past_head = 0, False
        super().on_message_complete()
