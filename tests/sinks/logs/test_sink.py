"""What is logged of events: changes, not calls; few lines of one kind."""

import logging
from collections.abc import Iterator

import pytest

from holdfast.events import (
    CallerRefused,
    ChildEnded,
    CircuitChanged,
    GatewayStarted,
    GatewayStopped,
    HandshakeDone,
    LinkFailed,
    ListenerFailed,
)
from holdfast.sinks.logs.sink import WARNINGS, LogSink

UP = HandshakeDone(1.0, "s", 1, "2025", "2025-11-25", "0123456789", False, "said")
DOWN = LinkFailed(1.0, "s", "connect", "no route")


@pytest.fixture
def sink() -> Iterator[LogSink]:
    made = LogSink()
    yield made
    made.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "holdfast")
    return caplog


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.promise("observe.logs-changes")
def test_a_server_that_fails_is_logged_when_it_begins_and_when_it_is_over(
    sink: LogSink, logged: pytest.LogCaptureFixture
) -> None:
    for event in (*[DOWN, ChildEnded(1.0, "s", 7, 3, False)] * 50, UP, UP, DOWN):
        sink(event)
    assert shown(logged) == [
        ("WARNING", "s can't be reached: no route"),
        ("WARNING", "s is ready: 2025, version 2025-11-25, session 0123…; it can be reached again"),
        ("INFO", "s is ready: 2025, version 2025-11-25, session 0123…"),
        ("WARNING", "s can't be reached: no route"),
    ]


@pytest.mark.promise("observe.logs-changes")
def test_a_circuit_that_flaps_is_one_outage_and_lost_notices_are_one(
    sink: LogSink, logged: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for state in ("open", "half open", "open", "half open", "closed"):
            sink(CircuitChanged(1.0, "s", state))
        sink(ListenerFailed(1.0, "postgresql://db", "gone"))
    assert [text for level, text in shown(logged) if level == "WARNING"] == [
        "the circuit of s is open",
        "notices of postgresql://db can't be read, and are tried again: gone",
        "the circuit of s is open",
    ]


@pytest.mark.promise("observe.logs-changes")
def test_a_gateway_says_itself_why_a_backend_is_down(sink: LogSink, logged: pytest.LogCaptureFixture) -> None:
    sink(GatewayStarted(1.0, "p", "http://127.0.0.1/mcp", "1"))
    for event in (DOWN, UP, CircuitChanged(1.0, "s", "open")):
        sink(event)
    sink(GatewayStopped(1.0, "p", 1.0))
    assert {level for level, _ in shown(logged)} == {"INFO"}
    assert [text for _, text in shown(logged)][1:-1] == ["the circuit of s is open"]
    sink(DOWN)
    assert [level for level, text in shown(logged) if "can't be reached" in text] == ["WARNING"]


@pytest.mark.promise("observe.logs-bounded")
def test_a_caller_that_is_refused_without_end_makes_a_few_lines_and_a_count(
    sink: LogSink, logged: pytest.LogCaptureFixture
) -> None:
    for number in range(5_000):
        sink(CallerRefused(1.0, 401, f"wrong token {number}", None, "10.0.0.1"))
    sink(CallerRefused(1.0, 404, "no such session", "alice", "10.0.0.1"))
    assert len(logged.records) == WARNINGS + 1
    assert shown(logged)[-1] == ("INFO", "refused alice at 10.0.0.1: HTTP 404, no such session")
    sink.close()
    assert shown(logged)[-1] == (
        "WARNING", f"{5_000 - WARNINGS} more of these were left out in the last seconds: CallerRefused, HTTP 401"
    )  # fmt: skip


@pytest.mark.promise("observe.logs")
def test_requests_are_wanted_only_where_they_are_lines(sink: LogSink, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    assert not sink.wants_each
    caplog.set_level(logging.INFO, "holdfast")
    assert sink.wants_each
