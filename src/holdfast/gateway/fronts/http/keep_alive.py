"""Keep-alive of calls whose answer takes long: clients with a read timeout, and proxies, close what is silent.

One timer serves all calls of a process. A call that is answered in time costs an entry of a table and no timer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Silent(Protocol):
    """An answer that has not come yet."""

    def keep_alive(self) -> None:
        """Send the client a sign that its call goes on."""
        ...


class KeepAlive:
    """The calls under way, in the order in which each is due for a sign of life. `seconds` lie between two signs."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._due: OrderedDict[Silent, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, call: Silent) -> None:
        """The call is silent from now on."""
        loop = asyncio.get_running_loop()
        due = self._due[call] = loop.time() + self._seconds()
        if self._timer is None:
            self._timer = loop.call_at(due, self._turn)

    def remove(self, call: Silent) -> None:
        """The call is answered, or its client is gone."""
        self._due.pop(call, None)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        now, again, self._timer = loop.time(), loop.time() + self._seconds(), None
        while self._due:
            call, due = next(iter(self._due.items()))
            if due > now:
                self._timer = loop.call_at(due, self._turn)
                return
            self._due[call] = again
            self._due.move_to_end(call)
            call.keep_alive()

    def close(self) -> None:
        """Send nothing any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
