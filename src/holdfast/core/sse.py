"""An incremental parser of server-sent events, with a limit on the size of one event.

It takes chunks, not lines: an event may be one line of many megabytes, and arrives in pieces of any size.
"""

from dataclasses import dataclass

LONGEST_RETRY = 60.0  # seconds: with a longer delay, too much of what the server sends would be missed
LONGEST_ID = 4096  # bytes: it is sent back as a header, and servers accept eight kilobytes of headers


class EventTooLarge(Exception):
    """One event is larger than the limit."""


@dataclass(slots=True)
class ServerSentEvent:
    """One dispatched event.
    `id` and `retry` are None where this event has none. The id's bytes are decoded as Latin-1, so that a header sends
    them back unchanged.
    """

    data: bytes
    event: bytes
    id: str | None
    retry: float | None

    @property
    def is_message(self) -> bool:
        """Whether it is of the type for messages. Servers send keep-alives with other types."""
        return bool(self.data) and self.event in (b"", b"message")


class Parser:
    """Turns chunks into events. `last_id` is the id to resume from."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._rest = bytearray()
        self._scanned = 0  # this many bytes of the rest are known to contain no line end
        self._skip_newline = False
        self._begins = True
        self._data = bytearray()  # lines joined into one value: a list of short ones would take many times their bytes
        self._lines = 0
        self._event = b""
        self._id: str | None = None
        self._retry: float | None = None
        self.last_id: str | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        if self._skip_newline and chunk:
            # The previous chunk ended in a carriage return that may be the first half of a line end.
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._skip_newline = False
        self._rest += chunk
        if self._begins and len(self._rest) >= 3:
            self._begins = False
            if self._rest.startswith(b"\xef\xbb\xbf"):
                del self._rest[:3]
                self._scanned = 0
        while True:
            end, after = self._line_end()
            if end < 0:
                break
            line = bytes(self._rest[:end])
            del self._rest[:after]
            self._scanned = 0
            if line:
                self._field(line)
            elif event := self._dispatch():
                events.append(event)
        if len(self._rest) + len(self._data) > self._cap:
            raise EventTooLarge
        return events

    def _line_end(self) -> tuple[int, int]:
        newline = self._rest.find(b"\n", self._scanned)
        carriage = self._rest.find(b"\r", self._scanned, newline if newline >= 0 else len(self._rest))
        if carriage < 0:
            if newline < 0:
                self._scanned = len(self._rest)
            return newline, newline + 1
        if carriage + 1 == len(self._rest):
            self._skip_newline = True
            return carriage, carriage + 1
        return carriage, carriage + (2 if self._rest[carriage + 1] == 0x0A else 1)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            if self._lines:
                self._data += b"\n"
            self._data += value
            self._lines += 1
            if len(self._data) > self._cap:
                raise EventTooLarge
        elif name == b"event":
            self._event = value
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("latin-1")
        elif name == b"retry" and value.isdigit():
            self._retry = min(int(value) / 1000, LONGEST_RETRY) if len(value) < 10 else LONGEST_RETRY

    def _dispatch(self) -> ServerSentEvent | None:
        if not self._lines and self._id is None and self._retry is None and not self._event:
            return None
        if self._id is not None:
            # Set only now: an event that was interrupted must be requested again. An id that no header
            # can carry ends resumption, because an earlier id would deliver events twice.
            self.last_id = self._id if 0 < len(self._id) <= LONGEST_ID else None
        event = ServerSentEvent(bytes(self._data), self._event, self._id, self._retry)
        self._data, self._lines, self._event, self._id, self._retry = bytearray(), 0, b"", None, None
        return event
