"""Listeners of one store in one process, each with a queue that the store delivers into.

A listener that falls behind loses notices and gets a `Gap`; it never slows the others or the store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

from holdfast.core import values
from holdfast.core.models import Gap, Notice, NoticeOrGap, check_name
from holdfast.errors import LeaseClosed, UsageError

MAX_PENDING = 16_384  # notices a listener may lag behind: some megabytes at worst


class Listener:
    """One listener: an async iterator over what was published, in order."""

    def __init__(self, topics: frozenset[str], since: int) -> None:
        self.topics = topics
        self.since = since
        self._pending: deque[NoticeOrGap] = deque()
        self._ring = asyncio.Event()
        self._closed = False

    def put(self, notice: NoticeOrGap) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._pending.clear()
            notice = Gap()
        if not (isinstance(notice, Gap) and self._pending and isinstance(self._pending[-1], Gap)):
            self._pending.append(notice)
        self._ring.set()

    def close(self) -> None:
        self._closed = True
        self._ring.set()

    def __aiter__(self) -> AsyncIterator[NoticeOrGap]:
        return self

    async def __anext__(self) -> NoticeOrGap:
        while not self._pending:
            if self._closed:
                raise LeaseClosed("the store was closed while it was listened to")
            self._ring.clear()
            await self._ring.wait()
        return self._pending.popleft()


class Listeners:
    """All listeners of one store in this process."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def register(self, topics: tuple[str, ...], since: int = -1) -> Generator[Listener, None, None]:
        """A listener for what comes after number `since`, where the store numbers its notices."""
        if not topics:
            raise UsageError("listen needs at least one topic")
        listener = Listener(frozenset(check_name(topic, "topic") for topic in topics), since)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def deliver(self, topic: str, body: bytes, number: int = 0) -> None:
        """Each listener gets a copy of its own. A body that can't be read counts as lost: listeners get a `Gap`."""
        for listener in self._listeners:
            if topic in listener.topics and number > listener.since:
                try:
                    listener.put(Notice(topic, values.decode(body)))
                except (ValueError, RecursionError):
                    listener.put(Gap())

    def gap(self) -> None:
        for listener in self._listeners:
            listener.put(Gap())

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
