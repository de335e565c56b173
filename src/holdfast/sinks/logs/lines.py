"""Which events are log lines: their levels, and their texts. An event that is not listed here is no line.

What a part of the gateway or of a link logs by itself, with more than its event holds, is not here: why a backend is
down (`gateway/failure_log.py`), what a reload did not take over, what a server offers that can't be used.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from logging import DEBUG, INFO, WARNING
from typing import Any, NamedTuple, cast

from holdfast.events import (
    BackendChanged,
    BackendClosed,
    BackendSessionReplaced,
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
    GatewayStarted,
    GatewayStopped,
    HandshakeDone,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    LinkSessionReplaced,
    ListenerFailed,
    RecordsReaped,
    RequestSent,
    RequestServed,
    RunBegan,
    RunEnded,
    SessionAdministered,
    StoreClosed,
    StoreMigrated,
    StoreOpened,
    StreamDropped,
    TurnRefused,
)
from holdfast.sinks.logs.formats import FIELDS
from holdfast.sinks.shown import printable, shown_id

VALUE = 200  # characters of a value that are shown
_WORTH_A_LINE = ("unknown", "failed")  # outcomes of requests
_DOORS = (401, 403, 421, 429)  # refusals that somebody may have to look into


class Line(NamedTuple):
    """A level, and the text."""

    level: int
    text: str


def _replaced(of: str, kept_state: bool) -> Line:
    if kept_state:
        return Line(WARNING, f"{of} was lost, with what the server kept in it; a new one began")
    return Line(INFO, f"{of} was lost, and a new one began; nothing had been kept in it")


def _backend_started(event: BackendStarted) -> Line:
    whose = "all sessions" if event.session is None else f"session {event.session}"
    how = "continues its session" if event.adopted else "started"
    return Line(INFO, f"backend {event.backend!r} {how} for {whose}, in {event.seconds:.3f} s ({event.era})")


def _refused(event: CallerRefused) -> Line:
    who = f"{event.principal} at {event.address}" if event.principal else event.address or "a client"
    return Line(WARNING if event.status in _DOORS else INFO, f"refused {who}: HTTP {event.status}, {event.reason}")


def _read(event: ConfigurationRead) -> Line | None:
    if event.error is not None:
        return None  # the gateway logs which mistake it was
    changes = [
        f"{what}: {', '.join(names)}"
        for what, names in (("added", event.added), ("removed", event.removed), ("changed", event.changed))
        if names
    ]
    return Line(INFO, f"the configuration was read ({event.digest}); {'; '.join(changes) or 'nothing has changed'}")


def _served(event: RequestServed) -> Line:
    what = f"{event.method} {event.name}" if event.name else event.method
    where = f" at backend {event.backend!r}" if event.backend else ""
    error = f" ({event.error})" if event.error else ""
    level = INFO if event.outcome in _WORTH_A_LINE else DEBUG
    return Line(level, f"{what}{where} for {event.principal}: {event.outcome}{error}, in {event.seconds:.3f} s")


def _sent(event: RequestSent) -> Line:
    what = f"{event.method} {event.name}" if event.name else event.method
    again = f" after {event.attempts} attempts" if event.attempts > 1 else ""
    error = f" ({event.error})" if event.error else ""
    level = INFO if event.outcome in _WORTH_A_LINE else DEBUG
    return Line(level, f"{event.server}: {what}: {event.outcome}{error}{again}, in {event.seconds:.3f} s")


def _handshake(event: HandshakeDone) -> Line:
    how = "continues its session" if event.adopted else "is ready"
    return Line(INFO, f"{event.server} {how}: {event.era}, version {event.version}, session {shown_id(event.session)}")


def _closed(event: LinkClosed) -> Line:
    how = "its session was ended" if event.ended else "its session was left" if event.session else "it had no session"
    return Line(INFO, f"{event.server}: the link was closed; {how}")


def _child_ended(event: ChildEnded) -> Line:
    how = "" if event.expected else " by itself"
    return Line(
        DEBUG if event.expected else INFO,
        f"{event.server}: its program (pid {event.pid}) ended{how}, with exit code {event.exit_code}",
    )


def _stepped(event: CompanionStepped) -> Line:
    return Line(DEBUG, f"{event.kind} {event.companion}: {event.step}, {event.was} → {event.phase}")


_LINES: Mapping[type[Any], tuple[str, Callable[[Any], Line | None]]] = {
    GatewayStarted: (
        "gateway",
        lambda event: Line(INFO, f"the gateway serves{f' at {event.address}' if event.address else ''}"),
    ),
    GatewayStopped: ("gateway", lambda event: Line(INFO, f"the gateway has stopped, after {event.seconds:.1f} s")),
    GatewaySessionBegan: (
        "gateway",
        lambda event: Line(INFO, f"session {event.session} of {event.principal} began ({event.era})"),
    ),
    GatewaySessionEnded: (
        "gateway",
        lambda event: Line(
            INFO, f"session {event.session} of {event.principal} ended after {event.lifetime:.1f} s: {event.reason}"
        ),
    ),
    BackendStarted: ("gateway", _backend_started),
    BackendClosed: (
        "gateway",
        lambda event: Line(
            DEBUG, f"backend {event.backend!r}: a link was closed after {event.lifetime:.1f} s: {event.reason}"
        ),
    ),
    BackendChanged: ("gateway", lambda event: Line(DEBUG, f"backend {event.backend!r} is {event.state}")),
    BackendSessionReplaced: (
        "gateway",
        lambda event: _replaced(
            f"the session of {event.session or 'all'} at backend {event.backend!r}", event.kept_state
        ),
    ),
    CallerRefused: ("gateway", _refused),
    ConfigurationRead: ("gateway", _read),
    SessionAdministered: (
        "gateway",
        lambda event: Line(
            INFO, f"{event.principal}: {event.action} session {event.session}{'' if event.done else ': not done'}"
        ),
    ),
    RequestServed: ("gateway", _served),
    RequestSent: ("links", _sent),
    LinkOpened: ("links", lambda event: Line(DEBUG, f"{event.server}: a link opens")),
    HandshakeDone: ("links", _handshake),
    LinkFailed: ("links", lambda event: Line(WARNING, f"{event.server} can't be reached: {event.why}")),
    LinkClosed: ("links", _closed),
    LinkSessionReplaced: ("links", lambda event: _replaced(f"the session at {event.server}", event.kept_state)),
    CallReplayed: (
        "links",
        lambda event: Line(DEBUG, f"{event.server}: {event.method} is sent again ({event.why})"),
    ),
    StreamDropped: (
        "links",
        lambda event: Line(DEBUG, f"{event.server}: its stream ended and is opened again: {event.why}"),
    ),
    CircuitChanged: (
        "links",
        lambda event: Line(
            WARNING if event.state == "open" else INFO, f"the circuit of {event.server} is {event.state}"
        ),
    ),
    ChildStarted: ("links", lambda event: Line(DEBUG, f"{event.server}: its program was started (pid {event.pid})")),
    ChildEnded: ("links", _child_ended),
    RunBegan: ("client", lambda event: Line(INFO, f"run {event.run} of {event.principal} began")),
    RunEnded: (
        "client",
        lambda event: Line(
            INFO,
            f"run {event.run} of {event.principal} {'ended' if event.ended else 'was left'} after "
            f"{event.seconds:.1f} s",
        ),
    ),
    StoreOpened: ("stores", lambda event: Line(INFO, f"the store {event.store} is open")),
    StoreMigrated: (
        "stores",
        lambda event: (
            Line(WARNING, f"{event.store} was migrated from schema {event.before} to {event.after}")
            if event.before
            else Line(INFO, f"{event.store} was created, with schema {event.after}")
        ),
    ),
    StoreClosed: ("stores", lambda event: Line(DEBUG, f"the store {event.store} was closed")),
    RecordsReaped: (
        "stores",
        lambda event: Line(
            DEBUG, f"{event.store}: removed {event.expired} expired records and {event.tombstones} tombstones"
        ),
    ),
    ListenerFailed: (
        "stores",
        lambda event: Line(WARNING, f"notices of {event.store} can't be read, and are tried again: {event.why}"),
    ),
    TurnRefused: (
        "state",
        lambda event: Line(INFO, f"a call gave up waiting for its turn at {event.kinds} after {event.waited:.1f} s"),
    ),
    CompanionStepped: ("state", _stepped),
    CompanionRefused: (
        "state",
        lambda event: Line(INFO, f"{event.kind} {event.companion}: {event.tool} is not allowed in {event.phase}"),
    ),
}
_NAMES = {"process": "gateway", "name": "tool", "id": "request", "trace": "trace_id"}
_LINK_IDS = ("session", "old", "new")


def line_of(event: Event) -> tuple[str, Line] | None:
    """The logger's name and the line of an event; None if it is none."""
    made = _LINES.get(type(event))
    if made is None:
        return None
    name, make = made
    line = make(event)
    if line is None:
        return None
    return f"holdfast.{name}", Line(line.level, printable(line.text).replace("\n", "\\n"))


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of an event that a line may have, under the names that log records may use."""
    of_link = hasattr(event, "server")
    shown: dict[str, Any] = {"event": type(event).__name__}
    for field in fields(event):
        value, name = getattr(event, field.name), _NAMES.get(field.name, field.name)
        if value is None or name not in FIELDS:
            continue
        if of_link and name in _LINK_IDS:
            value = shown_id(value)
        elif name == "trace_id":
            value = value.split("-")[1]
        shown[name] = _bounded(value)
    return shown


def _bounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_bounded(each) for each in cast("tuple[Any, ...]", value)]
    if isinstance(value, float):
        return round(value, 6)
    return f"{value[:VALUE]}…" if isinstance(value, str) and len(value) > VALUE else value
