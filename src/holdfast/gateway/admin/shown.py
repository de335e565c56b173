"""An event as a reader of the admin socket gets it, and which events a reader wants.

Left out is what may hold secrets or data of callers: values of arguments, lines of stderr, what stray messages say. Of
a server's session id the beginning is shown, of a client's session the beginning of its record's name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

from holdfast.events import (
    ChildStderr,
    Event,
    HandshakeDone,
    LinkClosed,
    LinkSessionReplaced,
    RequestSent,
    StrayMessage,
)
from holdfast.sinks.shown import shown_id

KEY_SHOWN = 12  # characters of the name of a session's record
_TEXT = 500  # characters of a text
_ITEMS = 50  # of a list

_LEFT_OUT: Mapping[type[Any], frozenset[str]] = {
    ChildStderr: frozenset({"line"}),
    StrayMessage: frozenset({"what"}),
}
_SERVER_IDS: Mapping[type[Any], frozenset[str]] = {
    RequestSent: frozenset({"session"}),
    HandshakeDone: frozenset({"session"}),
    LinkClosed: frozenset({"session"}),
    LinkSessionReplaced: frozenset({"old", "new"}),
}


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """The fields that are shown, and whether each is the id of a session at a server."""
    left_out = _LEFT_OUT.get(kind, frozenset()) | {"arguments"}
    ids = _SERVER_IDS.get(kind, frozenset())
    return tuple((field.name, field.name in ids) for field in fields(kind) if field.name not in left_out)


def shown(event: Event) -> dict[str, Any]:
    """The event for JSON: its kind, and its fields as far as they may be shown."""
    found: dict[str, Any] = {"kind": type(event).__name__}
    for name, is_server_id in _fields(type(event)):
        value = getattr(event, name)
        if is_server_id:
            value = shown_id(value)
        elif name == "session" and isinstance(value, str):
            value = value[:KEY_SHOWN]
        found[name] = _short(value)
    return found


def line_of(value: object) -> bytes:
    """JSON on one line, in ASCII."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str).encode() + b"\n"


def short(text: str) -> str:
    """A text of others, in bounded length."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _short(value: object) -> object:
    if isinstance(value, str):
        return short(value)
    if isinstance(value, tuple):
        return [_short(each) for each in cast("tuple[object, ...]", value)[:_ITEMS]]
    return value


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a reader wants; what is None is not looked at."""

    kinds: frozenset[str] | None = None
    session: str | None = None
    """The beginning of the name of a client's session."""
    backend: str | None = None
    caller: str | None = None

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> "Wanted":
        """Of a request; raises `ValueError`."""
        kinds: Any = request.get("kinds")
        if kinds is not None and not (isinstance(kinds, list) and all(isinstance(k, str) for k in cast("Any", kinds))):
            raise ValueError("kinds must be a list of names of events")
        texts = [request.get(name) for name in ("session", "backend", "caller")]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise ValueError("session, backend and caller must be texts")
        session = texts[0][:KEY_SHOWN] if texts[0] is not None else None
        return cls(None if kinds is None else frozenset(cast("list[str]", kinds)), session, texts[1], texts[2])

    def takes(self, event: Event) -> bool:
        """Does the reader want it?"""
        kind = type(event)
        if self.kinds is not None and kind.__name__ not in self.kinds:
            return False
        if self.session is not None:
            session = None if kind in _SERVER_IDS else getattr(event, "session", None)
            if not isinstance(session, str) or not session.startswith(self.session):
                return False
        if self.backend is not None and self.backend not in (
            getattr(event, "backend", None),
            getattr(event, "server", None),
        ):
            return False
        return self.caller is None or getattr(event, "principal", None) == self.caller
