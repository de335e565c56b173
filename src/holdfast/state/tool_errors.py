"""Errors of ours as tool errors: raised as a framework's own class too, so that it shows the caller their text.

A caller never reads the name of a store, its address or the owner of a claim; that is logged.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import CorruptRecord, HoldfastError, OutcomeUnknown, StoreDown

log = logging.getLogger(__name__)


def shown(error: HoldfastError, also: type[Exception] | None) -> HoldfastError:
    """The same error, which is also one of the framework's: others are hidden from the caller, text and all."""
    if also is not None and not isinstance(error, also):
        if _for_callers(error) is not None:
            log.error("a call failed on its store, and its caller gets a general text: %s", error)
        error.__class__ = _both(type(error), also)
        for name, value in vars(also("")).items():  # what its own constructor would have set
            error.__dict__.setdefault(name, logging.INFO if name == "log_level" else value)
    return error


@contextmanager
def showing(also: type[Exception] | None) -> Generator[None]:
    """Raise errors of ours inside the block as the framework's class, too."""
    try:
        yield
    except HoldfastError as error:
        raise shown(error, also) from error.__cause__


@contextmanager
def showing_ours(also: type[Exception]) -> Generator[None]:
    """Like `showing`, around code of ours alone: any other error, a foreign store's for instance, may name an address.
    It is logged, and raised without its text."""
    try:
        with showing(also):
            yield
    except (HoldfastError, also):
        raise
    except Exception as error:
        log.exception("a call failed, and its caller gets a general text")
        raise also("the server failed here, and its operator can read why in the log") from error


_classes: dict[tuple[type, type], type] = {}


def _both(ours: type[HoldfastError], theirs: type[Exception]) -> type[HoldfastError]:
    if (ours, theirs) not in _classes:
        _classes[ours, theirs] = type(
            ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__str__": _caller_text}
        )
    return _classes[ours, theirs]


def _caller_text(error: HoldfastError) -> str:
    """What a framework gives a caller: the error's own words, but none that name a store, its address or its owner."""
    return _for_callers(error) or HoldfastError.__str__(error)


def _for_callers(error: HoldfastError) -> str | None:
    match error:
        case OutcomeUnknown():
            return "the server's store did not confirm that this was kept: read it first, and do it again if it was not"
        case StoreDown():
            return "the server's store does not answer, and this was not kept; do it again later"
        case CorruptRecord():
            return "what was kept here can't be read until the server's operator repairs it; begin another one"
        case HoldfastError(store=str()):
            return "the server can't use its store until its operator corrects that"
        case _:
            return None
