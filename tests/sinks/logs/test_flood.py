"""The bound on lines of one kind."""

import threading

import pytest

from holdfast.sinks.logs.flood import Flood
from tests.deadlines import patience


@pytest.mark.promise("observe.logs-bounded")
def test_the_count_comes_by_itself_when_the_time_is_over() -> None:
    summed: list[tuple[str, int]] = []
    done = threading.Event()

    def told(kind: str, number: int) -> None:
        summed.append((kind, number))
        done.set()

    flood = Flood(told, seconds=0.3)
    let = [flood.lets("a", 3) for _ in range(1_000)]
    assert flood.lets("b", 3)
    assert sum(let[:3]) == 3
    assert done.wait(patience(10))
    flood.close()
    assert sum(number for _, number in summed) == let.count(False)
    assert {kind for kind, _ in summed} == {"a"}


@pytest.mark.promise("observe.logs-bounded")
def test_closing_sums_up_what_was_left_out_and_leaves_no_thread() -> None:
    before = threading.active_count()
    summed: list[tuple[str, int]] = []
    flood = Flood(lambda kind, number: summed.append((kind, number)), seconds=3_600)
    assert [flood.lets("a", 1) for _ in range(3)] == [True, False, False]
    flood.close()
    assert summed == [("a", 2)]
    assert threading.active_count() == before
