"""The data types: records, claims, log entries, notices, and a type for each identifier so that they can't be swapped.

All are frozen. Names that a log, a terminal or a database can't represent are rejected.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType, TypeAlias

from holdfast.core.values import JSON
from holdfast.errors import CorruptRecord, UnstorableValue, UsageError

Principal = NewType("Principal", str)
"""The authenticated caller (issuer, subject, client id)."""
FrontSessionId = NewType("FrontSessionId", str)
"""The id of a gateway session, as its client knows it."""
BackendSessionId = NewType("BackendSessionId", str)
"""The id of a link's session, as the server knows it."""
RunId = NewType("RunId", str)
"""The id of a durable run."""
Handle = NewType("Handle", str)
"""The handle of state on a server; an ordinary tool argument."""

ANONYMOUS = Principal("anonymous")

MAX_NAME = 512  # characters of an id, principal, owner or topic
MAX_KIND = 64  # characters; with an id of four-byte characters still within the 2,704 bytes of PostgreSQL's index

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+").fullmatch


def check_name(value: str, what: str, longest: int = MAX_NAME) -> str:
    """Return the name unchanged, or raise `UnstorableValue` that says what is wrong with it."""
    if type(value) is str and len(value) <= longest and _NAME(value):
        return value
    raise _bad_name(value, what, longest)


def _bad_name(value: object, what: str, longest: int) -> UnstorableValue:
    if type(value) is not str:
        return UnstorableValue(
            f"{what} must be a str, not {type(value).__name__}", path=what, remedy=f"give the {what} as a str"
        )
    if not value:
        return UnstorableValue(f"{what} is empty", path=what, remedy=f"give the {what} at least one character")
    if len(value) > longest:
        return UnstorableValue(
            f"{what} has {len(value)} characters, more than {longest}",
            path=what,
            remedy="shorten it, or use a digest of it",
        )
    place = next(place for place, character in enumerate(value) if not _NAME(character))
    return UnstorableValue(
        f"{what} has the control character {value[place]!r} at position {place}",
        path=what,
        remedy="use printable characters only",
    )


def check_key(kind: str, id: str) -> None:
    """The name of a record or claim."""
    check_name(kind, "kind", MAX_KIND)
    check_name(id, "id")


MAX_SPAN = 1e11  # seconds, three thousand years: a later time can't be written as a date


def check_seconds(value: float, what: str, *, zero: bool = False) -> None:
    """Return a length of time in seconds, or raise if it is not one."""
    if type(value) not in (int, float) or not (0 < value <= MAX_SPAN or (zero and value == 0)):
        raise UsageError(f"{what} must be a positive number of seconds, not {value!r:.80}")


@dataclass(frozen=True, slots=True)
class Record:
    """One durable record. The caller sets kind, id, principal, data, idle and max_age; the store sets the rest.

    `idle` and `max_age` are seconds, counted by the store's clock from `touched` and `created`, so that expiry never
    depends on a caller's clock. `data` is a copy: changing it changes no other record.
    """

    kind: str
    id: str
    principal: Principal = ANONYMOUS
    data: JSON = None
    idle: float | None = field(default=None, kw_only=True)
    max_age: float | None = field(default=None, kw_only=True)
    rev: int = field(default=0, kw_only=True)
    created: float = field(default=0.0, kw_only=True)
    touched: float = field(default=0.0, kw_only=True)
    ended: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_key(self.kind, self.id)
        check_name(self.principal, "principal")
        if self.idle is not None:
            check_seconds(self.idle, "idle")
        if self.max_age is not None:
            check_seconds(self.max_age, "max_age")

    @property
    def expires(self) -> float | None:
        """The time at which the record expires unless it is touched; None for never."""
        return expiry(self.created, self.touched, self.idle, self.max_age)

    @property
    def expired(self) -> bool:
        """Whether the record ended by expiry and not by an explicit end."""
        expires = self.expires
        return self.ended is not None and expires is not None and self.ended >= expires

    def with_data(self, data: JSON) -> "Record":
        """A copy of the record with other data, for `commit(…, expect=record.rev)`."""
        return self._with(data=data)

    def written(self, *, rev: int, created: float, touched: float) -> "Record":
        """A copy of the record as a commit leaves it, with its new `rev`, and when it was `created` and `touched`."""
        return self._with(rev=rev, created=created, touched=touched, ended=None)

    def _with(self, **changed: object) -> "Record":
        """`replace` for fields that need no check, in a third of the time."""
        made = object.__new__(Record)
        for name in Record.__slots__:
            object.__setattr__(made, name, changed[name] if name in changed else getattr(self, name))
        return made


def expiry(created: float, touched: float, idle: float | None, max_age: float | None) -> float | None:
    """The earlier of idle and maximum-age expiry, or None."""
    if idle is None:
        return None if max_age is None else created + max_age
    return touched + idle if max_age is None else min(touched + idle, created + max_age)


@dataclass(frozen=True, slots=True)
class Write:
    """One record of a commit: written if the stored rev is `expect` (0 creates), with `entries` for its log, and only
    while the claim with the token `fence` is held, if one is given."""

    record: Record
    expect: int = field(kw_only=True)
    entries: Sequence[JSON] = field(default=(), kw_only=True)
    fence: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a record's log. `seq` counts from 1 without gaps; `rev` is the commit that brought it."""

    seq: int
    rev: int
    at: float
    data: JSON


@dataclass(frozen=True, slots=True)
class Claim:
    """The exclusive right to act for (kind, id) until `expires`. `token` grows with every claim in a store."""

    kind: str
    id: str
    owner: str
    token: int
    expires: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A claim, and the record as it was when the claim was made; None if there was no live one."""

    claim: Claim
    record: Record | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a scan. Pass `next` as `after` to get the following page; None means that this was the last.

    Rows that can't be read as records are listed in `corrupt`.
    """

    records: tuple[Record, ...]
    next: str | None
    corrupt: tuple[CorruptRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a reap removed: expired records and old tombstones."""

    expired: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A small message between processes. Delivery is not guaranteed: when notices are lost, a `Gap` follows."""

    topic: str
    data: JSON


@dataclass(frozen=True, slots=True)
class Gap:
    """Notices were lost at this point: read the store again."""


NoticeOrGap: TypeAlias = Notice | Gap
