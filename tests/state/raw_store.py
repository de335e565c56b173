"""Everything that a store has, as it lies there: for tests of what is left of somebody."""

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
import redis.asyncio

from holdfast.stores.contract import Store


async def raw(store: Store, url: str) -> str:
    """All tables and keys of a store in one text, bodies and indexes included."""
    if url == "memory:":
        return repr({name: value for name, value in vars(store).items() if name in ("_rows", "_logs", "_claims")})
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path)) as db:
            tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return repr([(table, db.execute(f"SELECT * FROM {table}").fetchall()) for table in tables])
    if url.startswith("postgres"):
        connection: Any = await asyncpg.connect(url)
        try:
            tables = [
                row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            ]
            return repr(
                [(table, [tuple(row) for row in await connection.fetch(f"SELECT * FROM {table}")]) for table in tables]
            )
        finally:
            await connection.close()
    client: Any = redis.asyncio.Redis.from_url(url)
    try:
        found: list[Any] = []
        read = {b"hash": client.hgetall, b"string": client.get}
        async for key in client.scan_iter(count=1000):
            kind = await client.type(key)
            found.append((key, await (read[kind](key) if kind in read else client.zrange(key, 0, -1))))
        return repr(found)
    finally:
        await client.aclose()
