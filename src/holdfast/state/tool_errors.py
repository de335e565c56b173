"""Holdfast's errors as tool errors: instances of the framework's own class too, so that it shows their text to the
caller.

The name of a store, its address and the owner of a claim are logged and never shown to a caller.
"""

import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from holdfast.errors import (
    Busy,
    ConfigError,
    Conflict,
    CorruptRecord,
    Ended,
    Forbidden,
    HoldfastError,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    Rejected,
    SessionExpired,
    StoreDown,
    Unavailable,
    UnstorableValue,
    UsageError,
)

log = logging.getLogger(__name__)
E = TypeVar("E", bound=HoldfastError)
_FAULTS = (StoreDown, OutcomeUnknown, CorruptRecord, UsageError)


def shown(error: HoldfastError, also: type[Exception] | None) -> HoldfastError:
    """The same error as an instance of the framework's class too; the text of others is hidden from the caller."""
    if also is not None and not isinstance(error, also):
        detail = str(error)
        if (text := caller_text(error)) != detail:
            level = logging.ERROR if issubclass(type(error), _FAULTS) else logging.INFO
            log.log(level, "a call failed, and its caller reads %r: %s", text, detail)
        error.__class__ = _both(type(error), also)
        for name, value in vars(also("")).items():  # set by its own constructor otherwise
            error.__dict__.setdefault(name, logging.INFO if name == "log_level" else value)
    return error


@contextmanager
def showing(also: type[Exception] | None) -> Generator[None]:
    """Raise Holdfast's errors inside the block as the framework's class too."""
    try:
        yield
    except HoldfastError as error:
        raise shown(error, also) from error.__cause__


@contextmanager
def showing_ours(also: type[Exception]) -> Generator[None]:
    """Like `showing`, for blocks with only Holdfast's code:
    any other error, such as a store's, may name an address, so it is logged and raised without its text.
    """
    try:
        with showing(also):
            yield
    except (HoldfastError, also):
        raise
    except Exception as error:
        log.exception("a call failed, and its caller gets a general text")
        raise also("the server failed, and the reason is in its operator's log") from error


_classes: dict[tuple[type, type], type] = {}


def _both(ours: type[HoldfastError], theirs: type[Exception]) -> type[HoldfastError]:
    if (ours, theirs) not in _classes:
        _classes[ours, theirs] = type(
            ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__str__": caller_text}
        )
    return _classes[ours, theirs]


def reworded(error: E, what: str, remedy: str) -> E:
    """A store's error in words for a tool's caller, who then gets these."""
    error.what, error.remedy = what, remedy
    error.kind = error.store = None
    return error


def caller_text(error: HoldfastError) -> str:
    """What a tool's caller reads of an error: what happened and what to do next, without handles, addresses, owners or
    words of a store."""
    general = _for_callers(error)
    if general is not None:
        return general
    what, remedy = _scrubbed(error.what), error.remedy
    if not remedy or _FOR_OPERATORS.search(remedy):
        remedy = next((step for kind, step in NEXT_STEP if isinstance(error, kind)), LAST_STEP)
    return f"{what}; {_scrubbed(remedy)}"


def _for_callers(error: HoldfastError) -> str | None:
    """The general text for an error whose own words are a store's; None for one that was written for callers."""
    match error:
        case OutcomeUnknown():
            return "the server's store did not confirm that this was saved: read it first, and try again if it was not"
        case StoreDown():
            return "the server's store does not answer, and this was not kept; do it again later"
        case CorruptRecord(phase="upgrade"):
            return "a newer release of this server wrote this, and this one can't read it; do it again in a moment"
        case CorruptRecord():
            return "what was kept here can't be read until the server's operator repairs it; begin another one"
        case ConfigError() | HoldfastError(store=str()):
            return "the server can't use its store until its operator corrects that; do it again later"
        case HoldfastError(kind=str()):
            return next((text for kind, text in OF_A_STORE if isinstance(error, kind)), None) or _UNKNOWN
        case _:
            return None


_NO_SUCH = "there is no such thing for this caller; look at the id, or begin another one"
OF_A_STORE: Sequence[tuple[type[HoldfastError], str]] = (
    (Busy, "another call is at work on this, and nothing of this one was kept; do it again in a moment"),
    (Conflict, "another call was faster, and nothing of this one was kept; read it again, then do it again"),
    (Ended, "this was ended, and nothing brings it back; begin another one"),
    (SessionExpired, "this has expired, and what it held is gone; begin another one"),
    (NotFound, _NO_SUCH),
    (Forbidden, _NO_SUCH),
    (LimitReached, "this would be larger than the server keeps, and nothing of it was kept; do it in smaller parts"),
    (UnstorableValue, "the server can't keep what this call has made; give other values"),
)
"""General texts for what a store refuses."""

NEXT_STEP: Sequence[tuple[type[HoldfastError], str]] = (
    (Unavailable, "nothing was kept, so do it again later"),
    (Conflict, "read it again, then do it again"),
    (Ended, "begin another one"),
    (SessionExpired, "begin another one"),
    (NotFound, "look at the id, or begin another one"),
    (Rejected, "the same call will be refused again: change it first"),
)
"""What to do next after an error that does not say it itself."""
LAST_STEP = "go on without this tool: the server's author has to correct it"
_UNKNOWN = "the server could not do this, and its operator can read why in the log; do it again later"
_HANDLE = re.compile(r"'?\b(?:state(?:-[a-z]+)?/)?s_[A-Za-z0-9_-]{32}(?:\.[\w-]+)?'?")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S*[^\s,;:.)'\"]")
_FOR_OPERATORS = re.compile(r"\bholdfast (?:store|state|serve|check)\b|\bURL KIND ID\b")


def _scrubbed(text: str) -> str:
    """Without handles, which are as good as a password, and addresses."""
    return _ADDRESS.sub("the store", _HANDLE.sub("this session", text))
