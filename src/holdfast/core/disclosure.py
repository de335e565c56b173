"""What a remote caller of the gateway may see of an error: family, kind, the backend's name, and what to do next.

All fronts report errors in this form. The sentence is `public_text()` of the error's class; the text, remedy and stderr
of the error itself may name commands, addresses, paths and settings, and go only to the operator's log. The exception
is `ErrorAnswer`, whose `message` and `data` are the backend's own answer to this caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ErrorAnswer, HoldfastError, OutcomeUnknown, Rejected, Unavailable, UsageError

CALL_AGAIN = "the server started a new session; what it kept is gone; call again to continue"
INTERNAL_ERROR = -32603


@dataclass(frozen=True, slots=True)
class Disclosure:
    """An error as a caller may see it."""

    text: str
    fields: Mapping[str, Any]
    """For programs: family, kind, and where known the backend (`server`), `retry_after`, `attempts`."""


def disclosed(error: HoldfastError) -> Disclosure:
    """What a caller may see of an error."""
    return Disclosure(error.public_text(), _fields(error))


def _fields(error: HoldfastError) -> dict[str, Any]:
    fields: dict[str, Any] = {"family": family(error), "kind": type(error).__name__}
    for name in ("server", "retry_after", "attempts"):
        if (value := getattr(error, name)) is not None:
            fields[name] = value
    return fields


def family(error: HoldfastError) -> str:
    """The name of the error's family, which tells what may be done next."""
    for kind in (Unavailable, OutcomeUnknown, Rejected):
        if isinstance(error, kind):
            return kind.__name__
    return UsageError.__name__


def rpc_error(error: HoldfastError) -> dict[str, Any]:
    """The error object of a JSON-RPC answer."""
    if isinstance(error, ErrorAnswer):
        whole = error.answer
        if whole is not None and isinstance(whole.get("code"), int) and isinstance(whole.get("message"), str):
            return dict(whole)
        answer: dict[str, Any] = {
            "code": INTERNAL_ERROR if error.code is None else error.code,
            "message": error.message or "the server answered with an error without a message",
        }
        return answer if error.data is None else {**answer, "data": error.data}
    seen = disclosed(error)
    return {"code": INTERNAL_ERROR, "message": seen.text, "data": dict(seen.fields)}
