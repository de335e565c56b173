"""Turns within one process: calls that write the same session wait for each other instead of raising `Conflict`."""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.errors import Busy

_Waiting = deque[tuple["asyncio.Future[None]", float]]


class Turns:
    """Names that are held, each with those who wait for it, first come, first served. Each event loop has its own."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Waiting]] = (
            weakref.WeakKeyDictionary()
        )

    def first_since(self, name: str) -> float | None:
        """Since when the next one waits for this name, on the monotonic clock; None if nobody does."""
        waiting = self._held().get(name)
        return waiting[0][1] if waiting else None

    def take_nowait(self, name: str) -> bool:
        """Hold the name, if nobody does."""
        held = self._held()
        if name in held:
            return False
        held[name] = deque()
        return True

    async def take(self, name: str, seconds: float) -> bool:
        """Hold the name until `give_back`; returns whether it had to wait. Raises `Busy` after `seconds`."""
        if self.take_nowait(name):
            return False
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._held()[name]
        place = mine, time.monotonic()
        waiting.append(place)
        try:
            async with asyncio.timeout(seconds):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():  # the turn came too late; the next one has it
                self.give_back(name)
            else:
                waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise Busy(f"other calls were writing for {seconds:g} s", id=name, remedy="try again later") from None
            raise
        return True

    def give_back(self, name: str) -> None:
        """Hand the name to whoever waits longest."""
        held = self._held()
        waiting = held[name]
        while waiting:
            first, _ = waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
        del held[name]

    @asynccontextmanager
    async def turn(self, name: str, seconds: float) -> AsyncGenerator[bool]:
        """Hold the name during the block; yields whether it had to wait. Raises `Busy` after `seconds`."""
        waited = await self.take(name, seconds)
        try:
            yield waited
        finally:
            self.give_back(name)

    def _held(self) -> dict[str, _Waiting]:
        loop = asyncio.get_running_loop()
        held = self._loops.get(loop)
        if held is None:
            held = self._loops[loop] = {}
        return held
