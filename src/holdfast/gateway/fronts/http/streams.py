"""Event streams to a client: their event ids, and the events that the client has not taken or may come back for.

The events kept are bounded in bytes: of one stream, of a session's streams, of all. A writer can wait for the reader.
Where none waits, the oldest events go first, and a reader who had not taken them is cut off. A reader who comes back
too late for an event goes on with the next one that is kept.
"""

import asyncio
import itertools
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from holdfast.gateway.config.settings import ClientLimits
from holdfast.links.codec import encode_known

KEPT_STREAMS = 16  # of answers that ended: each is one call whose client may come back for it
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII).fullmatch  # int() refuses thousands of digits
COMMENT = b": the call goes on\n\n"
"""An event without a message or a number, which clients ignore."""
OWN = "own"
"""The stream that a client opens with GET, for messages that belong to no call."""


class Room:
    """The bytes of events that may be kept, of a session or of all. The stream written to longest ago gives way."""

    def __init__(self, limit: int, above: "Room | None" = None) -> None:
        self.limit = limit
        self.used = 0
        self._above = above
        self._streams: OrderedDict[Stream, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Room {self.used} of {self.limit} bytes, {len(self._streams)} streams>"

    def resize(self, limit: int) -> None:
        """Another limit, from the next event on."""
        self.limit = limit

    def take(self, stream: "Stream", size: int) -> None:
        self.used += size
        self._streams[stream] = None
        self._streams.move_to_end(stream)
        if self._above is not None:
            self._above.take(stream, size)
        self.settle()

    def give_back(self, stream: "Stream", size: int) -> None:
        self.used -= size
        if not stream.size:
            self._streams.pop(stream, None)
        if self._above is not None:
            self._above.give_back(stream, size)

    def settle(self) -> None:
        """Keep to the limit: drop events of streams without a reader first, then of readers who are behind. The last
        event of a stream that is being read stays, or no answer over the limit could be sent."""
        if self.used <= self.limit:
            return
        for with_readers in (False, True):
            for stream in tuple(self._streams):
                if stream.is_read is with_readers:
                    stream.drop_to(0, all_but_last=with_readers)
                    if self.used <= self.limit:
                        return


class _Event(NamedTuple):
    number: int
    data: bytes
    end: int
    """Bytes of the stream up to here."""


class Stream:
    """A stream and its last events."""

    __slots__ = (
        "_closed",
        "_comment_due",
        "_events",
        "_limit",
        "_lost",
        "_news",
        "_progress",
        "_reader",
        "_room",
        "_taken",
        "_written",
        "cut_off",
        "delivered",
        "ended",
        "id",
        "is_read",
        "last",
        "size",
        "whole",
    )

    def __init__(self, id: str | None, room: Room, limit: int) -> None:
        self.id = id
        """None for a stream that can't be resumed: events that were taken are not kept."""
        self.last = 0
        self.delivered = 0
        """The last event that a reader has taken. A reader without an event id goes on from there."""
        self.ended = False
        self.whole = False
        """It ended after its last message."""
        self.is_read = False
        self.cut_off = False
        """Its reader was too far behind."""
        self.size = 0
        self._closed = self._comment_due = False
        self._reader = 0  # counts readers: a new one takes the stream over from the one before
        self._events: deque[_Event] = deque()
        self._room = room
        self._limit = limit
        self._lost = 0  # the last event that was dropped before it was taken
        self._written = 0  # bytes in all
        self._taken = 0  # bytes of those that the reader has taken
        self._news = asyncio.Event()
        self._progress = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.size} bytes of {len(self._events)} events, read={self.is_read}>"

    @property
    def unread(self) -> int:
        """Bytes that the reader has not taken."""
        return self._written - self._taken if self.is_read else 0

    def add(self, message: Mapping[str, Any]) -> None:
        self.last += 1
        data = encode_known(dict(message))
        if self.id is None:
            event = b"event: message\ndata: %s\n\n" % data
        else:
            event = b"id: %s-%d\nevent: message\ndata: %s\n\n" % (self.id.encode(), self.last, data)
        size = len(event)
        self._written += size
        self._events.append(_Event(self.last, event, self._written))
        self.size += size
        self.drop_to(self._limit + size)  # a large event does not push out those before it
        self._room.take(self, size)
        if self._closed and not self.is_read:
            self.drop_to(0)
        self._wake()

    def first(self) -> bytes:
        """An event without a message, from which the stream can be resumed. Empty if it can't."""
        return b"" if self.id is None else b"id: %s-0\ndata: \n\n" % self.id.encode()

    def comment(self) -> None:
        """Send the reader a comment, once, however late the reader takes it."""
        self._comment_due = True
        self._wake()

    def finish(self) -> None:
        """End it: its last message was added."""
        self.whole = True
        self.end()

    def end(self) -> None:
        """Let no reader wait for more, except for the answer to a call."""
        self.ended = True
        self._wake()

    def close(self) -> None:
        """Keep it for its present reader only: no other will come."""
        self._closed = True
        if not self.is_read:
            self.drop_to(0)

    def forget(self, number: int) -> None:
        """Drop an event that must not be sent again."""
        kept = [event for event in self._events if event.number != number]
        gone = self.size - sum(len(event.data) for event in kept)
        self._events.clear()
        self._events.extend(kept)
        self._release(gone)

    def drop_to(self, size: int, *, all_but_last: bool = False) -> None:
        """Drop the oldest events until it is no larger than that."""
        gone = 0
        while self.size - gone > size and len(self._events) > all_but_last:
            event = self._events.popleft()
            gone += len(event.data)
            self._lost = event.number
        self._release(gone)

    def _release(self, size: int) -> None:
        if size:
            self.size -= size
            self._room.give_back(self, size)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _wake_writers(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def expect_reader(self, expected: bool = True) -> None:
        """The first reader is on its way, so that writers wait for it; False: it never came."""
        if not self._reader:
            self.is_read = expected
            self._wake_writers()

    async def keep_up(self) -> None:
        """Wait until the reader, if there is one, is no longer far behind."""
        while self.unread > self._limit // 2:
            await self._progress.wait()

    async def after(self, number: int, *, until_whole: bool = False) -> AsyncGenerator[bytes]:
        """The events after that one, and then new ones, until the stream ends, another reader takes it over, or an
        event that was not taken had to be dropped."""
        self._reader += 1
        me, self.is_read, self.cut_off = self._reader, True, False
        self._taken = self._end_of(number)
        self._wake()
        missed = 0 if until_whole else self._lost  # before this reader came
        try:
            while True:
                news = self._news
                for event in self._following(number):
                    if self._reader != me:
                        return
                    if self._lost > max(number, missed) and event.number > self._lost:
                        self.cut_off = True
                        return
                    number = event.number
                    self.delivered = max(self.delivered, number)
                    yield event.data
                    self._took(me, event)
                if self._reader != me:
                    return
                if self._lost > max(number, missed):
                    self.cut_off = True
                    return
                if self.whole if until_whole else self.ended:
                    return
                if self._comment_due:
                    self._comment_due = False
                    yield COMMENT
                elif news is self._news:
                    await news.wait()
        finally:
            if self._reader == me:
                self.is_read = False
                self._wake_writers()
                self._room.settle()
                if self._closed:
                    self.drop_to(0)

    def _following(self, number: int) -> list[_Event]:
        events: list[_Event] = []
        for event in reversed(self._events):
            if event.number <= number:
                break
            events.append(event)
        events.reverse()
        return events

    def _end_of(self, number: int) -> int:
        following = self._following(number)
        return following[0].end - len(following[0].data) if following else self._written

    def _took(self, reader: int, event: _Event) -> None:
        if self._reader != reader:
            return
        self._taken = max(self._taken, event.end)
        if self.id is None and self._events and self._events[0] is event:
            self._events.popleft()
            self._release(len(event.data))
        if self.unread <= self._limit // 4:
            self._wake_writers()


class Streams:
    """The streams of one session."""

    def __init__(self, limits: ClientLimits | None = None, above: Room | None = None) -> None:
        limits = limits or ClientLimits()
        self._epoch = secrets.token_hex(4)  # another process counts its events from the start
        self._limit = limits.stream_bytes
        self.room = Room(limits.session_bytes, above)
        self.own = Stream(f"{self._epoch}.{OWN}", self.room, self._limit)
        self._answers: OrderedDict[str, Stream] = OrderedDict()
        self._numbers = itertools.count(1)

    def answer(self) -> Stream:
        """A stream for one call's answer."""
        id = f"{self._epoch}.{next(self._numbers)}"
        stream = self._answers[id] = Stream(id, self.room, self._limit)
        while len(self._answers) > KEPT_STREAMS:
            oldest = next((id for id, each in self._answers.items() if each.ended), None)
            if oldest is None:
                break
            self._answers.pop(oldest).close()
        return stream

    def resume(self, last_event_id: str) -> tuple[Stream, int]:
        """The stream that an event belongs to, and the event's number. An unknown event, of another process perhaps,
        resumes the client's own stream with everything that was not taken yet."""
        name, _, number = last_event_id.rpartition("-")
        stream = self.own if name == self.own.id else self._answers.get(name)
        if stream is None or not _NUMBER(number) or int(number) > stream.last:
            return self.own, self.own.delivered
        return stream, int(number)

    def end(self) -> None:
        """No more events come."""
        for stream in (self.own, *self._answers.values()):
            stream.end()

    def forget(self) -> None:
        """The session is gone, so that no stream of it is resumed."""
        for stream in (self.own, *self._answers.values()):
            stream.close()
