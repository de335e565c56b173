"""What a sink may show of an event: shortened session ids, times in UTC, names without control characters."""

from datetime import UTC, datetime

ID_SHOWN = 4  # characters of a session id: enough to distinguish sessions, not enough to use one


def shown_id(id: str | None) -> str | None:
    """The beginning of a server's session id, which as a whole would give access to the session."""
    return None if id is None else f"{id[:ID_SHOWN]}…"


def in_utc(at: float) -> str:
    """A moment, to the millisecond, as RFC 3339 writes it."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "9999-12-31T23:59:59.999Z"
