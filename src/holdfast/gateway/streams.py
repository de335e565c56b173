"""Event streams towards one client: what was said on them, so that a broken one can be resumed. 2025 only.

It owns event ids and what is kept of each stream. It refuses to keep without end: old events go first, and who comes
back too late for them starts where the stream stands.
"""

import asyncio
import itertools
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from holdfast.links.codec import encode_known

KEPT_EVENTS = 256  # of one stream: what a client misses while it reconnects
KEPT_STREAMS = 16  # of answers that ended: one per call that a client may come back for
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch  # int() refuses thousands of digits
OWN = "own"
"""The stream that a client opens with GET: what concerns no call."""


class Stream:
    """One stream and its last events."""

    __slots__ = ("_events", "_news", "_reader", "delivered", "ended", "id", "is_read", "last")

    def __init__(self, id: str) -> None:
        self.id = id
        self.last = 0
        self.delivered = 0
        """What a reader has taken: whoever comes without an event id goes on from there."""
        self.ended = False
        self.is_read = False
        self._reader = 0  # counts readers: a new one takes the stream over from the one before
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._news = asyncio.Event()

    def add(self, message: Mapping[str, Any]) -> bytes:
        """Append a message; returns its event as bytes."""
        self.last += 1
        event = b"id: %s-%d\nevent: message\ndata: %s\n\n" % (
            self.id.encode(),
            self.last,
            encode_known(dict(message)),
        )
        self._events.append((self.last, event))
        self._tell()
        return event

    def first(self) -> bytes:
        """An event without a message: from here on the stream can be resumed."""
        return b"id: %s-%d\ndata: \n\n" % (self.id.encode(), self.last)

    def end(self) -> None:
        self.ended = True
        self._tell()

    def forget(self, number: int) -> None:
        """An event that must not be told again."""
        kept = [event for event in self._events if event[0] != number]
        self._events.clear()
        self._events.extend(kept)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, number: int) -> AsyncGenerator[bytes]:
        """Events after that one, and then what comes, until the stream ends or another reader takes it over."""
        self._reader += 1
        me, self.is_read = self._reader, True
        self._tell()
        try:
            while True:
                news = self._news
                for count, event in tuple(self._events):
                    if count > number:
                        number = count
                        self.delivered = max(self.delivered, count)
                        yield event
                if self.ended or self._reader != me:
                    return
                await news.wait()
        finally:
            if self._reader == me:
                self.is_read = False


class Streams:
    """All streams of one session."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)  # another process counts its events anew
        self.own = Stream(f"{self._epoch}.{OWN}")
        self._answers: OrderedDict[str, Stream] = OrderedDict()
        self._numbers = itertools.count(1)

    def answer(self) -> Stream:
        """A stream for one call's answer."""
        stream = Stream(f"{self._epoch}.{next(self._numbers)}")
        self._answers[stream.id] = stream
        while len(self._answers) > KEPT_STREAMS:
            oldest = next((id for id, each in self._answers.items() if each.ended), None)
            if oldest is None:
                break
            del self._answers[oldest]
        return stream

    def resume(self, last_event_id: str) -> tuple[Stream, int]:
        """The stream that an event belongs to, and its number. An event that nobody knows, of another process perhaps,
        resumes the client's own stream, with all that was not taken yet."""
        name, _, number = last_event_id.rpartition("-")
        stream = self.own if name == self.own.id else self._answers.get(name)
        if stream is None or not _NUMBER(number) or int(number) > stream.last:
            return self.own, self.own.delivered
        return stream, int(number)

    def end(self) -> None:
        for stream in (self.own, *self._answers.values()):
            stream.end()
