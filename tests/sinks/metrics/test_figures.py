"""Figures from events: counts by outcome, labels of few values, Prometheus' text read by its own parser."""

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.outcome import Outcome
from holdfast.events import (
    BackendStarted,
    CallReplayed,
    CompanionStepped,
    Event,
    RequestSent,
    RequestServed,
    RunBegan,
    RunEnded,
    StoreAnswered,
)
from holdfast.sinks.metrics.catalogue import METRICS
from holdfast.sinks.metrics.figures import Figures
from holdfast.sinks.metrics.prometheus import PrometheusMeter

SESSION = "3f2a9b1c77e04d55a1b2c3d4e5f60718"


def served(tool: str = "shop__add", outcome: str = "ok", method: str = "tools/call", seconds: float = 0.03) -> Event:
    return RequestServed(
        1.0, method, tool, "shop", seconds, outcome, None, None, SESSION, "alice", "agent 1", 1, "2025", "2025-11-25",
        "tcp", None, {"article": "tea"},
    )  # fmt: skip


def sent(outcome: str = "ok") -> Event:
    return RequestSent(
        1.0, "shop", "tools/call", "add", 0.02, outcome, None, None, 1, SESSION, "2025", "2025-11-25", "tcp", None
    )


def read(meter: PrometheusMeter) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(meter.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.promise("observe.metrics")
def test_counts_add_up_by_outcome() -> None:
    meter = PrometheusMeter()
    figures = Figures((meter,))
    outcomes = [random.choice(list(Outcome)).value for _ in range(500)]
    for outcome in outcomes:
        figures(served(outcome=outcome))
        figures(sent(outcome=outcome))
    found = read(meter)
    for name in ("mcp_server_operation_duration_seconds_count", "mcp_client_operation_duration_seconds_count"):
        counts = {dict(labels)["outcome"]: int(value) for labels, value in found[name].items()}
        assert counts == {outcome: outcomes.count(outcome) for outcome in set(outcomes)}
    assert sum(found["holdfast_unknown_outcomes_total"].values()) == outcomes.count("unknown")


@pytest.mark.promise("observe.metrics")
def test_labels_have_few_values_and_name_no_session_caller_or_value() -> None:
    meter = PrometheusMeter()
    figures = Figures((meter,), tools=3)
    for number in range(1_000):
        figures(served(tool=f"tool {number}"))
        figures(served(tool="x", method=f"vendor/{number}"))
    found = read(meter)["mcp_server_operation_duration_seconds_count"]
    tools = {dict(labels)["gen_ai_tool_name"] for labels in found}
    assert tools == {"tool 0", "tool 1", "tool 2", "other", ""}
    assert len(found) < 220
    text = meter.text().decode()
    for secret in (SESSION, SESSION[:4], "alice", "tea"):
        assert secret not in text


@pytest.mark.promise("observe.metrics")
def test_a_hostile_name_stays_one_label() -> None:
    meter = PrometheusMeter()
    Figures((meter,))(served(tool='a"} 1\nholdfast_sessions{era="2025"} 99\n\\'))
    found = read(meter)
    assert "holdfast_sessions" not in found or not any(value == 99 for value in found["holdfast_sessions"].values())
    [labels] = found["mcp_server_operation_duration_seconds_count"]
    assert dict(labels)["gen_ai_tool_name"].startswith('a"} 1\n')


@pytest.mark.promise("observe.metrics")
def test_gauges_go_up_and_down_and_those_that_are_read_go_to_nought() -> None:
    meter = PrometheusMeter()
    figures = Figures((meter,))
    figures(RunBegan(1.0, "r", "alice", False))
    figures(RunBegan(1.0, "s", "alice", False))
    figures(RunEnded(2.0, "r", "alice", 1.0, True))
    assert list(read(meter)["holdfast_runs"].values()) == [1.0]
    meter.text([("holdfast_backend_up", ("shop",), 1.0)])
    assert b'holdfast_backend_up{backend="shop"} 0.0' in meter.text([])


@pytest.mark.promise("observe.metrics")
def test_every_metric_has_its_labels_and_every_kind_of_figure_is_kept() -> None:
    meter = PrometheusMeter()
    figures = Figures((meter,))
    for event in (
        BackendStarted(1.0, "shop", None, 0.1, "2025", True),
        CallReplayed(1.0, "shop", "tools/list", 2, "not sent"),
        CompanionStepped(1.0, "writer", "h", "draft", "empty", "drafted", 1, 0.1, True),
        StoreAnswered(1.0, "memory:", "get", 0.001, None),
    ):
        figures(event)
    found = read(meter)
    assert found["holdfast_backend_starts_total"] == {(("adopted", "true"), ("backend", "shop")): 1.0}
    assert found["holdfast_companions_converged_total"] == {(("kind", "writer"),): 1.0}
    assert found["holdfast_replays_total"] == {(("server", "shop"), ("verdict", "not sent")): 1.0}
    assert (("failed", "false"), ("operation", "get")) in found["holdfast_store_seconds_count"]
    assert all(metric.buckets for metric in METRICS.values() if metric.kind == "histogram")


@pytest.mark.promise("observe.dropped")
def test_what_sinks_dropped_is_counted_once() -> None:
    meter = PrometheusMeter()
    figures = Figures((meter,))
    for audit, logs in ((0, 3), (2, 3), (2, 3), (7, 4)):
        figures.dropped("audit", audit)
        figures.dropped("logs", logs)
    assert read(meter)["holdfast_events_dropped_total"] == {(("sink", "audit"),): 7.0, (("sink", "logs"),): 4.0}
