"""Holdfast's errors as tool errors: instances of the framework's own class too, so that it shows their text to the
caller.

The name of a store, its address and the owner of a claim are logged and never shown to a caller.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import CorruptRecord, HoldfastError, OutcomeUnknown, StoreDown

log = logging.getLogger(__name__)


def shown(error: HoldfastError, also: type[Exception] | None) -> HoldfastError:
    """The same error as an instance of the framework's class too; the text of others is hidden from the caller."""
    if also is not None and not isinstance(error, also):
        if _for_callers(error) is not None:
            log.error("a call failed on its store, and its caller gets a general text: %s", error)
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
            ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__str__": _caller_text}
        )
    return _classes[ours, theirs]


def _caller_text(error: HoldfastError) -> str:
    """The text for a caller: the error's own, unless it may name a store, its address or an owner."""
    return _for_callers(error) or HoldfastError.__str__(error)


def _for_callers(error: HoldfastError) -> str | None:
    match error:
        case OutcomeUnknown():
            return "the server's store did not confirm that this was saved: read it first, and try again if it was not"
        case StoreDown():
            return "the server's store does not answer, and this was not saved; try again later"
        case CorruptRecord():
            return "what is stored here can't be read until the server's operator repairs it; begin another one"
        case HoldfastError(store=str()):
            return "the server can't use its store until its operator corrects that"
        case _:
            return None
