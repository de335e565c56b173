"""Spans for a collector, by OTLP over HTTP: a tracer provider with a batching exporter, where the program has none.

A provider can be set once in a process, so ours stays set when a gateway is closed: it is switched off until another
one is opened. What belongs to one opening, the exporter and the sampler, is replaced. Spans are sent by a thread of
the SDK; a call only queues them, and what does not fit is dropped. Importing this raises `ConfigError` without the
extra `otel`.
"""

import logging
import os
import platform
import threading
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry import metrics, trace

from holdfast.errors import ConfigError
from holdfast.version import __version__

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import (
        ALWAYS_OFF,
        ParentBased,
        Sampler,
        SamplingResult,
        TraceIdRatioBased,
    )
except ImportError as error:
    raise ConfigError(
        "traces need OpenTelemetry's SDK and its exporter, which are not installed",
        remedy="pip install 'holdfast[otel]', or leave observe.traces out",
    ) from error

log = logging.getLogger("holdfast.events")

QUEUED = 4096  # spans: some megabytes
SECONDS = 5.0  # for one request to the collector, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
CLOSE_SECONDS = 5.0  # to send what is left at the end
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.sdk._shared_internal",
)
"""Loggers that report each failed attempt to send."""


class Failures(logging.Filter):
    """Logs the first failure to send, and no other one until sending has worked again."""

    def __init__(self) -> None:
        super().__init__()
        self._failing = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and not self._failing:
            self._failing = True
            text = record.getMessage()[:300]
            log.warning("traces or metrics can't be sent: %s; it is logged again once it has worked", text)
        return False

    def over(self) -> None:
        """Sending has worked."""
        self._failing = False

    def watch(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def unwatch(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)


class Exporter(SpanExporter):
    """Sends spans, until it is closed and its time is over. `taken` is how many it was given to send."""

    taken = 0

    def __init__(self, inner: OTLPSpanExporter, failures: Failures) -> None:
        self._inner = inner
        self._failures = failures
        self._until: float | None = None
        self._closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        if self._until is not None and time.monotonic() > self._until:
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._failures.over()
        return result

    def closes_in(self, seconds: float) -> None:
        """Send nothing any more once this time is over."""
        self._until = time.monotonic() + seconds

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.shutdown()


class Queue(BatchSpanProcessor):
    """The SDK's queue, which logs each span that does not fit, in the call that it is of: they are left out before."""

    def __init__(self, exporter: Exporter) -> None:
        self._most = _number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUED)
        super().__init__(exporter, max_queue_size=self._most)
        self._exporter = exporter
        self._queued = 0
        self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        if not (span.context and span.context.trace_flags.sampled):
            return
        if self._queued - self._exporter.taken >= self._most:
            if not self.dropped:
                log.warning("spans are dropped: %d wait to be sent, and are not sent fast enough", self._most)
            self.dropped += 1
            return
        self._queued += 1
        super().on_end(span)


class Processor(SpanProcessor):
    """Hands spans over to the processor that is open."""

    inner: SpanProcessor | None = None

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Nothing is done with spans that are not over."""

    def on_end(self, span: ReadableSpan) -> None:
        if self.inner is not None:
            self.inner.on_end(span)


class SwitchedSampler(Sampler):
    """Decides as the sampler that is open."""

    inner: Sampler = ALWAYS_OFF

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        return self.inner.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return self.inner.get_description()


class Provider(TracerProvider):
    """The tracer provider of this process, set with the first opening."""

    def __init__(self) -> None:
        self.switched = SwitchedSampler()
        self.processor = Processor()
        super().__init__(self.switched, resource(), shutdown_on_exit=False)
        self.add_span_processor(self.processor)

    @property
    def is_closed(self) -> bool:
        """Is no gateway open? Then there are no spans."""
        return self.processor.inner is None

    @property
    def decides_for_traces(self) -> bool:
        """Are all spans of a trace sampled, or none?"""
        return isinstance(self.switched.inner, ParentBased)


class Traces:
    """What was opened, to be closed. `meters` is the provider for metrics that go to the same place."""

    def __init__(self) -> None:
        self.meters: metrics.MeterProvider | None = None
        self._provider: Provider | None = None
        self._exporter: Exporter | None = None
        self._own_meters: MeterProvider | None = None
        self._failures = Failures()

    def open_spans(self, provider: Provider, endpoint: str | None, sample: float | None) -> None:
        """Have the spans of this process sent."""
        self._failures.watch()
        self._provider = provider
        inner = OTLPSpanExporter(endpoint=_url(endpoint, "traces"), timeout=_seconds("TRACES"))
        exporter = self._exporter = Exporter(inner, self._failures)
        provider.switched.inner = _sampler(sample)
        provider.processor.inner = Queue(exporter)

    def open_meters(self, endpoint: str | None) -> None:
        """Have metrics sent, by the provider of this process if there is one."""
        known = metrics.get_meter_provider()
        self.meters = known
        if isinstance(known, MeterProvider) and known is not _Process.meters:
            return
        self._failures.watch()
        exporter = OTLPMetricExporter(endpoint=_url(endpoint, "metrics"), timeout=_seconds("METRICS"))
        reader = PeriodicExportingMetricReader(exporter)
        self.meters = self._own_meters = MeterProvider([reader], resource(), shutdown_on_exit=False)
        if _Process.meters is None:
            _Process.meters = self._own_meters
            metrics.set_meter_provider(self._own_meters)

    def close(self) -> None:
        """Send what is left, in bounded time."""
        provider, self._provider = self._provider, None
        meters, self._own_meters = self._own_meters, None
        spans: SpanProcessor | None = None
        if provider is not None and self._exporter is not None:
            spans, provider.processor.inner, provider.switched.inner = provider.processor.inner, None, ALWAYS_OFF
            self._exporter.closes_in(CLOSE_SECONDS)
        if spans is None and meters is None:
            return
        closing = threading.Thread(target=self._close, args=(spans, meters), name="holdfast close traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the last traces or metrics could not be sent within %g s", CLOSE_SECONDS)
            if self._exporter is not None:
                self._exporter.shutdown()  # no further attempt is made; the one under way has a limit of its own

    def _close(self, spans: SpanProcessor | None, meters: MeterProvider | None) -> None:
        try:
            if spans is not None:
                spans.shutdown()
            if meters is not None:
                meters.shutdown(CLOSE_SECONDS * 1000)
        finally:
            self._failures.unwatch()


class _Process:
    """What can be set once in a process."""

    provider: Provider | None = None
    meters: MeterProvider | None = None


def open_traces(*, endpoint: str | None = None, sample: float | None = None, metrics: bool = False) -> Traces:
    """Have the spans of this process sent to a collector, and with `metrics` metrics as well.

    Where the program has set a provider, that one is used and none is set. What is None is taken from OpenTelemetry's
    environment variables.
    """
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "the endpoint for traces is not an http or https URL", remedy="give one like http://127.0.0.1:4318"
        )
    opened, known = Traces(), trace.get_tracer_provider()
    if isinstance(known, trace.ProxyTracerProvider):
        known = _Process.provider = Provider()
        trace.set_tracer_provider(known)
    if isinstance(known, Provider) and known.is_closed:
        opened.open_spans(known, endpoint, sample)
    if metrics:
        opened.open_meters(endpoint)
    return opened


def resource() -> Resource:
    """What sends: the service, its version and process. Environment variables come first; no command line."""
    own = Resource(
        {
            "service.name": "holdfast",
            "service.version": __version__,
            "process.pid": os.getpid(),
            "process.runtime.name": platform.python_implementation().lower(),
            "process.runtime.version": platform.python_version(),
        }
    )
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def _sampler(sample: float | None) -> Sampler:
    if sample is None and "OTEL_TRACES_SAMPLER" in os.environ:
        return TracerProvider(shutdown_on_exit=False).sampler  # which reads the variables
    return ParentBased(TraceIdRatioBased(1.0 if sample is None else sample))


def _url(endpoint: str | None, signal: str) -> str | None:
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and int(text) else otherwise


def _seconds(signal: str) -> float | None:
    names = ("OTEL_EXPORTER_OTLP_TIMEOUT", f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT")
    return None if any(name in os.environ for name in names) else SECONDS
