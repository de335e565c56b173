"""Whole stores: moving one into another, and sealing one anew, row by row through its `Archive`.

Rows move as they are kept: same revs, times, nonces and sealed bytes, tombstones and logs included. What is
newer in the target is not overwritten. Claims are left behind: they are about processes, not about data.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from holdfast.core.models import check_name
from holdfast.core.records import LogRow, Row
from holdfast.errors import Conflict, CorruptRecord, UnstorableValue, UsageError
from holdfast.stores.codec import Name, corrupt
from holdfast.stores.contract import Store
from holdfast.stores.sealing import UNSEALED, SealingCodec

ROWS = 100  # held in memory at once
Place: TypeAlias = tuple[Any, Any]
"""Kind and id as they stand in the database: one flipped bit can turn text into something else."""


class Damaged(NamedTuple):
    """A row that is not one of ours any more, and where it stands among the others."""

    place: Place
    error: CorruptRecord


def kept(kind: Any, id: Any, read: Callable[[], Row]) -> Row | Damaged:
    """A row as an archive finds it. What is damaged keeps no other from being moved."""
    try:
        row = read()
        for name, what in ((row.kind, "kind"), (row.id, "id"), (row.principal, "principal")):
            check_name(name, what)
    except CorruptRecord as error:
        return Damaged((kind, id), error)
    except UnstorableValue as error:
        return Damaged((kind, id), corrupt(kind, id, error.what))
    return row


class Archive(Protocol):
    """Rows as they are kept, below the rules: for moving and mending, never for daily work."""

    async def rows(self, after: Place | None, limit: int) -> list[Row | Damaged]:
        """Rows behind `after`, dead ones too, ordered by kind and id."""
        ...

    async def row(self, kind: str, id: str) -> Row | None: ...

    async def log(self, kind: str, id: str, after: int, limit: int) -> list[LogRow]: ...

    async def put(self, row: Row) -> None:
        """Write the row as it is, over whatever was there."""
        ...

    async def put_log(self, kind: str, id: str, rows: Sequence[LogRow]) -> None:
        """Write log rows as they are; those that are there already are replaced."""
        ...

    async def drop_log(self, kind: str, id: str) -> None: ...

    async def swap(self, row: Row, body: bytes) -> bool:
        """Another body for the same content. False if the row was written meanwhile."""
        ...

    async def swap_log(self, kind: str, id: str, row: LogRow, body: bytes) -> bool: ...

    async def tokens(self, at_least: int = 0) -> int:
        """The last fencing token, after raising it to `at_least`."""
        ...


class Archived(Protocol):
    def archive(self) -> Archive: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """How far it is: one row more, copied or found to be there already."""

    kind: str
    id: str
    copied: bool
    damaged: CorruptRecord | None = None
    """Why nothing was copied or sealed: it can't be read."""


def archive_of(store: Store) -> Archive:
    if not hasattr(store, "archive"):
        raise UsageError(f"{type(store).__name__} can't be copied or sealed anew: it has no archive()")
    return cast("Archived", store).archive()


async def copy_store(source: Store, target: Store) -> AsyncGenerator[Moved, None]:
    """Copy every record, tombstone and log. Run it again after an interruption: what is there is passed over.

    So is what is damaged: it keeps no other row from being copied.
    """
    origin, destination = archive_of(source), archive_of(target)
    await destination.tokens(await origin.tokens())
    after = None
    while found := await origin.rows(after, ROWS):
        for row in found:
            yield await _moved(row, partial(_copy_row, origin, destination))
        after = _place(found[-1])


def _place(row: Row | Damaged) -> Place:
    return row.place if isinstance(row, Damaged) else (row.kind, row.id)


async def _moved(row: Row | Damaged, move: Callable[[Row], Awaitable[bool]]) -> Moved:
    if isinstance(row, Damaged):
        return Moved(row.error.kind or "", row.error.id or "", False, row.error)
    try:
        return Moved(row.kind, row.id, await move(row))
    except CorruptRecord as error:
        if error.phase == UNSEALED:  # the store was opened without its key: the same for all rows
            raise
        return Moved(row.kind, row.id, False, error)


async def _copy_row(origin: Archive, destination: Archive, row: Row) -> bool:
    there = await destination.row(row.kind, row.id)
    if there == row:
        return False
    if there is not None and (there.created, there.rev) > (row.created, row.rev):
        raise Conflict(
            f"{row.kind}/{row.id} is newer in the target (rev {there.rev}) than in the source (rev {row.rev})",
            expect=row.rev,
            actual=there.rev,
            kind=row.kind,
            id=row.id,
            remedy="copy into an empty store",
        )
    if there is not None and there.ended is not None and row.ended is None and there.created == row.created:
        raise Conflict(
            f"{row.kind}/{row.id} was ended in the target, and lives in the source",
            kind=row.kind,
            id=row.id,
            remedy="end it in the source too, or copy into an empty store",
        )
    if there is None or there.created != row.created or row.ended is not None:
        await destination.drop_log(row.kind, row.id)  # of another life, or of a copy that was interrupted
    after = 0
    try:
        while log := await origin.log(row.kind, row.id, after, ROWS):
            await destination.put_log(row.kind, row.id, log)
            after = log[-1].last
    except CorruptRecord:
        if there is None:  # a log without its record
            await destination.drop_log(row.kind, row.id)
        raise
    await destination.put(row)  # last, so that a row which is there has its log
    return True


async def reseal_store(store: Store, codec: SealingCodec, *, plaintext: bool = False) -> AsyncGenerator[Moved, None]:
    """Seal every body with the first key of the ring; plaintext only if it is to be trusted.

    Safe beside other writers: whatever they write is sealed with that key anyway. What is damaged is passed over.
    """
    archive = archive_of(store)
    after = None
    while found := await archive.rows(after, ROWS):
        for row in found:
            yield await _moved(row, partial(_reseal_row, archive, codec, plaintext=plaintext))
        after = _place(found[-1])


async def _reseal_row(archive: Archive, codec: SealingCodec, row: Row, *, plaintext: bool) -> bool:
    changed = False
    if row.body is not None and not codec.is_current(row.body):
        name: Name = (row.kind, row.id, row.principal, row.rev, "data")
        changed = await archive.swap(row, codec.reseal(name, row.body, plaintext=plaintext))
    seen = 0
    while log := await archive.log(row.kind, row.id, seen, ROWS):
        for entry in log:
            if not codec.is_current(entry.body):
                name = (row.kind, row.id, row.principal, entry.rev, "entries")
                changed |= await archive.swap_log(
                    row.kind, row.id, entry, codec.reseal(name, entry.body, plaintext=plaintext)
                )
        seen = log[-1].last
    return changed
