"""Splits a program's stdout into messages: a line is a message, of any size up to the limit.

Other lines are skipped and counted. Of a line over the limit only its two ends are kept, to find out which call it
answers.
"""

import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from holdfast.links.codec import Decode, decode
from holdfast.links.wires.base import Message
from holdfast.links.wires.duplex import Unreadable

LINE_SHOWN = 500  # characters of one line of output, in an event or an error
ID_WITHIN = 300  # bytes at either end of a line over the limit, in which its id is searched
_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){1,200}"|\d{1,18})')


class Lines:
    """Splits stdout into messages.
    `take` is called with each message and the size of its line, `on_stray` with the first line that is not one.
    """

    def __init__(
        self,
        cap: int,
        decode: Decode,
        take: Callable[[Message | Unreadable, int], None],
        on_stray: Callable[[str], None],
    ) -> None:
        self.strays = 0
        self.printed: deque[str] = deque(maxlen=5)
        """The last lines that were not messages."""
        self._cap = cap
        self._decode = decode
        self._take = take
        self._on_stray = on_stray
        self._rest = bytearray()
        self._scanned = 0
        self._skipping = False
        self._skipped_ids: tuple[str | int, ...] = ()

    def feed(self, data: bytes) -> None:
        """Process bytes from the pipe."""
        self._rest += data
        while (end := self._rest.find(b"\n", self._scanned)) >= 0:
            line = bytes(memoryview(self._rest)[:end])  # only one copy: it may be as large as the limit
            del self._rest[: end + 1]
            self._scanned = 0
            if self._skipping:
                self._skipping = False
                self._take(Unreadable((*ids_in(line[-ID_WITHIN:]), *self._skipped_ids), True), 0)
            elif len(line) > self._cap:
                self._take(Unreadable((*ids_in(line[-ID_WITHIN:]), *ids_in(line[:ID_WITHIN])), True), 0)
            elif line.strip():
                self._take_line(line)
        self._scanned = len(self._rest)
        if len(self._rest) > self._cap:
            if not self._skipping:
                self._skipping, self._skipped_ids = True, ids_in(self._rest[:ID_WITHIN])
            del self._rest[:-ID_WITHIN]
            self._scanned = len(self._rest)

    def _take_line(self, line: bytes) -> None:
        try:
            message = self._decode(line)
        except ValueError:
            message = None
        if isinstance(message, dict) and "jsonrpc" in message:
            self._take(cast("Message", message), len(line))
            return
        if isinstance(message, list):  # a batch, which 2025-03-26 allowed
            listed = cast("list[Any]", message)
            parts = [cast("Message", part) for part in listed if isinstance(part, dict) and "jsonrpc" in part]
            for part in parts:
                self._take(part, len(line) // len(parts))
            if parts:
                return
        if (
            message is None
            and line.lstrip()[:1] == b"{"
            and (ids := (*ids_in(line[-ID_WITHIN:]), *ids_in(line[:ID_WITHIN])))
        ):
            self._take(Unreadable(ids, False), 0)  # perhaps an answer: its call must not wait for another
        self.strays += 1
        text = line[:LINE_SHOWN].decode("utf-8", "replace").strip()
        self.printed.append(text)
        if self.strays == 1:
            self._on_stray(f"the program wrote to stdout a line that is not a message; it is skipped: {text!r:.200}")


def ids_in(data: bytes | bytearray) -> tuple[str | int, ...]:
    """Possible ids of a message of which only parts are available; the last one first."""
    found: list[str | int] = []
    for text in _ID.findall(bytes(data)):
        with suppress(ValueError):
            value: Any = decode(text)
            if isinstance(value, str | int):
                found.append(value)
    return tuple(reversed(found))
