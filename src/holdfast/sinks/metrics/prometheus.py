"""Keeps figures for Prometheus, and writes them in its text format."""

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.metrics import MetricWrapperBase

from holdfast.errors import UsageError
from holdfast.sinks.metrics.catalogue import METRICS, Metric
from holdfast.sinks.metrics.figures import Reading

HOST = "127.0.0.1"


class PrometheusMeter:
    """The figures of one gateway or program, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._metrics = {name: _made(metric, self.registry) for name, metric in METRICS.items()}
        self._series: dict[tuple[str, tuple[str, ...]], MetricWrapperBase] = {}
        self._read_before: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        series = self._of(name, labels)
        assert isinstance(series, Counter | Gauge)
        series.inc(amount)

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        series = self._of(name, labels)
        assert isinstance(series, Gauge)
        series.set(value)

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        series = self._of(name, labels)
        assert isinstance(series, Histogram)
        series.observe(value)

    def close(self) -> None:
        """There is nothing to write."""

    def text(self, readings: Iterable[Reading] = ()) -> bytes:
        """Everything, in Prometheus' text format, with gauges that were read just now."""
        now = {(name, labels): value for name, labels, value in readings}
        for name, labels in self._read_before - now.keys():
            self.set(name, labels, 0.0)
        for (name, labels), value in now.items():
            self.set(name, labels, value)
        self._read_before |= now.keys()
        return generate_latest(self.registry)

    def _of(self, name: str, labels: tuple[str, ...]) -> MetricWrapperBase:
        series = self._series.get((name, labels))
        if series is None:
            metric = self._metrics[name]
            series = self._series[name, labels] = metric.labels(*labels) if labels else metric
        return series


class MetricsServer:
    """A page of metrics on a port of loopback, in threads of its own."""

    def __init__(self, meter: PrometheusMeter, port: int) -> None:
        """`port` 0 takes a free one."""
        try:
            self._server, self._thread = start_http_server(port, HOST, meter.registry)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics can't be served at port {port}: {error}", remedy="take a free one: metrics=0"
            ) from error
        self.port: int = self._server.server_port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _made(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    made = Counter if metric.kind == "counter" else Gauge
    return made(metric.name, metric.help, metric.labels, registry=registry)
