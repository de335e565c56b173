"""What a remote caller may see of an error: its family, its kind, the backend's name, and what the caller can do.

It owns every sentence that a caller reads. The text, remedy and stderr of an error are never in it: they name commands,
addresses, paths and settings, which are for the operator's log. The exception is `ErrorAnswer`, whose `message` and
`data` are the backend's own answer to this caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import (
    AnswerTimeout,
    BadAnswer,
    Busy,
    ChildDied,
    CircuitOpen,
    Conflict,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    Ended,
    ErrorAnswer,
    Forbidden,
    HoldfastError,
    LimitReached,
    NoBackend,
    NotFound,
    OutcomeUnknown,
    PoolFull,
    Rejected,
    SessionExpired,
    SessionReplaced,
    StartTimeout,
    StoreDown,
    Unauthorized,
    Unavailable,
    UsageError,
    WriteUnsettled,
)

CALL_AGAIN = "the server started a new session; what it kept is gone; call again to continue"
INTERNAL_ERROR = -32603
_LATER = "nothing was executed; try again{wait}"
_MAYBE = "it may have been executed; repeat it only if that is harmless"
_OPERATOR = "the operator of this gateway can see why in its log"

_SENTENCES: dict[type[HoldfastError], tuple[str, str]] = {
    Unavailable: ("{backend} is not available", _LATER),
    ConnectFailed: ("{backend} can't be reached or started", _LATER),
    StartTimeout: ("{backend} did not come up in time", _LATER),
    StoreDown: ("the gateway can't reach its session store", _LATER),
    CircuitOpen: ("{backend} failed too often just now", _LATER),
    PoolFull: ("every connection to {backend} is in use", _LATER),
    Busy: ("{backend} is busy", _LATER),
    NoBackend: ("{backend} is not available", _LATER),
    OutcomeUnknown: ("{backend} did not answer", _MAYBE),
    ConnectionLost: ("the connection to {backend} broke before its answer", _MAYBE),
    AnswerTimeout: ("{backend} did not answer in time", _MAYBE),
    BadAnswer: ("{backend} gave no usable answer", _MAYBE),
    ChildDied: ("the program of {backend} ended before its answer", _MAYBE),
    WriteUnsettled: ("the gateway can't tell whether its session store took a write", _MAYBE),
    Rejected: ("{backend} refused the request", _OPERATOR),
    Unauthorized: ("{backend} does not accept the gateway's credentials", _OPERATOR),
    SessionReplaced: ("the session at {backend} was replaced", CALL_AGAIN),
    SessionExpired: ("the session has expired", "begin another"),
    Forbidden: ("{backend} does not allow this", _OPERATOR),
    NotFound: ("{backend} does not have this", "list again what there is"),
    Conflict: ("somebody else changed the same session first", "try again"),
    Ended: ("the session has ended", "begin another"),
    LimitReached: ("a limit was reached", "ask for less, end sessions that are done, or try again{wait}"),
    CorruptRecord: ("what was stored of this session can't be read", _OPERATOR),
    UsageError: ("{backend} can't be used as it is configured", _OPERATOR),
    HoldfastError: ("the request could not be answered", _OPERATOR),
}


@dataclass(frozen=True, slots=True)
class Disclosure:
    """An error as a caller may see it."""

    text: str
    fields: Mapping[str, Any]
    """For programs: family, kind, and where known the backend (`server`), `retry_after`, `attempts`."""


def disclosed(error: HoldfastError) -> Disclosure:
    """What a caller may see of an error."""
    row = next(_SENTENCES[kind] for kind in type(error).__mro__ if kind in _SENTENCES)
    backend = f"backend {error.server!r}" if error.server is not None else "the gateway"
    wait = f" in {error.retry_after:g} s" if error.retry_after else " later"
    text = "; ".join(part.format(backend=backend, wait=wait) for part in row)
    if isinstance(error, LimitReached) and error.limit is not None and error.actual is not None:
        text = f"{text} ({error.actual} of {error.limit})"
    return Disclosure(text, _fields(error))


def _fields(error: HoldfastError) -> dict[str, Any]:
    fields: dict[str, Any] = {"family": family(error), "kind": type(error).__name__}
    for name in ("server", "retry_after", "attempts"):
        if (value := getattr(error, name)) is not None:
            fields[name] = value
    return fields


def family(error: HoldfastError) -> str:
    """Which of the four families it belongs to: what may be done next."""
    for kind in (Unavailable, OutcomeUnknown, Rejected):
        if isinstance(error, kind):
            return kind.__name__
    return UsageError.__name__


def rpc_error(error: HoldfastError) -> dict[str, Any]:
    """The error object of a JSON-RPC answer."""
    if isinstance(error, ErrorAnswer):
        told: dict[str, Any] = {
            "code": error.code or INTERNAL_ERROR,
            "message": error.message or "the server answered with an error and no words",
        }
        return told if error.data is None else {**told, "data": error.data}
    seen = disclosed(error)
    return {"code": INTERNAL_ERROR, "message": seen.text, "data": dict(seen.fields)}
