"""Rows of a Redis store as they are kept, under the same keys as the scripts write."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from holdfast.core.records import LogRow, Row
from holdfast.stores.archive import Damaged, Place, kept
from holdfast.stores.redis.pool import RedisPool
from holdfast.stores.redis.rows import log_row_from, packed_log, row_from, text_of
from holdfast.stores.redis.scripts import FIELDS, SEPARATOR, bounds, name_of


class RedisArchive:
    """See `Archive`."""

    def __init__(self, pool: RedisPool, prefix: str, keep: float | None, run: Callable[..., Awaitable[Any]]) -> None:
        self._pool = pool
        self._prefix = prefix
        self._keep = keep
        self._run = run

    async def rows(self, after: Place | None, limit: int) -> list[Row | Damaged]:
        low, high = bounds(None, after)
        while names := await self._pool.command("ZRANGEBYLEX", f"{self._prefix}:ids", low, high, "LIMIT", 0, limit):
            rows = await self._pool.commands([("HMGET", self._key("r", name), *FIELDS) for name in names])
            found: list[Row | Damaged] = []
            for name, row in zip(names, rows, strict=True):
                kind, _, id = name.decode("utf-8", "surrogateescape").partition(SEPARATOR)
                if any(field is not None for field in row):
                    found.append(kept(kind, id, partial(row_from, kind, id, row)))
            if found:
                return found
            low = b"(" + names[-1]  # all of these were forgotten by the server; go on behind them
        return []

    async def row(self, kind: str, id: str) -> Row | None:
        found = await self._pool.command("HMGET", self._key("r", name_of(kind, id)), *FIELDS)
        return None if found[1] is None else row_from(kind, id, found)

    async def log(self, kind: str, id: str, after: int, limit: int) -> list[LogRow]:
        key = self._key("l", name_of(kind, id))
        found = await self._pool.command("ZRANGEBYSCORE", key, f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, limit)
        return [log_row_from(kind, id, body, last) for body, last in zip(found[::2], found[1::2], strict=True)]

    async def put(self, row: Row) -> None:
        name = name_of(row.kind, row.id)
        record, log = self._key("r", name), self._key("l", name)
        fields: list[Any] = ["p", row.principal, "r", row.rev, "l", row.last, "c", text_of(row.created)]
        fields += ["t", text_of(row.touched), "i", text_of(row.idle), "m", text_of(row.max_age)]
        fields += ["e", text_of(row.ended), "n", row.nonce]
        dies = row.expires if row.ended is None else row.ended
        by_time = f"{self._prefix}:{'exp' if row.ended is None else 'dead'}"
        commands: list[tuple[Any, ...]] = [
            ("DEL", record),
            ("HSET", record, *fields, *(() if row.body is None else ("b", row.body))),
            ("ZADD", f"{self._prefix}:ids", 0, name),
            ("ZADD", f"{self._prefix}:own:{row.principal}", 0, name),
            ("ZREM", f"{self._prefix}:exp", name),
            ("ZREM", f"{self._prefix}:dead", name),
        ]
        if dies is not None:
            commands.append(("ZADD", by_time, text_of(dies), name))
            if self._keep is not None:
                moment = f"{(dies + self._keep) * 1000:.0f}"
                commands += [("PEXPIREAT", record, moment), ("PEXPIREAT", log, moment)]
        await self._pool.commands(commands)

    async def put_log(self, kind: str, id: str, rows: Sequence[LogRow]) -> None:
        key = self._key("l", name_of(kind, id))
        for row in rows:
            await self._pool.commands(
                [("ZREMRANGEBYSCORE", key, row.last, row.last), ("ZADD", key, row.last, packed_log(row))]
            )

    async def drop_log(self, kind: str, id: str) -> None:
        await self._pool.command("UNLINK", self._key("l", name_of(kind, id)))

    async def swap(self, row: Row, body: bytes) -> bool:
        return bool(await self._run("swap", name_of(row.kind, row.id), str(row.rev), row.nonce, body))

    async def swap_log(self, kind: str, id: str, row: LogRow, body: bytes) -> bool:
        after = packed_log(LogRow(row.last, row.rev, row.at, body))
        return bool(await self._run("swap_log", name_of(kind, id), str(row.last), packed_log(row), after))

    async def tokens(self, at_least: int = 0) -> int:
        return int(await self._run("tokens", "", str(at_least)))

    def _key(self, part: str, name: str | bytes) -> bytes:
        return f"{self._prefix}:{part}:".encode() + (name if isinstance(name, bytes) else name.encode())
