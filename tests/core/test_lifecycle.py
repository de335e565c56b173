"""Every (state, event) pair of every lifecycle, written down a second time, by hand, as a grid."""

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.lifecycle import CIRCUIT, GATEWAY, GATEWAY_SESSION, LINK, IllegalTransition, Lifecycle

# One row a state, one column an event in the order of the enum; "-" is a step that must be refused.
GRIDS: list[tuple[Lifecycle[Any, Any], str]] = [
    (
        LINK,
        """
            use       resolved opened    handshake_done session_lost transport_lost auth_needed failed   close    closed  retire   abandoned
  closed    resolve   -        -         -              closed       closed         closed      -        closing  -       retired  closed
  resolve   resolve   open     -         -              resolve      resolve        resolve     closed   closing  -       retiring closed
  open      open      -        handshake -              open         open           resolve     closed   closing  -       retiring closed
  handshake handshake -        -         ready          handshake    open           resolve     closed   closing  -       retiring closed
  ready     ready     -        -         -              handshake    open           resolve     -        closing  -       retiring closed
  closing   closing   closing  closing   closing        closing      closing        closing     closing  closing  closed  retiring closed
  retiring  -         retiring retiring  retiring       retiring     retiring       retiring    retiring retiring retired retiring retired
  retired   -         -        -         -              retired      retired        retired     -        retiring -       retired  retired
        """,  # noqa: E501
    ),
    (
        GATEWAY_SESSION,
        """
                 started  deleted  expired  handed_over drained
        starting open     draining draining detached    -
        open     -        draining draining detached    -
        draining draining draining draining draining    ended
        detached detached ended    ended    detached    -
        ended    ended    ended    ended    ended       -
        """,
    ),
    (
        GATEWAY,
        """
                 leave    drain    cut
        serving  leaving  -        cutting
        leaving  leaving  draining cutting
        draining draining draining cutting
        cutting  cutting  cutting  cutting
        """,
    ),
    (
        CIRCUIT,
        """
                  succeeded failed failed_too_often rested
        closed    closed    closed open             -
        open      open      open   open             half_open
        half_open closed    open   open             -
        """,
    ),
]
_NAMES = [lifecycle.name for lifecycle, _ in GRIDS]
_FINAL = {GATEWAY_SESSION.name: {"ENDED"}, GATEWAY.name: {"CUTTING"}}


def _walk(lifecycle: Lifecycle[Any, Any], grid: str) -> list[tuple[Enum, Enum, str]]:
    head, *rows = [line.split() for line in grid.strip().splitlines()]
    states, events = type(lifecycle.initial), type(next(iter(lifecycle.steps[lifecycle.initial])))
    assert head == [event.name.lower() for event in events]
    assert [row[0] for row in rows] == [state.name.lower() for state in states]
    return [
        (state, event, target)
        for state, row in zip(states, rows, strict=True)
        for event, target in zip(events, row[1:], strict=True)
    ]


@pytest.mark.promise("core.lifecycle")
@pytest.mark.parametrize(("lifecycle", "grid"), GRIDS, ids=_NAMES)
def test_every_pair_of_state_and_event_does_what_the_grid_says(lifecycle: Lifecycle[Any, Any], grid: str) -> None:
    for state, event, target in _walk(lifecycle, grid):
        if target == "-":
            assert not lifecycle.allows(state, event)
            with pytest.raises(IllegalTransition, match=f"{event.name} is not possible in {state.name}"):
                lifecycle.next(state, event)
        else:
            assert lifecycle.allows(state, event)
            assert lifecycle.next(state, event).name.lower() == target


@pytest.mark.promise("core.lifecycle")
@pytest.mark.parametrize(("lifecycle", "grid"), GRIDS, ids=_NAMES)
def test_every_state_can_be_reached_and_left_or_is_final(lifecycle: Lifecycle[Any, Any], grid: str) -> None:
    reached = {lifecycle.initial}
    while more := {s for state in reached for s in lifecycle.steps[state].values()} - reached:
        reached |= more
    assert reached == set(type(lifecycle.initial))
    final = {state for state in reached if set(lifecycle.steps[state].values()) <= {state}}
    assert {state.name for state in final} == _FINAL.get(lifecycle.name, set())


STORIES = [
    (LINK, "use resolved opened handshake_done session_lost handshake_done", "ready"),
    (
        LINK,
        "use resolved opened handshake_done auth_needed auth_needed session_lost resolved opened handshake_done",
        "ready",
    ),
    (
        LINK,
        "use resolved opened handshake_done transport_lost session_lost transport_lost opened handshake_done",
        "ready",
    ),
    (LINK, "use resolved close opened use closed use", "resolve"),
    (LINK, "use resolved failed use resolved opened handshake_done close transport_lost closed close", "closing"),
    (LINK, "use resolved opened handshake_done retire close failed closed session_lost", "retired"),
    (LINK, "use resolved abandoned use resolved retire abandoned", "retired"),
    (GATEWAY_SESSION, "started handed_over handed_over", "detached"),
    (GATEWAY_SESSION, "deleted started drained deleted", "ended"),
    (GATEWAY_SESSION, "started handed_over started expired", "ended"),
    (GATEWAY, "leave drain cut leave", "cutting"),
    (GATEWAY, "leave cut drain cut", "cutting"),
    (GATEWAY, "cut leave drain", "cutting"),
    (CIRCUIT, "failed succeeded failed failed_too_often succeeded rested succeeded", "closed"),
    (CIRCUIT, "failed_too_often failed rested failed rested succeeded", "closed"),
]


@pytest.mark.promise("core.lifecycle")
@pytest.mark.parametrize(("lifecycle", "story", "end"), STORIES)
def test_the_stories_that_happen_are_possible(lifecycle: Lifecycle[Any, Any], story: str, end: str) -> None:
    state = lifecycle.initial
    events = type(next(iter(lifecycle.steps[state])))
    for name in story.split():
        state = lifecycle.next(state, events[name.upper()])
    assert state.name.lower() == end


@pytest.mark.promise("core.lifecycle")
@pytest.mark.parametrize("lifecycle", [lifecycle for lifecycle, _ in GRIDS], ids=_NAMES)
def test_every_event_of_a_table_is_reported_by_some_module(lifecycle: Lifecycle[Any, Any]) -> None:
    package = Path(holdfast.__file__).parent
    tables = package / "core" / "lifecycle.py"
    source = "".join(path.read_text() for path in package.rglob("*.py") if path != tables)
    events = type(next(iter(lifecycle.steps[lifecycle.initial])))
    assert [event.name for event in events if f"{events.__name__}.{event.name}" not in source] == []
