"""The events that wait for one reader: bounded in bytes; what does not fit is counted and reported in its place."""

import asyncio
import threading

from holdfast.events import Event
from holdfast.gateway.admin.shown import Wanted, line_of, shown

QUEUED_BYTES = 256 * 1024  # of lines for one reader: a second of a busy gateway


class EventQueue:
    """A sink, for one reader. It never waits, whatever the reader does; events may come from any thread."""

    def __init__(self, wanted: Wanted, most: int = QUEUED_BYTES) -> None:
        self._wanted = wanted
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._filled = asyncio.Event()
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._lost = 0

    def __call__(self, event: Event) -> None:
        if not self._wanted.takes(event):
            return
        if self._lost:  # until it reads again; one that would fit must not come before the report of those lost
            with self._lock:
                self._lost += 1
            return
        line = line_of({"event": shown(event)})
        with self._lock:
            if self._lost or self._bytes + len(line) > self._most:
                self._lost += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
        if threading.get_ident() == self._thread:
            self._filled.set()
        else:
            self._loop.call_soon_threadsafe(self._filled.set)

    async def take(self) -> bytes:
        """Wait for lines, and take them. The last one says how many were lost behind them, if any were."""
        await self._filled.wait()
        with self._lock:
            self._filled.clear()
            lines, lost = self._lines, self._lost
            self._lines, self._bytes, self._lost = [], 0, 0
        if lost:
            lines.append(line_of({"lost": lost}))
        return b"".join(lines)
