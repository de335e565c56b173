"""Between records and bytes. It owns encoding, size limits and the fields that are checked before any store is asked.

It refuses what would not come back equal, and reads nothing that it could not have written.
"""

import secrets
from collections.abc import Sequence
from typing import cast

from holdfast.core import values
from holdfast.core.models import LogEntry, Record
from holdfast.core.records import Row, Write, record_of
from holdfast.core.values import JSON
from holdfast.errors import CorruptRecord, LimitReached, UsageError


class Codec:
    """Plain JSON bodies. A sealing codec overrides `seal` and `unseal`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def write(self, record: Record, expect: int, entries: Sequence[JSON], fence: int | None) -> Write:
        """A commit, checked and encoded."""
        if type(expect) is not int or expect < 0:
            raise UsageError(f"expect must be the rev that was read, or 0 to create, not {expect!r}")
        if record.ended is not None:
            raise UsageError(f"{record.kind}/{record.id} is dead; a tombstone can't be committed")
        body = self._encode(record, expect + 1, "data", record.data)
        log = self._encode(record, expect + 1, "entries", list(entries)) if entries else None
        return Write(
            kind=record.kind,
            id=record.id,
            principal=record.principal,
            expect=expect,
            body=body,
            idle=None if record.idle is None else float(record.idle),
            max_age=None if record.max_age is None else float(record.max_age),
            created=record.created,
            entries=log,
            count=len(entries),
            fence=fence,
            nonce=secrets.token_hex(8),
        )

    def record(self, row: Row, now: float) -> Record:
        """What a reader sees of a row."""
        if row.state(now) != "live":
            return record_of(row, now, None)
        return record_of(row, now, self._decode(row.kind, row.id, row.principal, row.rev, "data", row.body))

    def entries(
        self, kind: str, id: str, principal: str, rev: int, last: int, at: float, body: bytes
    ) -> list[LogEntry]:
        """The log entries of one commit; `last` is the number of the last one."""
        found = self._decode(kind, id, principal, rev, "entries", body)
        if not isinstance(found, list) or not found or last < len(found):
            raise corrupt(kind, id, f"the log entries of rev {rev} are not a list that ends at {last}")
        first = last - len(found) + 1
        return [LogEntry(first + index, rev, at, data) for index, data in enumerate(found)]

    def seal(self, name: tuple[str, str, str, int, str], body: bytes) -> bytes:
        return body

    def unseal(self, name: tuple[str, str, str, int, str], body: bytes) -> bytes:
        return body

    def _encode(self, record: Record, rev: int, part: str, value: object) -> bytes:
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
        return self.seal((record.kind, record.id, record.principal, rev, part), body)

    def _decode(self, kind: str, id: str, principal: str, rev: int, part: str, body: bytes | None) -> JSON:
        if body is None:
            raise corrupt(kind, id, f"a live record without {part}")
        try:
            return values.decode(self.unseal((kind, id, principal, rev, part), body))
        except (ValueError, RecursionError) as error:
            raise corrupt(kind, id, f"its {part} can't be read: {error}") from None


def corrupt(kind: str, id: str, why: str) -> CorruptRecord:
    """Something is there, and it is not ours. Never to be mistaken for absent."""
    return CorruptRecord(
        f"{kind}/{id} is not a record that Holdfast wrote: {why}",
        kind=kind,
        id=id,
        remedy="restore it from a backup, or end it",
    )


def checked_row(kind: object, id: object, fields: Sequence[object]) -> Row:
    """A row whose every field has the type that Holdfast writes, or `CorruptRecord`.

    `fields` in order: principal, rev, body, last, created, touched, idle, max_age, ended, nonce.
    """
    if len(fields) != len(_COLUMNS):
        raise corrupt(str(kind), str(id), f"{len(fields)} fields instead of {len(_COLUMNS)}")
    for value, (name, types) in zip(fields, _COLUMNS, strict=True):
        if type(value) not in types:
            raise corrupt(str(kind), str(id), f"{name} is a {type(value).__name__}")
    row = Row(cast("str", kind), cast("str", id), *fields)  # type: ignore[arg-type]  # checked just above
    if row.rev < 1 or row.last < 0:
        raise corrupt(row.kind, row.id, f"rev {row.rev}, last entry {row.last}")
    return row


_NONE = type(None)
_COLUMNS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("principal", (str,)),
    ("rev", (int,)),
    ("body", (bytes, _NONE)),
    ("last", (int,)),
    ("created", (float,)),
    ("touched", (float,)),
    ("idle", (float, _NONE)),
    ("max_age", (float, _NONE)),
    ("ended", (float, _NONE)),
    ("nonce", (str,)),
)
