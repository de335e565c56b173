"""Every metric: its name, its labels, what it counts. docs/observability.md shows this table.

Those that begin with `mcp_` are OpenTelemetry's for MCP, as Prometheus writes their names. A label has few values, and
never names a session, a caller or a URI; names of tools, methods and servers up to a limit, and then `other`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

OPERATION_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds, as the convention says."""
SHORT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LIFETIME_BUCKETS = (1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    convention: str | None = None
    """Its name in OpenTelemetry's convention, where it is of that."""

    @property
    def otel_name(self) -> str:
        """Its name for OpenTelemetry, which adds no unit to it."""
        if self.convention is not None:
            return self.convention
        return self.name.removesuffix("_total").removesuffix("_seconds").replace("holdfast_", "holdfast.", 1)


def _metrics(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


METRICS = _metrics(
    Metric(
        "mcp_server_operation_duration_seconds",
        "histogram",
        "Requests that the gateway served, by how they ended.",
        (
            "mcp_method_name",
            "gen_ai_tool_name",
            "backend",
            "outcome",
            "error_type",
            "mcp_protocol_version",
            "network_transport",
        ),
        OPERATION_BUCKETS,
        "mcp.server.operation.duration",
    ),
    Metric(
        "mcp_client_operation_duration_seconds",
        "histogram",
        "Requests that links sent to servers, replays included, by how they ended.",
        ("mcp_method_name", "server", "outcome", "error_type", "mcp_protocol_version", "network_transport"),
        OPERATION_BUCKETS,
        "mcp.client.operation.duration",
    ),
    Metric(
        "mcp_server_session_duration_seconds",
        "histogram",
        "Sessions of clients, when they ended.",
        ("reason",),
        LIFETIME_BUCKETS,
        "mcp.server.session.duration",
    ),
    Metric(
        "mcp_client_session_duration_seconds",
        "histogram",
        "Links of the gateway to its servers, when they were closed.",
        ("reason",),
        LIFETIME_BUCKETS,
        "mcp.client.session.duration",
    ),
    Metric("holdfast_sessions", "gauge", "Sessions of clients that this process holds live.", ("era",)),
    Metric("holdfast_sessions_begun_total", "counter", "Sessions of clients that began here.", ("era",)),
    Metric("holdfast_requests_in_flight", "gauge", "Requests that links wait for an answer to.", ("backend",)),
    Metric("holdfast_links", "gauge", "Links of this process to the backend, of sessions and shared.", ("backend",)),
    Metric("holdfast_circuit_open", "gauge", "1 if calls are refused because the backend failed often.", ("backend",)),
    Metric("holdfast_backend_up", "gauge", "1 if the backend is up for new sessions, 0 if it is down.", ("backend",)),
    Metric("holdfast_backend_starts_total", "counter", "Links that came up.", ("backend", "adopted")),
    Metric("holdfast_backend_failures_total", "counter", "Links and health checks that failed.", ("backend",)),
    Metric(
        "holdfast_backend_start_seconds", "histogram", "How long links took to come up.", ("backend",), SHORT_BUCKETS
    ),
    Metric(
        "holdfast_backend_lifetime_seconds",
        "histogram",
        "How long links lived.",
        ("backend", "reason"),
        LIFETIME_BUCKETS,
    ),
    Metric(
        "holdfast_replacements_total",
        "counter",
        "Sessions that servers lost, by whether they had kept state.",
        ("server", "kept_state"),
    ),
    Metric("holdfast_replays_total", "counter", "Requests that were sent again, by verdict.", ("server", "verdict")),
    Metric("holdfast_unknown_outcomes_total", "counter", "Requests that were sent and got no answer.", ("server",)),
    Metric(
        "holdfast_circuit_changes_total",
        "counter",
        "Changes of a server's circuit, by new state.",
        ("server", "state"),
    ),
    Metric("holdfast_children", "gauge", "Programs that run for this process."),
    Metric("holdfast_children_started_total", "counter", "Programs that were started.", ("server",)),
    Metric(
        "holdfast_children_ended_total",
        "counter",
        "Programs that ended, by whether they were closed by us.",
        ("server", "expected"),
    ),
    Metric("holdfast_callers_refused_total", "counter", "HTTP requests that were refused, by status.", ("status",)),
    Metric("holdfast_configurations_read_total", "counter", "Readings of the gateway's file.", ("taken_over",)),
    Metric("holdfast_store_seconds", "histogram", "Operations of the store.", ("operation", "failed"), SHORT_BUCKETS),
    Metric("holdfast_runs", "gauge", "Agents' runs that are open."),
    Metric("holdfast_run_seconds", "histogram", "Agents' runs, when they were left.", ("ended",), LIFETIME_BUCKETS),
    Metric(
        "holdfast_turn_wait_seconds",
        "histogram",
        "How long calls waited for the sessions that they change.",
        ("kinds", "taken"),
        SHORT_BUCKETS,
    ),
    Metric("holdfast_companion_steps_total", "counter", "Steps of companions.", ("kind", "phase")),
    Metric("holdfast_companion_refusals_total", "counter", "Steps out of order that were refused.", ("kind", "phase")),
    Metric("holdfast_companions_converged_total", "counter", "Companions that converged.", ("kind",)),
    Metric("holdfast_events_dropped_total", "counter", "Events that a sink could not take.", ("sink",)),
)
