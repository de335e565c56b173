"""Deadlines of tests, longer on a busy or slow machine: `async with asyncio.timeout(patience(5))`, `await until(…)`."""

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

QUIET_SECONDS = 0.05  # that `_work` takes on the two quiet cores that the deadlines were chosen on
MOST = 10.0
LONGEST = 100.0
_LOAD = Path("/proc/loadavg")


def patience(seconds: float) -> float:
    """So many seconds of a quiet machine, on this one as it is now; below the 120 after which pytest ends a test."""
    return min(seconds * factor(), max(seconds, LONGEST))


def factor() -> float:
    """How much longer things take than on a quiet machine: from 1 to 10."""
    return min(MOST, max(1.0, _slowness(), _load()))


@cache
def _slowness() -> float:
    """Measured once a process: the wall time of a fixed piece of work beside that on a quiet machine."""
    began = time.perf_counter()
    _work()
    return (time.perf_counter() - began) / QUIET_SECONDS


def _work() -> int:
    return sum(hash((number, number // 3)) & 1 for number in range(500_000))


def _load() -> float:
    """Processes that want to run, for each core. Read each time: a run of tests makes load itself."""
    try:
        return float(_LOAD.read_text().split()[0]) / (os.cpu_count() or 1)
    except OSError:
        return 1.0  # no Linux


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Wait until it is true, and fail after the deadline."""
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, f"it did not become true within {patience(seconds):.1f} s"
        await asyncio.sleep(0.005)
