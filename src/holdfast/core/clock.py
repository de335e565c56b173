"""Clocks that can be replaced in tests. Nothing here waits."""

import time
from typing import Protocol


class Clock(Protocol):
    """`now` is wall time in seconds since 1970, comparable between processes; `monotonic` measures durations."""

    def now(self) -> float:
        """Wall time in seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring durations."""
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
        """The time of this clock, in seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that change only by `advance`."""
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        if seconds < 0:
            raise ValueError(f"a clock only moves forward: advance() got {seconds}")
        self._now += seconds

    def step(self, seconds: float) -> None:
        """Set the clock by so much, also back, as an operator or a time server does. No time passes."""
        self._now += seconds
        self._start += seconds


SYSTEM = SystemClock()
