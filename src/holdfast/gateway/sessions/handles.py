"""Sessions named by a handle, for 2026 clients: two tools that open and end one, and the argument that carries it.

It owns their names and texts. A handle that is unknown, expired or another caller's gets one and the same text.
"""

from collections.abc import Mapping
from typing import Any, cast

from holdfast.core.eras import Era
from holdfast.core.models import Principal
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.registry import Sessions
from holdfast.gateway.sessions.session import GatewaySession

OPEN, END = "holdfast__open_session", "holdfast__end_session"
NAMES = frozenset({OPEN, END})
ARGUMENT = "holdfast_session"
_HANDLE = {"type": "string", "description": f"The handle that {OPEN} returned."}


def _span(seconds: float) -> str:
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"


def tools(settings: Settings) -> list[Mapping[str, Any]]:
    """The two tools, which say how long a session lasts."""
    life = f"It ends after {_span(settings.idle)} without use, and after {_span(settings.max_age)} at the latest."
    handle = {"type": "object", "properties": {ARGUMENT: _HANDLE}, "required": [ARGUMENT]}
    return [
        {
            "name": OPEN,
            "title": "Open a session",
            "description": "Open a session, in which servers remember earlier calls. Returns a handle: pass it "
            f"as {ARGUMENT!r} to every tool call that belongs together. {life}",
            "inputSchema": {"type": "object", "properties": {}},
            "outputSchema": handle,
        },
        {
            "name": END,
            "title": "End a session",
            "description": "End a session that was opened by a handle: what its servers remember is let go.",
            "inputSchema": handle,
            "annotations": {"idempotentHint": True, "destructiveHint": True},
        },
    ]


def with_handle(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool that also takes a handle, as it is listed."""
    schema = item.get("inputSchema")
    known = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {"type": "object"}
    properties = known.get("properties")
    inner = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    return {**item, "inputSchema": {**known, "properties": {**inner, ARGUMENT: _HANDLE}}}


async def find(sessions: Sessions, principal: Principal, handle: object) -> GatewaySession | None:
    """The caller's session by its handle."""
    if not isinstance(handle, str):
        return None
    session = await sessions.find(handle, principal)
    return session if session is not None and session.era is Era.Y2026 else None


def unknown(settings: Settings) -> dict[str, Any]:
    """The result of a call with a wrong handle."""
    text = (
        f"There is no such session: it ended, expired ({_span(settings.idle)} without use), or never was. "
        f"Call {OPEN} for a new handle; what the old session kept is gone."
    )
    return {"content": [{"type": "text", "text": text}], "isError": True}


async def call(
    sessions: Sessions, principal: Principal, client: Client, name: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Answer a call of one of the two tools."""
    if name == OPEN:
        session = await sessions.begin(principal, client, Era.Y2026)
        text = f"Session open. Pass {ARGUMENT}={session.id} to each call."
        return {"content": [{"type": "text", "text": text}], "structuredContent": {ARGUMENT: session.id}}
    session = await find(sessions, principal, arguments.get(ARGUMENT))
    if session is None:
        return unknown(sessions.settings)
    await sessions.endings.end(session, "ended by its client", cut_calls=True)
    return {"content": [{"type": "text", "text": "The session has ended."}]}
