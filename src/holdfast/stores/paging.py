"""Pages of a scan: rows, cursors, sizes and filters. Callers treat a cursor as opaque."""

import json
import re
from collections.abc import Callable
from typing import Any, get_args

from holdfast.core.models import Page, Record, check_name, check_seconds
from holdfast.core.records import State
from holdfast.errors import ConfigError, CorruptRecord, UsageError

_DAMAGED = re.compile(r"[\ud800-\udfff]").search
MAX_PAGE = 10_000  # a page is held in memory whole


class Reading:
    """The rows of one page: records, and errors for those that are none. No row keeps the others from being read."""

    def __init__(self, report: Callable[[CorruptRecord], None]) -> None:
        self._report = report
        self._records: list[Record] = []
        self._corrupt: list[CorruptRecord] = []
        self._unopened: ConfigError | None = None

    def __len__(self) -> int:
        return len(self._records) + len(self._corrupt)

    def take(self, read: Callable[[], Record]) -> None:
        try:
            self._records.append(read())
        except CorruptRecord as error:
            self.refuse(error)
        except ConfigError as error:  # sealed with a key that is not there; or it is the row that is damaged
            self._unopened = self._unopened or error
            self.refuse(CorruptRecord(error.what, kind=error.kind or "", id=error.id or "", remedy=error.remedy or ""))

    def refuse(self, error: CorruptRecord) -> None:
        self._corrupt.append(error)
        self._report(error)

    def page(self, following: str | None) -> Page:
        """`ConfigError` if nothing could be read without a key: the store was opened without it."""
        if self._unopened is not None and not self._records:
            raise self._unopened
        return Page(tuple(self._records), following, tuple(self._corrupt))


def cursor(kind: object, id: object) -> str:
    """Behind this row. A scan passes damaged rows, too, so its name may be one that no record can have."""
    return json.dumps([_written(kind), _written(id)])


def _written(name: object) -> object:
    if isinstance(name, str):
        return name
    if isinstance(name, bytes):
        return {"blob": name.hex()}
    return {"number": float("-inf") if name is None else name}  # SQLite sorts NULL before every number


def position(after: str | None, *, damaged: bool = False) -> tuple[str, str] | None:
    """Where a cursor points, or `UsageError` for one that no scan gave out. `damaged` if the store may hold bytes that
    are no text, which are read as lone surrogates."""
    match position_in_file(after):
        case None:
            return None
        case (str(kind), str(id)) if damaged or not _DAMAGED(kind + id):
            return kind, id
        case _:
            raise _foreign(after)


def position_in_file(after: str | None) -> tuple[Any, Any] | None:
    """The same for SQLite, where one flipped bit can turn the text of a name into something else."""
    if after is None:
        return None
    try:
        match json.loads(after):
            case [kind, id]:
                return _read(kind), _read(id)
            case _:
                pass
    except (ValueError, TypeError, RecursionError):
        pass
    raise _foreign(after)


def _read(written: object) -> str | bytes | int | float:
    match written:
        case str() if "\0" not in written:
            written.encode("utf-8", "surrogateescape")  # the form in which damaged text is read
            return written
        case {"blob": str(text)}:
            return bytes.fromhex(text)
        case {"number": int() | float() as number}:
            return number
        case _:
            raise ValueError


def _foreign(after: object) -> UsageError:
    return UsageError(f"not a cursor of a scan: {str(after)[:80]!r}", remedy="give `after` the `next` of a page")


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit must be from 1 to {MAX_PAGE:,}, not {limit!r}")


def check_after(after: int) -> None:
    if type(after) is not int or not 0 <= after < 2**63:
        raise UsageError(f"after must be the number of a log entry, or 0, not {after!r:.80}")


def check_filters(kind: str | None, principal: str | None, state: str | None) -> None:
    if kind is not None:
        check_name(kind, "kind")
    if principal is not None:
        check_name(principal, "principal")
    if state is not None and state not in get_args(State):
        raise UsageError(f"state must be one of {', '.join(get_args(State))} or None, not {state!r:.80}")


def check_ages(kind: str | None, expired_for: float, ended_for: float) -> None:
    """What `reap` is asked: a negative age would reach into the living."""
    check_filters(kind, None, None)
    check_seconds(expired_for, "expired_for", zero=True)
    check_seconds(ended_for, "ended_for", zero=True)
