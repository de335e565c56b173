"""Time as an argument: what time it is, and how long something took. Nothing here waits."""

import time
from typing import Protocol


class Clock(Protocol):
    """`now` is wall time in seconds since 1970, comparable between processes; `monotonic` only measures spans."""

    def now(self) -> float:
        """Seconds since 1970, as clocks on the wall count them."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, to measure spans with."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only by `advance()` and `step()`, so that a test of a thirty-minute timeout takes no time.

    It begins at `start`, in seconds since 1970.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start = start
        self._now = start

    def now(self) -> float:
        """Seconds since 1970 as this clock has them."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that grow by `advance` only."""
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        if seconds < 0:
            raise ValueError(f"time only moves forward: {seconds}")
        self._now += seconds

    def step(self, seconds: float) -> None:
        """Set the clock by so much, also back, as an operator or a time server does. No time passes."""
        self._now += seconds
        self._start += seconds


SYSTEM = SystemClock()
