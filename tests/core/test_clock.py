"""Clocks: the machine's, and one that moves only when told."""

import time

import pytest

from holdfast.core.clock import SYSTEM
from holdfast.stores import ManualClock


@pytest.mark.promise("core.clock")
def test_a_manual_clock_moves_only_when_told_and_only_forward() -> None:
    clock = ManualClock(start=100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


@pytest.mark.promise("core.clock")
def test_the_system_clock_is_the_machines() -> None:
    assert abs(SYSTEM.now() - time.time()) < 5
    first = SYSTEM.monotonic()
    assert SYSTEM.monotonic() >= first
