"""Gives figures to OpenTelemetry's metrics API: to a meter provider, by default the one that the program has set."""

from typing import Any

from opentelemetry.metrics import MeterProvider, get_meter

from holdfast.sinks.metrics.catalogue import METRICS
from holdfast.version import __version__

_ATTRIBUTES = {
    "mcp_method_name": "mcp.method.name",
    "mcp_protocol_version": "mcp.protocol.version",
    "gen_ai_tool_name": "gen_ai.tool.name",
    "network_transport": "network.transport",
    "error_type": "error.type",
}
"""Labels that are attributes of the convention."""


class OtelMeter:
    """The figures of one gateway or program, as OpenTelemetry's instruments."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """`provider`: by default the one of the process."""
        meter = get_meter("holdfast", __version__, provider)
        self._instruments: dict[str, Any] = {}
        self._labels = {
            name: tuple(_ATTRIBUTES.get(label, label) for label in metric.labels) for name, metric in METRICS.items()
        }
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                self._instruments[name] = meter.create_histogram(
                    metric.otel_name, "s", metric.help, explicit_bucket_boundaries_advisory=list(metric.buckets)
                )
            elif metric.kind == "counter":
                self._instruments[name] = meter.create_counter(metric.otel_name, "1", metric.help)
            else:
                self._instruments[name] = meter.create_up_down_counter(metric.otel_name, "1", metric.help)
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None:
        self._instruments[name].add(amount, self._attributes(name, labels))

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        before = self._gauges.get((name, labels), 0.0)
        self._gauges[name, labels] = value
        self._instruments[name].add(value - before, self._attributes(name, labels))

    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self._instruments[name].record(value, self._attributes(name, labels))

    def close(self) -> None:
        """Whoever set the provider shuts it down."""

    def _attributes(self, name: str, labels: tuple[str, ...]) -> dict[str, str]:
        return {key: value for key, value in zip(self._labels[name], labels, strict=True) if value}
