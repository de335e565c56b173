"""What is written of an event in the audit trail, and of which events anything is."""

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from holdfast.core.exact import Number
from holdfast.events import (
    BackendClosed,
    BackendFailed,
    BackendSessionReplaced,
    BackendStarted,
    CallerRefused,
    ConfigurationRead,
    Event,
    GatewaySessionBegan,
    GatewaySessionEnded,
    GatewayStarted,
    GatewayStopped,
    LinkSessionReplaced,
    RequestSent,
    RequestServed,
    RunBegan,
    RunEnded,
    SessionAdministered,
)
from holdfast.sinks.shown import in_utc, shown_id

Entry: TypeAlias = dict[str, Any]

VALUE_BYTES = 4096  # of one argument's value as JSON; more is cut
VALUES_BYTES = 16_384  # of all values of one call
ARGUMENTS = 100  # of one call that are named
NAME = 200  # characters of an argument's name
REDACTED = "[redacted]"
_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests of which a line is written: what reads or changes something at a server."""


class Entries:
    """Makes entries. With `values`, those of arguments are written, except where a name matches one of `redact`."""

    def __init__(self, *, values: bool = False, redact: Sequence[str] = (), requests_sent: bool = False) -> None:
        """`requests_sent`: also of requests that links send. A gateway writes those that it serves."""
        self._values = values
        self._redact = tuple(pattern.lower() for pattern in redact)
        self._requests_sent = requests_sent

    def takes(self, event: Event) -> bool:
        """Is anything written of an event?"""
        if isinstance(event, RequestServed):
            return event.method in _METHODS
        if isinstance(event, RequestSent):
            return self._requests_sent and event.method in _METHODS
        return type(event) in _MAKERS

    def entry(self, event: Event) -> Entry:
        """What is written of an event that it takes, without place in a chain."""
        if isinstance(event, RequestServed):
            return self._served(event)
        if isinstance(event, RequestSent):
            return _sent(event)
        return {"at": in_utc(event.at), **_MAKERS[type(event)](event)}

    def _served(self, event: RequestServed) -> Entry:
        entry: Entry = {
            "at": in_utc(event.at),
            "type": "call",
            "principal": event.principal,
            "client": event.client,
            "session": event.session,
            "method": event.method,
            "name": event.name,
            "backend": event.backend,
            "outcome": event.outcome,
            "seconds": round(event.seconds, 6),
            "id": event.id,
            "transport": event.transport,
        }
        if event.error is not None:
            entry["error"] = event.error
        if event.code is not None:
            entry["code"] = event.code
        if event.trace is not None:
            entry["trace"] = event.trace
        if event.arguments is not None:
            entry["arguments"] = self._arguments(event.arguments)
        return entry

    def _arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        left = VALUES_BYTES
        for name, value in list(arguments.items())[:ARGUMENTS]:
            text = json_of(value)
            one: dict[str, Any] = {"bytes": len(text.encode(errors="surrogatepass"))}
            if self._values:
                kept = self._redacted(name, value)
                written = json_of(kept)
                most = min(VALUE_BYTES, left)
                one["value"] = kept if len(written) <= most else written[:most] + "…"
                left -= min(len(written), most)
            shown[name[:NAME]] = one
        if len(arguments) > ARGUMENTS:
            shown["…"] = {"more": len(arguments) - ARGUMENTS}
        return shown

    def _redacted(self, name: str, value: Any) -> Any:
        if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in self._redact):
            return REDACTED
        if isinstance(value, dict):
            known = cast("dict[str, Any]", value)
            return {key: self._redacted(key, each) for key, each in known.items()}
        if isinstance(value, list):
            return [self._redacted(name, each) for each in cast("list[Any]", value)]
        return value


def json_of(value: object) -> str:
    """A value as JSON on one line. A lone surrogate is escaped, a number keeps its digits as text."""
    return _encode(value)


def _default(value: object) -> str:
    return value.text if isinstance(value, Number) else type(value).__name__


_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_default).encode


def _sent(event: RequestSent) -> Entry:
    entry: Entry = {
        "at": in_utc(event.at),
        "type": "call",
        "server": event.server,
        "method": event.method,
        "name": event.name,
        "session": shown_id(event.session),
        "outcome": event.outcome,
        "attempts": event.attempts,
        "seconds": round(event.seconds, 6),
    }
    if event.error is not None:
        entry["error"] = event.error
    if event.trace is not None:
        entry["trace"] = event.trace
    return entry


def _ended(event: GatewaySessionEnded) -> Entry:
    return {
        "type": "session_ended",
        "principal": event.principal,
        "session": event.session,
        "reason": event.reason,
        "seconds": round(event.lifetime, 3),
    }


def _refused(event: CallerRefused) -> Entry:
    return {
        "type": "refused",
        "principal": event.principal,
        "address": event.address,
        "status": event.status,
        "reason": event.reason[:500],
    }


def _backend_started(event: BackendStarted) -> Entry:
    return {
        "type": "backend_client_initialized",
        "workload": event.backend,
        "session": event.session,
        "seconds": round(event.seconds, 6),
        "era": event.era,
        "adopted": event.adopted,
    }


def _configuration(event: ConfigurationRead) -> Entry:
    return {
        "type": "configuration",
        "digest": event.digest,
        "taken_over": event.error is None,
        "added": list(event.added),
        "removed": list(event.removed),
        "changed": list(event.changed),
    }


_MAKERS: Mapping[type[Any], Callable[[Any], Entry]] = {
    GatewayStarted: lambda event: {"type": "gateway_started", "process": event.process, "version": event.version},
    GatewayStopped: lambda event: {"type": "gateway_stopped", "process": event.process},
    GatewaySessionBegan: lambda event: {
        "type": "session_began",
        "principal": event.principal,
        "session": event.session,
        "era": event.era,
    },
    GatewaySessionEnded: _ended,
    BackendStarted: _backend_started,
    BackendFailed: lambda event: {"type": "backend_failed", "workload": event.backend, "session": event.session},
    BackendClosed: lambda event: {
        "type": "backend_client_closed",
        "workload": event.backend,
        "session": event.session,
        "reason": event.reason,
        "seconds": round(event.lifetime, 3),
    },
    BackendSessionReplaced: lambda event: {
        "type": "backend_session_replaced",
        "workload": event.backend,
        "session": event.session,
        "kept_state": event.kept_state,
    },
    CallerRefused: _refused,
    ConfigurationRead: _configuration,
    SessionAdministered: lambda event: {
        "type": "administered",
        "principal": event.principal,
        "action": event.action,
        "session": event.session,
        "done": event.done,
    },
    RunBegan: lambda event: {
        "type": "run_began",
        "principal": event.principal,
        "run": event.run,
        "durable": event.durable,
    },
    RunEnded: lambda event: {
        "type": "run_ended",
        "principal": event.principal,
        "run": event.run,
        "seconds": round(event.seconds, 3),
    },
    LinkSessionReplaced: lambda event: {
        "type": "server_session_replaced",
        "server": event.server,
        "old": shown_id(event.old),
        "new": shown_id(event.new),
        "kept_state": event.kept_state,
    },
}
