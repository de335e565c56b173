"""What `deploy/` names exists: every metric and label in the catalogue, every anchor in the docs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.core.lifecycle import CircuitState
from holdfast.core.outcome import Outcome
from holdfast.sinks.metrics.catalogue import METRICS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OF_PROMETHEUS = {"job", "instance"}
FUNCTIONS = {
    "absent", "bool", "by", "histogram_quantile", "increase", "max", "min", "rate", "sum", "topk",
}  # fmt: skip
VALUES = {
    "outcome": {each.value for each in Outcome},
    "state": {each.value for each in CircuitState},
    **{label: {"true", "false"} for label in ("failed", "taken_over", "kept_state", "expected", "adopted", "taken")},
}


def labels_of(name: str) -> set[str] | None:
    """The labels of a series in Prometheus; None if there is no such series."""
    if name == "up":
        return OF_PROMETHEUS
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    if base != name and base in METRICS and METRICS[base].kind == "histogram":
        return {*METRICS[base].labels, *OF_PROMETHEUS, *(["le"] if name.endswith("_bucket") else [])}
    if name in METRICS and METRICS[name].kind != "histogram":
        return {*METRICS[name].labels, *OF_PROMETHEUS}
    return None


def checked(expression: str) -> set[str]:
    """Check an expression, and return the labels that its result may have."""
    selectors = re.findall(r"\b([a-zA-Z_]\w*)\{([^}]*)\}", expression)
    for name, matchers in selectors:
        known = labels_of(name)
        assert known is not None, f"there is no series {name}: {expression}"
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in known, f"{name} has no label {label}: {expression}"
            if operator in ("=", "!=") and value and label in VALUES:
                assert value in VALUES[label], f"{label} is never {value}: {expression}"
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expression)
    grouped = [set(re.findall(r"\w+", labels)) for labels in re.findall(r"\bby \(([^)]*)\)", bare)]
    names = set(re.findall(r"\b[a-zA-Z_]\w*", re.sub(r"\bby \([^)]*\)", "", bare))) - FUNCTIONS
    assert names, expression
    series: list[set[str]] = []
    for name in names:
        known = labels_of(name)
        assert known is not None, f"there is no series {name}: {expression}"
        series.append(known)
    for group in grouped:
        for known in series:
            assert group <= known, f"{group - known} are no labels of {names}: {expression}"
    if "histogram_quantile" in expression:
        assert all(name.endswith("_bucket") for name in names)
        assert all("le" in group for group in grouped)
        return set.union(*grouped) - {"le"}
    if grouped:
        return set.union(*grouped)
    return set() if "sum(" in expression or "absent(" in expression else set.union(*series)


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"]:
        yield from group["rules"]


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


@pytest.mark.promise("observe.deploy")
@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_what_exists_and_what_to_do(rule: dict[str, Any]) -> None:
    labels = checked(rule["expr"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert annotations["summary"].endswith(".")
    for text in annotations.values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    place, _, anchor = annotations["runbook"].partition("#")
    assert f'<a id="{anchor}"></a>' in (ROOT / place).read_text()


@pytest.mark.promise("observe.deploy")
def test_alerts_have_names_of_their_own_and_every_anchor_an_alert() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 12
    anchors = set(re.findall(r'<a id="([^"]+)"></a>', (ROOT / "docs" / "observability.md").read_text()))
    assert anchors == {rule["annotations"]["runbook"].partition("#")[2] for rule in rules()}


@pytest.mark.promise("observe.deploy")
def test_the_dashboard_shows_metrics_that_exist() -> None:
    board = dashboard()
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) >= 20
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places: set[tuple[int, int]] = set()
    shown: set[str] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        places |= cells
        for target in panel["targets"]:
            labels = checked(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
            shown |= {name for name in METRICS if name in target["expr"]}
    hidden = {name for name in METRICS if name not in shown}
    assert hidden == {
        "mcp_client_session_duration_seconds",  # the same as holdfast_backend_lifetime_seconds, without the backend
        "holdfast_children_started_total",
        "holdfast_configurations_read_total",
        "holdfast_run_seconds",
        "holdfast_companions_converged_total",
    }
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.findall(r"\w+", variable["query"])[1:]
            assert label in (labels_of(name) or ())


@pytest.mark.promise("observe.deploy")
def test_what_is_wrong_is_found() -> None:
    for wrong in (
        "holdfast_session",
        "sum(rate(holdfast_store_seconds[5m]))",
        "sum by (tool) (holdfast_sessions)",
        'holdfast_sessions{tool="x"}',
        'mcp_server_operation_duration_seconds_count{outcome="fine"}',
        "histogram_quantile(0.9, sum by (era) (rate(holdfast_store_seconds_bucket[5m])))",
        "holdfast_sessions_count",
    ):
        with pytest.raises(AssertionError):
            checked(wrong)


@pytest.mark.promise("observe.deploy")
def test_prometheus_reads_the_rules_and_the_page() -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert [(DEPLOY / name).exists() for name in settings["rule_files"]] == [True]
    [scrape] = settings["scrape_configs"]
    assert (scrape["job_name"], scrape["metrics_path"]) == ("holdfast", "/metrics")
    assert all("holdfast" in rule["expr"] or "mcp_" in rule["expr"] for rule in rules())


@pytest.mark.promise("observe.deploy")
def test_the_collectors_pipelines_use_what_it_defines() -> None:
    settings = yaml.safe_load((DEPLOY / "otel-collector.yaml").read_text())
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in settings["service"]["pipelines"].values():
        for part, names in pipeline.items():
            used[part] |= set(names)
    assert used == {part: set(settings[part]) for part in used}
