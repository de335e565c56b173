"""Between records and bytes: encoding, size limits, and checks of fields before a store is asked.

What would not come back equal is refused, and bytes that it could not have written are corrupt.
"""

import secrets
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias, cast

from holdfast.core import values
from holdfast.core.models import Claim, LogEntry, Record, Write, check_key
from holdfast.core.records import EncodedWrite, Key, LogRow, Row, record_of
from holdfast.core.values import JSON
from holdfast.errors import ConfigError, CorruptRecord, LimitReached, UsageError
from holdfast.stores.contract import MAX_AT_ONCE, MAX_COMMIT_BYTES, TURNS

SEALED = b"\x01hf"  # how a sealed body begins, which no JSON text does
MAX_NUMBER = 2**53  # of revs and tokens: exact in every store, and out of reach
MAX_NOTICE_BYTES = 4096  # a notice is a hint; PostgreSQL carries 8,000 bytes in all

Name: TypeAlias = tuple[str, str, str, int, str]
"""What a body belongs to: kind, id, principal, rev, and the part (`data` or `entries`)."""


class Codec:
    """Plain JSON bodies. A sealing codec overrides `seal` and `unseal`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def write(self, record: Record, expect: int, entries: Sequence[JSON], fence: int | None) -> EncodedWrite:
        """A commit, checked and encoded."""
        if type(expect) is not int or not 0 <= expect < MAX_NUMBER:
            raise UsageError(f"expect must be the rev that was read, or 0 to create, not {expect!r:.80}")
        check_fence(fence)
        if record.ended is not None:
            raise UsageError(f"{record.kind}/{record.id} is dead; a tombstone can't be committed")
        if isinstance(entries, str | bytes | dict):
            raise UsageError(f"entries must be a list of values, not one {type(entries).__name__}")
        plain = self._encode(record, "data", record.data)
        log = self._encode(record, "entries", list(entries)) if entries else None
        name = record.kind, record.id, record.principal, expect + 1
        return EncodedWrite(
            kind=record.kind,
            id=record.id,
            principal=record.principal,
            expect=expect,
            body=self.seal((*name, "data"), plain),
            plain=plain,
            idle=None if record.idle is None else float(record.idle),
            max_age=None if record.max_age is None else float(record.max_age),
            created=record.created,
            entries=None if log is None else self.seal((*name, "entries"), log),
            added=len(entries),
            fence=fence,
            nonce=secrets.token_hex(8),
        )

    def writes(self, writes: Sequence[Write]) -> list[EncodedWrite]:
        """The commits of one step, checked and encoded; within the limit for all of them together."""
        encoded = [self.write(write.record, write.expect, write.entries, write.fence) for write in writes]
        total = sum(len(write.body) + len(write.entries or b"") for write in encoded)
        limit = max(MAX_COMMIT_BYTES, 2 * self._max_bytes)  # one record and its entries always fit
        if len(encoded) > 1 and total > limit:
            raise LimitReached(
                f"a commit of {len(encoded)} records takes {total:,} bytes, more than {limit:,}",
                limit=limit,
                actual=total,
                remedy="store less, or commit in several steps",
            )
        return encoded

    def record(self, row: Row, now: float) -> Record:
        """What a reader sees of a row."""
        live = row.state(now) == "live"
        data = self._decode(row.kind, row.id, row.principal, row.rev, "data", row.body) if live else None
        try:
            return record_of(row, now, data)
        except UsageError as error:  # a name or span that no record can have
            raise corrupt(row.kind, row.id, error.what) from None

    def read(self, now: float, found: Sequence[object]) -> Record:
        """What a reader sees of a row as a database has it: kind, id, and the fields of `checked_row`."""
        return self.record(checked_row(found[0], found[1], found[2:]), now)

    def entries(self, kind: str, id: str, principal: str, row: LogRow) -> list[LogEntry]:
        """The log entries of one commit."""
        found = self._decode(kind, id, principal, row.rev, "entries", row.body)
        if not isinstance(found, list) or not found or row.last < len(found):
            raise corrupt(kind, id, f"the log entries of rev {row.rev} are not a list that ends at {row.last}")
        first = row.last - len(found) + 1
        return [LogEntry(first + index, row.rev, row.at, data) for index, data in enumerate(found)]

    def log(
        self, kind: str, id: str, principal: str, rows: Iterable[LogRow], after: int, limit: int, newest_first: bool
    ) -> list[LogEntry]:
        """A page of entries from the rows that hold them."""
        found = [e for row in rows for e in self.entries(kind, id, principal, row) if e.seq > after]
        found.sort(key=lambda entry: entry.seq)
        if any(later.rev < earlier.rev for earlier, later in pairwise(found)):
            raise corrupt(kind, id, "its log is out of order")
        return found[: -limit - 1 : -1] if newest_first else found[:limit]

    def notice(self, topic: str, data: JSON) -> bytes:
        """The body of a notice. Notices are never sealed: they are hints, and carry no state."""
        body = values.encode(data)
        if len(body) > MAX_NOTICE_BYTES:
            raise LimitReached(
                f"a notice on {topic} takes {len(body):,} bytes, more than {MAX_NOTICE_BYTES:,}",
                limit=MAX_NOTICE_BYTES,
                actual=len(body),
                remedy="commit the data and publish its kind and id",
            )
        return body

    def turn_notice(self, claim: Claim) -> bytes:
        """The body of the notice that a claim was released."""
        return self.notice(TURNS, {"kind": claim.kind, "id": claim.id})

    def seal(self, name: Name, body: bytes) -> bytes:
        return body

    def unseal(self, name: Name, body: bytes) -> bytes:
        if body.startswith(SEALED):
            raise ConfigError(
                f"{name[0]}/{name[1]} is sealed, and the store was opened without keys",
                kind=name[0],
                id=name[1],
                remedy="open it with open_store(keys=…), or HOLDFAST_KEYS for the command line",
            )
        return body

    def _encode(self, record: Record, part: str, value: object) -> bytes:
        body = values.encode(value, part)
        if len(body) > self._max_bytes:
            raise LimitReached(
                f"{part} of {record.kind}/{record.id} takes {len(body):,} bytes, more than {self._max_bytes:,}",
                limit=self._max_bytes,
                actual=len(body),
                kind=record.kind,
                id=record.id,
                remedy="store less, or raise open_store(max_bytes=…)",
            )
        return body

    def _decode(self, kind: str, id: str, principal: str, rev: int, part: str, body: bytes | None) -> JSON:
        if body is None:
            raise corrupt(kind, id, f"a live record without {part}")
        try:
            return values.decode(self.unseal((kind, id, principal, rev, part), body))
        except (ValueError, RecursionError) as error:
            raise corrupt(kind, id, f"its {part} can't be read: {error}") from None


def check_keys(keys: Sequence[Key], what: str, *, once: bool = True) -> list[Key]:
    """The names of several records or claims: no more than one step takes, and with `once` none of them twice."""
    if len(keys) > MAX_AT_ONCE:
        raise LimitReached(
            f"{len(keys)} {what} at once, more than {MAX_AT_ONCE}",
            limit=MAX_AT_ONCE,
            actual=len(keys),
            remedy="take several steps",
        )
    names = [(kind, id) for kind, id in keys]
    for kind, id in names:
        check_key(kind, id)
    if once and len(set(names)) < len(names):
        kind, id = next(name for index, name in enumerate(names) if name in names[:index])
        raise UsageError(
            f"{kind}/{id} is named twice among the {what} of one step", kind=kind, id=id, remedy="name it once"
        )
    return names


def check_claims(claims: Sequence[Claim]) -> None:
    """The claims to give up in one step."""
    check_keys([(claim.kind, claim.id) for claim in claims], "claims")
    for claim in claims:
        check_fence(claim.token)


def check_fence(fence: int | None) -> None:
    if fence is not None and (type(fence) is not int or abs(fence) >= MAX_NUMBER):
        raise UsageError(f"fence must be the token of a claim, not {fence!r:.80}", remedy="give claim.token")


def corrupt(kind: object, id: object, why: str) -> CorruptRecord:
    """The error for a row that Holdfast did not write. It is never treated as absent."""
    kind, id = (str(name).encode("utf-8", "backslashreplace").decode() for name in (kind, id))  # a log must take it
    return CorruptRecord(
        f"{kind}/{id} is not a record that Holdfast wrote: {why}",
        kind=kind,
        id=id,
        remedy="restore it from a backup, or end it: `holdfast store end URL KIND ID`",
    )


def checked_row(kind: object, id: object, fields: Sequence[object]) -> Row:
    """A row whose every field is one that Holdfast writes, or `CorruptRecord`.

    `fields` in order: principal, rev, body, last, created, touched, idle, max_age, ended, nonce.
    """
    if tuple(map(type, fields)) not in _SHAPES:
        raise corrupt(kind, id, f"its fields are {', '.join(type(field).__name__ for field in fields)}")
    row = Row(cast("str", kind), cast("str", id), *fields)  # type: ignore[arg-type]  # checked just above
    if row.rev < 1 or row.last < 0:
        raise corrupt(row.kind, row.id, f"rev {row.rev}, last entry {row.last}")
    # A span that is not positive would read as expired, and so as absent.
    if (row.idle is not None and not row.idle > 0) or (row.max_age is not None and not row.max_age > 0):
        raise corrupt(row.kind, row.id, f"spans of {row.idle} and {row.max_age} seconds")
    return row


def checked_log(kind: str, id: str, last: object, rev: object, at: object, body: object) -> LogRow:
    """A row of the log, or `CorruptRecord`."""
    match last, rev, at, body:
        case int(), int(), float(), bytes():
            return LogRow(last, rev, at, body)
        case _:
            raise corrupt(kind, id, "its log has fields of the wrong type")


_NONE = type(None)
_SHAPES = frozenset(
    (str, int, body, int, float, float, idle, max_age, ended, str)
    for body in (bytes, _NONE)
    for idle in (float, _NONE)
    for max_age in (float, _NONE)
    for ended in (float, _NONE)
)
"""The types that the fields of a row can have, all of them, so that one look-up decides."""
