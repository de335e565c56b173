"""The outcome of a request in one word: the same word in audit lines, metrics and spans.

A word says what the caller may rely on, not what it was shown: a call of unknown outcome is shown to a model as a
tool's error, and is `unknown` here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from holdfast.errors import ErrorAnswer, HoldfastError, OutcomeUnknown, Rejected, Unavailable


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool answered that it failed."""
    ERROR = "error"
    """The server answered with a JSON-RPC error."""
    UNAVAILABLE = "unavailable"
    """Nothing was executed."""
    UNKNOWN = "unknown"
    """It was sent, and no answer came."""
    REJECTED = "rejected"
    """The session was replaced, or had expired; or something else of ours refused the request."""
    REFUSED = "refused"
    """The gateway refused the request before any server saw it: malformed, or not allowed."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    """A mistake in the program."""


def outcome_of_result(result: Mapping[str, Any]) -> Outcome:
    """The outcome that a result tells."""
    return Outcome.TOOL_ERROR if result.get("isError") is True else Outcome.OK


def outcome_of_error(error: HoldfastError) -> Outcome:
    """The outcome that an error stands for."""
    if isinstance(error, ErrorAnswer):
        return Outcome.ERROR
    for kind, outcome in _BY_FAMILY:
        if isinstance(error, kind):
            return outcome
    return Outcome.FAILED


_BY_FAMILY: tuple[tuple[type[HoldfastError], Outcome], ...] = (
    (Unavailable, Outcome.UNAVAILABLE),
    (OutcomeUnknown, Outcome.UNKNOWN),
    (Rejected, Outcome.REJECTED),
)
