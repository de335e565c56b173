"""Rows of an SQL store as they are kept: statements that SQLite and PostgreSQL share, with numbered values."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from holdfast.core.records import LogRow, Row
from holdfast.stores.archive import Damaged, Place, kept
from holdfast.stores.codec import checked_log, checked_row

_FIELDS = "principal, rev, body, last, created, touched, idle, max_age, ended, nonce"
_PUT = f"INSERT INTO holdfast_records (kind, id, {_FIELDS}, expires) VALUES " + (
    "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (kind, id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in [*_FIELDS.split(", "), "expires"])
)
_PUT_LOG = (
    "INSERT INTO holdfast_log (kind, id, last, rev, at, body) VALUES ($1, $2, $3, $4, $5, $6) "
    "ON CONFLICT (kind, id, last) DO UPDATE SET rev = excluded.rev, at = excluded.at, body = excluded.body"
)

Ask = Callable[..., Awaitable[list[Any]]]
"""Run a statement with its values and return its rows."""
Behind = Callable[[Place], tuple[str, Sequence[object]]]
"""The condition for rows behind a place, and its values, numbered from 1."""


def behind_text(place: Place) -> tuple[str, Sequence[object]]:
    """In a database whose text is always text."""
    return "(kind, id) > ($1, $2)", place


class SqlArchive:
    """See `Archive`. `tokens` differs between databases and is given."""

    def __init__(self, ask: Ask, tokens: Callable[[int], Awaitable[int]], behind: Behind = behind_text) -> None:
        self._ask = ask
        self._tokens = tokens
        self._behind = behind

    async def rows(self, after: Place | None, limit: int) -> list[Row | Damaged]:
        condition, given = self._behind(after) if after is not None else ("TRUE", ())
        found = await self._ask(
            f"SELECT kind, id, {_FIELDS} FROM holdfast_records WHERE {condition} "
            f"ORDER BY kind, id LIMIT ${len(given) + 1}",
            *(*given, limit),
        )
        return [kept(row[0], row[1], partial(checked_row, row[0], row[1], row[2:])) for row in map(tuple, found)]

    async def row(self, kind: str, id: str) -> Row | None:
        found = await self._ask(f"SELECT {_FIELDS} FROM holdfast_records WHERE kind = $1 AND id = $2", kind, id)
        return checked_row(kind, id, tuple(found[0])) if found else None

    async def log(self, kind: str, id: str, after: int, limit: int) -> list[LogRow]:
        found = await self._ask(
            "SELECT last, rev, at, body FROM holdfast_log WHERE kind = $1 AND id = $2 AND last > $3 "
            "ORDER BY last LIMIT $4",
            *(kind, id, after, limit),
        )
        return [checked_log(kind, id, *row) for row in map(tuple, found)]

    async def put(self, row: Row) -> None:
        await self._ask(
            _PUT,
            *(row.kind, row.id, row.principal, row.rev, row.body, row.last, row.created, row.touched),
            *(row.idle, row.max_age, row.ended, row.nonce, row.expires),
        )

    async def put_log(self, kind: str, id: str, rows: Sequence[LogRow]) -> None:
        for row in rows:
            await self._ask(_PUT_LOG, kind, id, row.last, row.rev, row.at, row.body)

    async def drop_log(self, kind: str, id: str) -> None:
        await self._ask("DELETE FROM holdfast_log WHERE kind = $1 AND id = $2", kind, id)

    async def swap(self, row: Row, body: bytes) -> bool:
        found = await self._ask(
            "UPDATE holdfast_records SET body = $1 WHERE kind = $2 AND id = $3 AND rev = $4 AND nonce = $5 "
            "AND ended IS NULL RETURNING 1",
            *(body, row.kind, row.id, row.rev, row.nonce),
        )
        return bool(found)

    async def swap_log(self, kind: str, id: str, row: LogRow, body: bytes) -> bool:
        found = await self._ask(
            "UPDATE holdfast_log SET body = $1 WHERE kind = $2 AND id = $3 AND last = $4 AND rev = $5 AND body = $6 "
            "RETURNING 1",
            *(body, kind, id, row.last, row.rev, row.body),
        )
        return bool(found)

    async def tokens(self, at_least: int = 0) -> int:
        return await self._tokens(at_least)
