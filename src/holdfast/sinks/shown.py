"""What a sink may show of an event: shortened session ids, times in UTC, names without control characters."""

import json
import re
from datetime import UTC, datetime

# Control characters, and what reorders or hides text. Joiners stay: scripts and emoji need them.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

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


def printable(text: str) -> str:
    """The text with every control character except line ends escaped, as JSON does it."""
    return _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]
