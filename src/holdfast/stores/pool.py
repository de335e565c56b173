"""A pool of connections: up to a number of them, the last used first, waiters in order.

It does not know what a connection is; the caller says whether one that it took can be used again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from holdfast.errors import LeaseClosed, StoreDown

C = TypeVar("C")

LOOKS = 20  # a timeout: how often overdue exchanges are looked for, so they end at most a twentieth late


class ConnectionPool(Generic[C]):
    """At most `size` connections at a time. Taking one that is idle does not wait, not even for the event loop."""

    def __init__(
        self,
        url: str,
        size: int,
        timeout: float,
        connect: Callable[[], Awaitable[C]],
        cut: Callable[[C], None],
    ) -> None:
        self._url = url
        self._size = size
        self._timeout = timeout
        self._connect = connect
        self._cut = cut
        self._deadlines: dict[C, float] = {}
        self._watchman: asyncio.TimerHandle | None = None
        self._closed = False
        self._returned = asyncio.Event()
        self._idle: deque[C] = deque()
        self._open = 0
        self._waiting: deque[asyncio.Future[C | None]] = deque()

    def take_idle(self) -> C | None:
        return self._idle.pop() if self._idle else None

    async def take(self) -> C:
        """An idle one, or a new one, or the next that comes free; `StoreDown` if none does in time."""
        if self._closed:
            raise self._refusal()
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
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                handed = turn.result()  # our turn came too late; the next waiter takes it
                self.lose() if handed is None else self.give_back(handed)
            if not isinstance(error, TimeoutError):
                raise
            raise StoreDown(
                f"{self._url} gave no connection within {self._timeout:g} s; {self._size} may be in use at once",
                store=self._url,
                remedy="raise ?connections= or ?timeout= if the server has capacity",
            ) from None

    def give_back(self, connection: C) -> None:
        if (turn := self._next()) is not None:
            turn.set_result(connection)
        else:
            self._idle.append(connection)
        self._returned.set()

    def lose(self) -> None:
        """A connection that was taken is lost and does not come back."""
        if (turn := self._next()) is not None:
            turn.set_result(None)
        else:
            self._open -= 1
        self._returned.set()

    # A timer for each exchange would cost more than the exchange; one look around for all of them costs nothing.

    def begin(self, connection: C, seconds: float) -> None:
        """Bound an exchange: after so many seconds the connection is cut, and the exchange fails."""
        loop = asyncio.get_running_loop()
        self._deadlines[connection] = loop.time() + seconds
        if self._watchman is None:
            self._watchman = loop.call_later(self._timeout / LOOKS, self._look, loop)

    def end(self, connection: C) -> bool:
        """End an exchange. False if it was cut for taking too long."""
        return self._deadlines.pop(connection, None) is not None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [c for c, deadline in self._deadlines.items() if deadline < now]:
            del self._deadlines[connection]
            self._cut(connection)
        self._watchman = loop.call_later(self._timeout / LOOKS, self._look, loop) if self._deadlines else None

    def open(self) -> None:
        self._closed = False

    async def close(self, seconds: float) -> list[C]:
        """Refuse new callers, wait for the connections in use, no longer than this, and return all of them."""
        self._closed = True
        while (turn := self._next()) is not None:
            turn.set_exception(self._refusal())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._open > len(self._idle) and (left := deadline - loop.time()) > 0:
            self._returned.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._returned.wait()
        if self._watchman is not None:
            self._watchman.cancel()
            self._watchman = None
        found = list(self._idle)
        self._idle.clear()
        self._open -= len(found)
        return found

    def _refusal(self) -> LeaseClosed:
        return LeaseClosed(f"the store {self._url} was closed", store=self._url)

    def _next(self) -> "asyncio.Future[C | None] | None":
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None
