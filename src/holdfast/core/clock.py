"""Time as an argument: what time it is, and how long something took. Nothing here waits."""

import time
from typing import Protocol


class Clock(Protocol):
    """`now` is wall time in seconds since 1970, comparable between processes; `monotonic` only measures spans."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only by `advance()`, so that a test of a thirty-minute timeout takes no time."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start = start
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time only moves forward: {seconds}")
        self._now += seconds


SYSTEM = SystemClock()
