"""The thread that does a sink's slow work."""

import logging
import threading
from collections.abc import Sequence

import pytest

from holdfast.sinks.background import Background
from tests.deadlines import patience


@pytest.mark.promise("observe.observers")
def test_items_arrive_in_order_and_all_are_worked_off_at_the_end() -> None:
    seen: list[int] = []
    queue: Background[int] = Background("test", seen.extend)
    for number in range(2_000):
        assert queue.put(number)
    queue.close()
    assert seen == list(range(2_000))
    assert queue.dropped == 0


@pytest.mark.promise("observe.observers")
def test_what_does_not_fit_is_dropped_and_counted_and_nobody_waits() -> None:
    go, began = threading.Event(), threading.Event()
    seen: list[int] = []

    def work(items: Sequence[int]) -> None:
        began.set()
        assert go.wait(patience(10))
        seen.extend(items)

    queue: Background[int] = Background("test", work, most=4)
    assert queue.put(0)
    assert began.wait(patience(10))
    assert [queue.put(number) for number in range(1, 7)] == [True] * 4 + [False] * 2
    assert queue.is_crowded
    go.set()
    queue.close()
    assert (seen, queue.dropped) == ([0, 1, 2, 3, 4], 2)


@pytest.mark.promise("observe.observers")
def test_work_that_raises_is_logged_once_and_its_items_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []
    done = threading.Semaphore(0)

    def work(items: Sequence[int]) -> None:
        tried.extend(items)
        done.release()
        raise OSError("no space left")

    queue: Background[int] = Background("test", work)
    with caplog.at_level(logging.ERROR, "holdfast.events"):
        for number in range(3):
            queue.put(number)
            assert done.acquire(timeout=patience(10))
        queue.close()
    assert (tried, queue.dropped, len(caplog.records)) == ([0, 1, 2], 3, 1)
