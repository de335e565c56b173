"""Turns within one process: calls that write the same session wait for each other instead of raising `Conflict`."""

import asyncio
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.errors import Busy


class Turns:
    """A lock per name and event loop, which exists as long as it is held or waited for."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = weakref.WeakValueDictionary()

    def is_taken(self, name: str) -> bool:
        """Whether `turn` would have to wait."""
        lock = self._locks.get((id(asyncio.get_running_loop()), name))
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def turn(self, name: str, seconds: float) -> AsyncGenerator[bool]:
        """Hold the lock during the block; yields whether it had to wait. Raises `Busy` after `seconds`."""
        place = (id(asyncio.get_running_loop()), name)
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        waited = lock.locked()
        if not waited:
            await lock.acquire()
        else:
            try:
                async with asyncio.timeout(seconds):
                    await lock.acquire()
            except TimeoutError:
                raise Busy(f"other calls were writing for {seconds:g} s", id=name, remedy="try again later") from None
        try:
            yield waited
        finally:
            lock.release()
