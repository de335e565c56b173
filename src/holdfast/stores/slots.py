"""Connections that take turns: up to so many, the last used first. It owns who waits for whom.

It refuses to know what a connection is; whoever took one says whether it can be used again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.errors import StoreDown

C = TypeVar("C")


class Slots(Generic[C]):
    """At most `size` connections at a time. Taking one that is idle does not wait, not even for the event loop."""

    def __init__(self, url: str, size: int, timeout: float, connect: Callable[[], Awaitable[C]]) -> None:
        self._url = url
        self._size = size
        self._timeout = timeout
        self._connect = connect
        self._idle: deque[C] = deque()
        self._open = 0
        self._waiting: deque[asyncio.Future[C | None]] = deque()

    def take_idle(self) -> C | None:
        return self._idle.pop() if self._idle else None

    async def take(self) -> C:
        """An idle one, or a new one, or the next that comes free; `StoreDown` if none does in time."""
        if self._idle:
            return self._idle.pop()
        if self._open < self._size:
            self._open += 1
        elif (handed := await self._wait()) is not None:
            return handed
        try:
            return await self._connect()
        except BaseException:
            self.lose()
            raise

    async def _wait(self) -> C | None:
        """First come, first served: a connection that is handed on, or the place of one that was lost."""
        turn: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._timeout):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # our turn came too late; somebody else takes it
                handed = turn.result()
                self.lose() if handed is None else self.give_back(handed)
            if not isinstance(error, TimeoutError):
                raise
            raise StoreDown(
                f"{self._url} gave no connection within {self._timeout:g} s; {self._size} may be in use at once",
                store=self._url,
                remedy="raise ?connections= or ?timeout= if the server is well",
            ) from None

    def give_back(self, connection: C) -> None:
        if (turn := self._next()) is not None:
            turn.set_result(connection)
        else:
            self._idle.append(connection)

    def lose(self) -> None:
        """One that was taken does not come back."""
        if (turn := self._next()) is not None:
            turn.set_result(None)
        else:
            self._open -= 1

    def take_all(self) -> list[C]:
        """Every idle one, for good."""
        found = list(self._idle)
        self._idle.clear()
        self._open -= len(found)
        return found

    def _next(self) -> "asyncio.Future[C | None] | None":
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None
