"""The pipe to the one client of `holdfast serve --stdio`: messages wait here until the client reads them.

Writing never blocks the process, whose other work (claims, health, what the client sends) goes on. The pipe is not made
non-blocking, because other processes may share it.
"""

import asyncio
import contextlib
import logging
import os
import select
from collections import deque
from collections.abc import Callable

from holdfast.gateway.config.settings import ClientLimits

log = logging.getLogger("holdfast.gateway")

CHUNK = getattr(select, "PIPE_BUF", 512)  # bytes that a pipe which is ready takes without blocking
CHUNKS_AT_ONCE = 64  # before other tasks of this process get a turn


class OutPipe:
    """A file descriptor, and the data that waits to be written to it."""

    def __init__(self, file: int, limits: ClientLimits, broken: Callable[[], None]) -> None:
        self.is_broken = False
        """The client hung up, or counts as gone."""
        self.waiting = 0
        """Bytes that the client has not taken."""
        self._file = file
        self._limits = limits
        self._broken = broken
        self._data: deque[memoryview] = deque()
        self._progress = asyncio.Event()
        self._scheduled = False
        self._watched = False
        self._taken = 0
        self._deadline: asyncio.TimerHandle | None = None

    def put(self, data: bytes) -> None:
        """Write data after what already waits."""
        if self.is_broken:
            return
        self._data.append(memoryview(data))
        self.waiting += len(data)
        if self.waiting > self._limits.total_bytes:
            self._break(f"it has left more than clients.total_bytes, {self._limits.total_bytes}, unread")
        elif not self._scheduled and not self._watched:
            self._write()

    async def keep_up(self) -> None:
        """Wait until the client is no longer far behind, or gone."""
        while self.waiting > self._limits.session_bytes // 2:
            await self._progress.wait()

    async def flush(self) -> bool:
        """Wait until everything is written. False: the client was gone before, at the latest by `clients.write`."""
        while self._data:
            await self._progress.wait()
        return not self.is_broken

    def close(self) -> None:
        """Write no more."""
        self._break(None)

    def _write(self) -> None:
        self._scheduled = False
        for _ in range(CHUNKS_AT_ONCE):
            if not self._data:
                break
            try:
                if not select.select([], [self._file], [], 0)[1]:
                    self._wait_until_ready()
                    return
                written = os.write(self._file, self._data[0][:CHUNK])
            except BlockingIOError:
                self._wait_until_ready()
                return
            except OSError as error:
                self._break(f"it hung up: {(error.strerror or str(error)).lower()}")
                return
            self._took(written)
        self._unwatch()
        if self._data:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _took(self, size: int) -> None:
        self._taken += size
        self.waiting -= size
        self._data[0] = self._data[0][size:]
        if not self._data[0]:
            self._data.popleft()
        self._wake()

    def _wait_until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._watched:
            loop.add_writer(self._file, self._write)
            self._watched = True
        if self._deadline is None:
            self._deadline = loop.call_later(self._limits.write, self._check, self._taken)

    def _check(self, taken: int) -> None:
        """Give the client up if it has taken nothing since."""
        self._deadline = None
        if self._taken == taken:
            self._break(f"it has taken nothing for clients.write, {self._limits.write:g} s")
        elif self._data:
            self._deadline = asyncio.get_running_loop().call_later(self._limits.write, self._check, self._taken)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_writer(self._file)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _break(self, why: str | None) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        self._unwatch()
        self._data.clear()
        self.waiting = 0
        self._wake()
        if why is not None:
            log.warning("the client is no longer served: %s", why)
            self._broken()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
