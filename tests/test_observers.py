"""Observers of the process: who gets which event, and what a sink that raises does."""

import logging
from collections.abc import Iterator

import pytest

from holdfast.events import Event, StoreClosed
from holdfast.observers import add_observer, deliver, is_observed, remove_observer, wants_each

EVENT = StoreClosed(1.0, "memory:")


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    assert not is_observed()


@pytest.mark.promise("observe.observers")
def test_observers_and_the_sink_at_hand_get_an_event_once_each() -> None:
    seen: list[Event] = []
    add_observer(sink := seen.append)
    try:
        deliver(EVENT)
        deliver(EVENT, sink)
        other: list[Event] = []
        deliver(EVENT, other.append)
    finally:
        remove_observer(sink)
    assert (len(seen), len(other)) == (3, 1)
    deliver(EVENT)
    assert len(seen) == 3


@pytest.mark.promise("observe.observers")
def test_a_sink_that_raises_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    broken, seen = True, []

    def sink(event: Event) -> None:
        if broken:
            raise ValueError("disk")
        seen.append(event)

    with caplog.at_level(logging.ERROR, "holdfast.events"):
        deliver(EVENT, sink)
        deliver(EVENT, sink)
        assert len(caplog.records) == 1
        broken = False
        deliver(EVENT, sink)
        broken = True
        deliver(EVENT, sink)
    assert (len(caplog.records), len(seen)) == (2, 1)


@pytest.mark.promise("observe.observers")
def test_what_comes_with_every_call_is_built_only_for_those_who_use_it() -> None:
    class Coarse:
        wants_each = False

        def __call__(self, event: Event) -> None: ...

    coarse, fine = Coarse(), list[Event]().append
    assert not wants_each()
    assert not wants_each(coarse)
    add_observer(coarse)
    try:
        assert is_observed()
        assert not wants_each()
        assert wants_each(fine)
        add_observer(fine)
        assert wants_each()
    finally:
        remove_observer(fine)
        remove_observer(coarse)
