"""Turns events into figures. Where they are kept is a `Meter`'s affair."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from holdfast.core.outcome import Outcome
from holdfast.events import (
    BackendChanged,
    BackendClosed,
    BackendFailed,
    BackendStarted,
    CallerRefused,
    CallReplayed,
    ChildEnded,
    ChildStarted,
    CircuitChanged,
    CompanionRefused,
    CompanionStepped,
    ConfigurationRead,
    Event,
    GatewaySessionBegan,
    GatewaySessionEnded,
    LinkSessionReplaced,
    RequestSent,
    RequestServed,
    RunBegan,
    RunEnded,
    StoreAnswered,
    TurnRefused,
    TurnTaken,
)

Reading: TypeAlias = tuple[str, tuple[str, ...], float]
"""A gauge's name, its labels, and its value right now."""

OTHER = "other"
TOOLS = 200  # names of tools with series of their own
NAMES = 200  # the same of servers, methods, kinds: configured names are fewer, and methods are what clients make up


class Meter(Protocol):
    """Keeps figures. The labels are values, in the order of the catalogue."""

    def add(self, name: str, labels: tuple[str, ...], amount: float = 1.0) -> None: ...
    def set(self, name: str, labels: tuple[str, ...], value: float) -> None: ...
    def observe(self, name: str, labels: tuple[str, ...], value: float) -> None: ...
    def close(self) -> None: ...


class Names:
    """Names that get series of their own, until there are too many."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._known: set[str] = set()
        self._most = most

    def __call__(self, name: str | None) -> str:
        if name is None:
            return ""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class Figures:
    """A sink that counts and measures."""

    def __init__(self, meters: tuple[Meter, ...], *, tools: int = TOOLS) -> None:
        self._meters = meters
        self._tool = Names(tools)
        self._name = Names(NAMES)
        self._method = Names(NAMES)
        self._dropped: dict[str, int] = {}
        self._kinds: Mapping[type[Any], Callable[[Any], None]] = {
            RequestServed: self._served,
            RequestSent: self._sent,
            GatewaySessionBegan: lambda event: self._add("holdfast_sessions_begun_total", event.era),
            GatewaySessionEnded: lambda event: self._observe(
                "mcp_server_session_duration_seconds", event.lifetime, self._name(event.reason)
            ),
            BackendStarted: self._backend_started,
            BackendFailed: lambda event: self._add("holdfast_backend_failures_total", self._name(event.backend)),
            BackendClosed: self._backend_closed,
            BackendChanged: lambda event: self._set(
                "holdfast_backend_up", float(event.state == "up"), self._name(event.backend)
            ),
            LinkSessionReplaced: lambda event: self._add(
                "holdfast_replacements_total", self._name(event.server), _flag(event.kept_state)
            ),
            CallReplayed: lambda event: self._add("holdfast_replays_total", self._name(event.server), event.why),
            CircuitChanged: lambda event: self._add(
                "holdfast_circuit_changes_total", self._name(event.server), event.state
            ),
            ChildStarted: lambda event: self._add("holdfast_children_started_total", self._name(event.server)),
            ChildEnded: lambda event: self._add(
                "holdfast_children_ended_total", self._name(event.server), _flag(event.expected)
            ),
            CallerRefused: lambda event: self._add("holdfast_callers_refused_total", str(event.status)),
            ConfigurationRead: lambda event: self._add(
                "holdfast_configurations_read_total", _flag(event.error is None)
            ),
            RunBegan: lambda event: self._add("holdfast_runs"),
            RunEnded: self._run_ended,
            StoreAnswered: lambda event: self._observe(
                "holdfast_store_seconds", event.seconds, event.operation, _flag(event.error is not None)
            ),
            TurnTaken: lambda event: self._observe(
                "holdfast_turn_wait_seconds", event.waited, self._name(event.kinds), "true"
            ),
            TurnRefused: lambda event: self._observe(
                "holdfast_turn_wait_seconds", event.waited, self._name(event.kinds), "false"
            ),
            CompanionStepped: self._companion_stepped,
            CompanionRefused: lambda event: self._add(
                "holdfast_companion_refusals_total", self._name(event.kind), self._name(event.phase)
            ),
        }

    def __call__(self, event: Event) -> None:
        kind = self._kinds.get(type(event))
        if kind is not None:
            kind(event)

    def dropped(self, sink: str, count: int) -> None:
        """So many events a sink could not take, from its beginning until now."""
        more = count - self._dropped.get(sink, 0)
        if more > 0:
            self._dropped[sink] = count
            for meter in self._meters:
                meter.add("holdfast_events_dropped_total", (sink,), float(more))

    def close(self) -> None:
        for meter in self._meters:
            meter.close()

    def _add(self, name: str, *labels: str) -> None:
        for meter in self._meters:
            meter.add(name, labels)

    def _set(self, name: str, value: float, *labels: str) -> None:
        for meter in self._meters:
            meter.set(name, labels, value)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        for meter in self._meters:
            meter.observe(name, labels, value)

    def _served(self, event: RequestServed) -> None:
        self._observe(
            "mcp_server_operation_duration_seconds",
            event.seconds,
            self._method(event.method),
            self._tool(event.name) if event.backend is not None and event.method == "tools/call" else "",
            self._name(event.backend),
            event.outcome,
            self._error(event.outcome, event.code, event.error),
            self._name(event.version),
            event.transport,
        )

    def _sent(self, event: RequestSent) -> None:
        server = self._name(event.server)
        self._observe(
            "mcp_client_operation_duration_seconds",
            event.seconds,
            self._method(event.method),
            server,
            event.outcome,
            self._error(event.outcome, event.code, event.error),
            self._name(event.version),
            event.transport,
        )
        if event.outcome == Outcome.UNKNOWN:
            self._add("holdfast_unknown_outcomes_total", server)

    def _error(self, outcome: str, code: int | None, error: str | None) -> str:
        """The convention's `error.type`; no text of a server's."""
        if outcome in (Outcome.OK, Outcome.CANCELLED):
            return ""
        if outcome == Outcome.TOOL_ERROR:
            return "tool_error"
        return self._name(str(code) if code is not None else error or outcome)

    def _backend_started(self, event: BackendStarted) -> None:
        backend = self._name(event.backend)
        self._add("holdfast_backend_starts_total", backend, _flag(event.adopted))
        self._observe("holdfast_backend_start_seconds", event.seconds, backend)

    def _backend_closed(self, event: BackendClosed) -> None:
        reason = self._name(event.reason)
        self._observe("mcp_client_session_duration_seconds", event.lifetime, reason)
        self._observe("holdfast_backend_lifetime_seconds", event.lifetime, self._name(event.backend), reason)

    def _run_ended(self, event: RunEnded) -> None:
        for meter in self._meters:
            meter.add("holdfast_runs", (), -1.0)
        self._observe("holdfast_run_seconds", event.seconds, _flag(event.ended))

    def _companion_stepped(self, event: CompanionStepped) -> None:
        kind = self._name(event.kind)
        self._add("holdfast_companion_steps_total", kind, self._name(event.phase))
        if event.converged:
            self._add("holdfast_companions_converged_total", kind)


def _flag(value: bool) -> str:
    return "true" if value else "false"
