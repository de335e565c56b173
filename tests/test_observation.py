"""`holdfast.observe()` in a program: lines, trail and metrics of everything, and no harm to anything."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.errors import UsageError
from holdfast.events import Event
from holdfast.observers import is_observed
from holdfast.sinks.audit.verify import verify
from holdfast.testing import FaultServer
from tests.deadlines import patience
from tests.sinks.collector import collecting

SECRET = "hunter2-never-written"


async def replaced_once(http: FaultServer, calls: int = 3) -> None:
    """A run with some calls, in the middle of which the server loses its session."""
    async with holdfast.run():
        counter = holdfast.Server("counter", url=http.url, headers={"x-api-key": SECRET})
        for _ in range(calls):
            await counter.call_tool("count", {"password": SECRET})
        await http.restart()
        await counter.list_tools()
        with pytest.raises(holdfast.SessionReplaced):
            await counter.call_tool("count")
    await holdfast.close_kept_links()


def page(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=patience(10)) as answer:
        text = answer.read().decode()
    return {
        sample.name + sample.labels.get("outcome", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("mcp_method_name", "tools/call") == "tools/call"
    }


@pytest.mark.anyio
@pytest.mark.promise("observe.programs")
async def test_lines_trail_and_metrics_of_one_run_agree(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trail = tmp_path / "audit.jsonl"
    events: list[Event] = []
    async with FaultServer() as http:
        with holdfast.observe(logs="json", audit=trail, metrics=0, on_event=events.append) as observed:
            await replaced_once(http)
            assert observed.metrics_url is not None
            assert str(observed.metrics_port) in observed.metrics_url
            metrics = await asyncio.to_thread(page, observed.metrics_url)
        ids = list(http.sessions.sessions)
    assert not is_observed()
    assert observed.metrics_port == int(observed.metrics_url.split(":")[2].split("/")[0])
    written = capfd.readouterr().err
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.splitlines()]
    kinds = [line.get("event") for line in lines]
    assert {"RunBegan", "HandshakeDone", "LinkSessionReplaced", "RunEnded"} <= set(kinds)
    (lost,) = [line for line in lines if line.get("event") == "LinkSessionReplaced"]
    assert (lost["level"], lost["server"], lost["kept_state"]) == ("warning", "counter", True)
    entries = [json.loads(line) for line in trail.read_bytes().splitlines()]
    assert verify((str(n), line) for n, line in enumerate(trail.read_bytes().splitlines())).holds
    calls = [entry["outcome"] for entry in entries if entry["type"] == "call"]
    assert calls == [event.outcome for event in events if isinstance(event, holdfast.events.RequestSent)
                     and event.method == "tools/call"]  # fmt: skip
    assert calls.count("ok") == metrics["mcp_client_operation_duration_seconds_countok"] == 3
    assert {"run_began", "run_ended", "server_session_replaced"} <= {entry["type"] for entry in entries}
    for secret in (
        SECRET,
        *ids,
        *(event.session for event in events if isinstance(event, holdfast.events.HandshakeDone)),
    ):
        assert secret is not None
        assert secret not in written + trail.read_text()


@pytest.mark.anyio
@pytest.mark.promise("observe.programs")
async def test_a_programs_own_handlers_get_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    observed = holdfast.observe(logs=True)
    try:
        async with FaultServer() as http:
            await replaced_once(http)
    finally:
        observed.close()
    observed.close()
    shown = [(record.name, record.levelname) for record in caplog.records if hasattr(record, "event")]
    assert ("holdfast.client", "INFO") in shown
    assert ("holdfast.links", "WARNING") in shown


@pytest.mark.anyio
@pytest.mark.promise("observe.programs")
async def test_sinks_that_block_or_raise_delay_and_fail_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def blocked(self: object, data: bytes) -> None:
        assert go.wait(patience(60))

    def raises(event: Event) -> None:
        raise RuntimeError("a sink of the program")

    monkeypatch.setattr("holdfast.sinks.logs.output.LogOutput._write", blocked)
    monkeypatch.setattr("holdfast.sinks.audit.files.AuditFile.write", blocked)
    async with FaultServer() as http:
        observed = holdfast.observe(logs="json", level="debug", audit=tmp_path / "a", on_event=raises)
        try:
            async with asyncio.timeout(patience(20)), holdfast.run():
                counter = holdfast.Server("counter", url=http.url)
                answers = await asyncio.gather(*(counter.call_tool("count") for _ in range(300)))
            assert len(answers) == 300
            assert not any(answer.is_error for answer in answers)
            await holdfast.close_kept_links()
        finally:
            go.set()
            await asyncio.to_thread(observed.close)


@pytest.mark.anyio
@pytest.mark.promise("observe.logs")
async def test_each_line_in_a_span_names_its_trace(capfd: pytest.CaptureFixture[str]) -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))
    with holdfast.observe(logs="json"):
        async with FaultServer() as http:
            with trace.use_span(span):
                await replaced_once(http)
            await replaced_once(http)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    ids = [line.get("trace_id") for line in lines if line.get("event") in ("RunBegan", "RunEnded")]
    assert ids == [f"{0xABC:032x}", f"{0xABC:032x}", None, None]


@pytest.mark.anyio
@pytest.mark.promise("observe.programs")
async def test_spans_of_a_program_reach_its_collector() -> None:
    with collecting() as (collector, url):
        async with FaultServer() as http:
            with holdfast.observe(traces=url):
                async with holdfast.run():
                    await holdfast.Server("counter", url=http.url).call_tool("count", {"text": SECRET})
        assert collector.one("CLIENT", "tools/call count").attributes["gen_ai.tool.name"] == "count"
        assert not collector.says(SECRET)


@pytest.mark.promise("observe.programs")
def test_what_can_not_be_observed_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before, handlers = threading.active_count(), list(logging.getLogger("holdfast").handlers)
    with pytest.raises(UsageError, match="nothing to do"):
        holdfast.observe()
    with holdfast.observe(metrics=0) as taken:
        assert taken.metrics_port
        with pytest.raises(UsageError, match=str(taken.metrics_port)):
            holdfast.observe(logs="json", metrics=taken.metrics_port)
    with holdfast.observe(logs=True), pytest.raises(UsageError, match="logs already"):
        holdfast.observe(logs="text", audit=tmp_path / "audit")
    assert not is_observed()
    assert (threading.active_count(), logging.getLogger("holdfast").handlers) == (before, handlers)


@pytest.mark.promise("observe.programs")
def test_a_program_that_never_closes_it_loses_no_line(tmp_path: Path) -> None:
    code = (
        "import asyncio, holdfast\n"
        "holdfast.observe(logs='json', audit='audit.jsonl')\n"
        "async def main():\n"
        "    async with holdfast.run():\n"
        "        pass\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=patience(30)
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["RunBegan", "RunEnded"]
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    report = verify((str(number), line) for number, line in enumerate(lines))
    assert [chain.ended for chain in report.chains.values()] == [True]


@pytest.mark.anyio
@pytest.mark.promise("observe.logs-library")
async def test_a_library_says_at_debug_what_it_does_without_any_sink(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    assert not is_observed()
    async with FaultServer() as http:
        await replaced_once(http)
        ids = list(http.sessions.sessions)
    shown = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    for name in ("RunBegan", "HandshakeDone", "RequestSent", "LinkSessionReplaced", "LinkClosed", "RunEnded"):
        assert any(text.startswith(f"{name} ") for text in shown), name
    for secret in (SECRET, *ids):
        assert secret not in caplog.text


@pytest.mark.promise("observe.logs-library")
def test_a_program_without_logging_sees_nothing_of_the_library() -> None:
    code = (
        "import logging, holdfast.links\n"
        "logging.getLogger('holdfast.links').warning('something')\n"
        "print([type(each).__name__ for each in logging.getLogger('holdfast').handlers])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(30))
    assert (done.stdout, done.stderr) == ("['NullHandler']\n", "")
