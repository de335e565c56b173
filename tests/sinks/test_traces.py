"""The tracer provider of a gateway: when one is set, what it sends, and how it ends."""

import os
import subprocess
import sys
import threading
import time

import pytest
from opentelemetry import trace

from holdfast.core.outcome import Outcome
from holdfast.errors import ConfigError
from holdfast.links.trace import begin_client_span, begin_server_span, is_tracing
from holdfast.sinks.traces import open_traces
from tests.deadlines import patience
from tests.sinks.collector import collecting, tracing


def ran(script: str, **environment: str) -> str:
    """What a script prints in a process of its own: a provider is set once in each."""
    known = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=known)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.promise("observe.traces")
def test_it_can_be_opened_again_and_nothing_is_traced_in_between() -> None:
    for _ in range(2):
        assert not is_tracing()
        assert begin_client_span("ping", None, {}) is None
        threads = threading.active_count()
        with tracing() as seen:
            assert is_tracing()
            with trace.get_tracer("app").start_as_current_span("work"):
                pass
        assert [span.name for span in seen.spans] == ["work"]
        assert threading.active_count() == threads


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize(("sample", "expected"), [(0.0, []), (1.0, ["mine"])])
def test_a_share_is_sampled_and_a_clients_decision_is_followed(sample: float, expected: list[str]) -> None:
    with tracing(sample=sample) as seen:
        for name, flags in (("theirs", "01"), ("not theirs", "00"), ("mine", None)):
            meta = {"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"} if flags else {}
            span = begin_server_span("tools/call", name, {}, meta)
            assert span is not None
            span.end(Outcome.OK)
    assert [span.name.removeprefix("tools/call ") for span in seen.spans] == ["theirs", *expected]


@pytest.mark.promise("observe.traces")
def test_a_program_that_has_a_provider_keeps_it() -> None:
    script = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from holdfast.sinks.traces import open_traces
own, meters = TracerProvider(), MeterProvider()
trace.set_tracer_provider(own); metrics.set_meter_provider(meters)
import threading
opened = open_traces(endpoint="http://127.0.0.1:9", metrics=True)
assert trace.get_tracer_provider() is own and opened.meters is meters
assert threading.active_count() == 1
opened.close()
with trace.get_tracer("app").start_as_current_span("x") as span: assert span.is_recording()
"""
    assert ran(script) == ""


@pytest.mark.promise("observe.traces")
def test_what_is_not_said_comes_from_the_environment() -> None:
    script = """
from opentelemetry import trace
from holdfast.sinks.traces import open_traces
opened = open_traces()
for _ in range(3):
    with trace.get_tracer("app").start_as_current_span("x"): pass
opened.close()
opened = open_traces(sample=0.0)
with trace.get_tracer("app").start_as_current_span("y"): pass
opened.close()
"""
    with collecting() as (seen, url):
        always = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}
        assert ran(script, **always, OTEL_SERVICE_NAME="mine", OTEL_TRACES_SAMPLER="always_on") == ""
        assert ran(script, **always, OTEL_TRACES_SAMPLER="always_off", SECRET="environment-value") == ""
        assert ran(script, **always, OTEL_SDK_DISABLED="true") == ""
    assert [span.name for span in seen.spans] == ["x"] * 3
    assert seen.resources[0]["service.name"] == "mine"
    assert seen.resources[0]["deployment.environment"] == "test"
    assert not seen.says("environment-value")


@pytest.mark.promise("observe.traces")
def test_without_the_extra_the_error_says_what_to_install() -> None:
    script = """
import sys
sys.modules["opentelemetry.sdk.trace"] = None
from holdfast.errors import ConfigError
try:
    import holdfast.sinks.traces
except ConfigError as error:
    print(error)
"""
    assert "pip install 'holdfast[otel]'" in ran(script)
    with pytest.raises(ConfigError, match="endpoint"):
        open_traces(endpoint="127.0.0.1:4318")


@pytest.mark.promise("observe.traces")
def test_closing_is_bounded_where_the_collector_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.traces.CLOSE_SECONDS", 0.2)
    with collecting(hangs=True) as (seen, url):
        opened = open_traces(endpoint=url)
        with trace.get_tracer("app").start_as_current_span("x"):
            pass
        began = time.monotonic()
        opened.close()
        assert time.monotonic() - began < patience(2)  # an attempt to send has 5 s
        assert seen.asked.wait(patience(5))


@pytest.mark.promise("observe.traces")
def test_a_forked_process_sends_its_own_spans_only() -> None:
    script = """
import os, sys
from opentelemetry import trace
from holdfast.sinks.traces import open_traces
opened = open_traces(endpoint=sys.argv[1] if len(sys.argv) > 1 else os.environ["WHERE"])
with trace.get_tracer("app").start_as_current_span("parent"): pass
child = os.fork()
with trace.get_tracer("app").start_as_current_span("child" if child == 0 else "after"): pass
opened.close()
if child: assert os.waitpid(child, 0)[1] == 0
"""
    with collecting() as (seen, url):
        ran(script, WHERE=url)
    assert sorted(span.name for span in seen.spans) == ["after", "child", "parent"]


@pytest.mark.promise("observe.traces")
def test_spans_that_do_not_fit_are_dropped_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.sinks.traces.CLOSE_SECONDS", 0.2)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    with collecting(hangs=True) as (seen, url):
        opened = open_traces(endpoint=url)
        for _ in range(10):
            trace.get_tracer("app").start_span("x").end()
        assert seen.asked.wait(patience(10))  # ten are on their way, and ninety more come
        for _ in range(90):
            trace.get_tracer("app").start_span("x").end()
        opened.close()
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "dropped" in text] == [
        "spans are dropped: 20 wait to be sent, and are not sent fast enough"
    ]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
