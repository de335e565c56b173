"""Notices of an SQLite store: a table that each process with listeners polls."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from holdfast.core.models import NoticeOrGap
from holdfast.stores.notices import Listeners
from holdfast.stores.sqlite.steps import LAST_NOTICE, NOTICES

POLL_SECONDS = 0.05  # how late a notice of another process may come; asking costs 0.1 ms


class SqliteNotices:
    """One polling task, from the first listener to the last."""

    def __init__(
        self,
        read: Callable[[str, Sequence[object]], Awaitable[list[Any]]],
        listeners: Listeners,
        failed: Callable[[str], None],
    ) -> None:
        self._read = read
        self._listeners = listeners
        self._failed = failed
        self._poller: asyncio.Task[None] | None = None
        self._published = asyncio.Event()

    @asynccontextmanager
    async def listen(self, topics: tuple[str, ...]) -> AsyncGenerator[AsyncIterator[NoticeOrGap], None]:
        seen: int = (await self._read(LAST_NOTICE, ()))[0][0]
        with self._listeners.register(topics, since=seen) as listener:
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll(seen))
            yield listener

    def wake(self) -> None:
        """Poll now: this process has published."""
        self._published.set()

    async def close(self) -> None:
        """End the task."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
            self._poller = None

    async def _poll(self, seen: int) -> None:
        """Deliver what others published, as long as there are listeners."""
        version: int | None = None
        failing = False
        while self._listeners:
            try:
                now: int = (await self._read("PRAGMA data_version", ()))[0][0]
                found = await self._read(NOTICES, (seen,)) if now != version else []
            except Exception as error:
                if not failing:
                    self._failed(str(error))
                failing, version, found = True, None, []
            else:
                if failing:
                    self._listeners.gap()
                failing, version = False, None if found else now
            for seq, topic, body in found:
                if seq != seen + 1:  # rows are numbered without gaps, so a hole is a loss
                    self._listeners.gap()
                seen = seq
                self._listeners.deliver(str(topic), body if isinstance(body, bytes) else b"", seq)
            if not found:
                self._published.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._published.wait()
