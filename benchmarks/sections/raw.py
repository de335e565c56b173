"""The same statements by hand on the raw drivers, without checks, translation or decisions."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import redis.asyncio

TASKS = (1, 16)
DATA: dict[str, Any] = {"session": "s" * 32, "backends": {f"b{n}": {"id": "x" * 32, "era": "2025"} for n in range(5)}}

Operation = Callable[[int], Awaitable[object]]
Subject = dict[str, Operation]  # operation name → what one task does, given its number


@asynccontextmanager
async def raw_sqlite(path: Path) -> AsyncIterator[Subject]:
    """The same tables and statements, written by hand on aiosqlite, without checks, translation or decisions."""
    db = await aiosqlite.connect(path, isolation_level=None)
    await db.execute("PRAGMA synchronous = FULL")
    lock = asyncio.Lock()
    revs = [1] * max(TASKS)
    lasts = [0] * max(TASKS)
    read = "SELECT principal, rev, body, last, created, touched, idle, max_age, ended FROM holdfast_records"
    one = "WHERE kind = 'bench' AND id = ?"

    async def fetch(sql: str, *given: object) -> Any:
        async with db.execute(sql, given) as cursor:
            return await cursor.fetchone()

    async def get(number: int) -> Any:
        row = await fetch(f"{read} {one}", str(number))
        return row[1], json.loads(row[2])

    async def write(number: int, data: object, entry: object = None) -> None:
        body = json.dumps(data).encode()
        now = time.time()
        async with lock:
            await db.execute("BEGIN IMMEDIATE")
            rev, last = await fetch(f"SELECT rev, last FROM holdfast_records {one}", str(number))
            last += entry is not None
            await db.execute(
                f"UPDATE holdfast_records SET rev = ?, body = ?, last = ?, touched = ?, nonce = 'x' {one}",
                (rev + 1, body, last, now, str(number)),
            )
            if entry is not None:
                await db.execute(
                    "INSERT INTO holdfast_log (kind, id, last, rev, at, body) VALUES ('bench', ?, ?, ?, ?, ?)",
                    (str(number), last, rev + 1, now, json.dumps([entry]).encode()),
                )
            await db.execute("COMMIT")
        revs[number], lasts[number] = rev + 1, last

    async def edit(number: int) -> None:
        _, data = await get(number)
        await write(number, {**data, "n": data["n"] + 1})

    async def append(number: int) -> None:
        await write(number, DATA, {"did": "append"})

    async def claim(number: int) -> None:
        async with lock:
            await db.execute("BEGIN IMMEDIATE")
            await fetch(f"SELECT owner, token, expires FROM holdfast_claims {one}", str(number))
            await db.execute("UPDATE holdfast_meta SET value = value + 1 WHERE name = 'token'")
            token = (await fetch("SELECT value FROM holdfast_meta WHERE name = 'token'"))[0]
            await db.execute(
                "INSERT OR REPLACE INTO holdfast_claims (kind, id, owner, token, expires) VALUES ('bench', ?, 'bench', ?, ?)",
                (str(number), token, time.time() + 60),
            )
            await db.execute("COMMIT")
        async with lock:
            await db.execute("BEGIN IMMEDIATE")
            await fetch(f"SELECT token FROM holdfast_claims {one}", str(number))
            await db.execute(f"DELETE FROM holdfast_claims {one}", (str(number),))
            await db.execute("COMMIT")

    try:
        yield {"get": get, "edit": edit, "append": append, "claim": claim}
    finally:
        await db.close()


@asynccontextmanager
async def raw_postgres(url: str) -> AsyncIterator[Subject]:
    """A connection for each task, which no pool could beat, and one statement for each step."""
    links: list[Any] = [await asyncpg.connect(url) for _ in range(max(TASKS))]
    await links[0].execute(
        "CREATE TABLE raw_records (kind text, id text, principal text, rev bigint, body bytea, last bigint, "
        "created float8, touched float8, idle float8, max_age float8, ended float8, nonce text, "
        "PRIMARY KEY (kind, id));"
        "CREATE TABLE raw_log (kind text, id text, last bigint, rev bigint, at float8, body bytea, "
        "PRIMARY KEY (kind, id, last));"
        "CREATE TABLE raw_claims (kind text, id text, owner text, token bigint, expires float8, "
        "PRIMARY KEY (kind, id));"
        "CREATE SEQUENCE raw_tokens"
    )
    for number in range(max(TASKS)):
        await links[0].execute(
            "INSERT INTO raw_records VALUES ('bench', $1, 'me', 1, $2, 0, 0, 0, NULL, NULL, NULL, 'x')",
            str(number),
            json.dumps({**DATA, "n": 0}).encode(),
        )
    now = "extract(epoch FROM clock_timestamp())::float8"
    revs = [1] * max(TASKS)
    write = (
        f"UPDATE raw_records SET rev = rev + 1, body = $1, touched = {now}, nonce = 'y', last = last + $2 "
        "WHERE kind = 'bench' AND id = $3 AND rev = $4 AND ended IS NULL RETURNING rev, last, created, touched"
    )

    async def get(number: int) -> Any:
        row = await links[number].fetchrow(
            "SELECT principal, rev, body, last, created, touched, idle, max_age, ended, nonce FROM raw_records "
            "WHERE kind = 'bench' AND id = $1",
            str(number),
        )
        return row[1], json.loads(row[2])

    async def edit(number: int) -> None:
        rev, data = await get(number)
        body = json.dumps({**data, "n": data["n"] + 1}).encode()
        revs[number] = (await links[number].fetchrow(write, body, 0, str(number), rev))[0]

    async def append(number: int) -> None:
        row = await links[number].fetchrow(
            f"WITH w AS ({write}), l AS (INSERT INTO raw_log SELECT 'bench', $3, last, rev, touched, $5::bytea FROM w) "
            "SELECT rev FROM w",
            *(json.dumps(DATA).encode(), 1, str(number), revs[number], json.dumps([{"did": "append"}]).encode()),
        )
        revs[number] = row[0]

    async def claim(number: int) -> None:
        row = await links[number].fetchrow(
            f"INSERT INTO raw_claims AS c VALUES ('bench', $1, 'me', nextval('raw_tokens'), {now} + 60) ON CONFLICT "
            "(kind, id) DO UPDATE SET owner = 'me', token = nextval('raw_tokens'), expires = excluded.expires "
            f"WHERE c.expires <= {now} OR c.owner = 'me' RETURNING token",
            str(number),
        )
        await links[number].execute(
            f"UPDATE raw_claims SET expires = {now} WHERE kind = 'bench' AND id = $1 AND token = $2",
            str(number),
            row[0],
        )

    try:
        yield {"get": get, "edit": edit, "append": append, "claim": claim}
    finally:
        for link in links:
            await link.close()


_WRITE = """
if redis.call('HGET', KEYS[1], 'r') ~= ARGV[1] then return false end
local rev = redis.call('HINCRBY', KEYS[1], 'r', 1)
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'b', ARGV[2], 't', t[1]..'.'..t[2], 'n', 'y')
if ARGV[3] ~= '' then
  local last = redis.call('HINCRBY', KEYS[1], 'l', 1)
  redis.call('ZADD', KEYS[2], last, rev..'|'..ARGV[3])
end
return rev
"""
_CLAIM = """
local c = redis.call('HMGET', KEYS[1], 'o', 'e')
local t = redis.call('TIME')
if c[1] and tonumber(c[2]) > tonumber(t[1]) and c[1] ~= ARGV[1] then return false end
local token = redis.call('INCR', 'raw:token')
redis.call('HSET', KEYS[1], 'o', ARGV[1], 't', token, 'e', tonumber(t[1]) + 60)
return token
"""
_RELEASE = "if redis.call('HGET', KEYS[1], 't') == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@asynccontextmanager
async def raw_redis(url: str) -> AsyncIterator[Subject]:
    """redis-py as its documentation uses it: one client, scripts registered once."""
    client: Any = redis.asyncio.from_url(url)
    write, take, give = (client.register_script(text) for text in (_WRITE, _CLAIM, _RELEASE))
    for number in range(max(TASKS)):
        body = json.dumps({**DATA, "n": 0})
        fields = {"p": "me", "r": 1, "b": body, "l": 0, "c": "0", "t": "0", "i": "", "m": "", "e": "", "n": "x"}
        await client.hset(f"raw:r:{number}", mapping=fields)
    revs = [1] * max(TASKS)

    async def get(number: int) -> Any:
        row = await client.hgetall(f"raw:r:{number}")
        return int(row[b"r"]), json.loads(row[b"b"])

    async def edit(number: int) -> None:
        rev, data = await get(number)
        body = json.dumps({**data, "n": data["n"] + 1})
        revs[number] = await write(keys=[f"raw:r:{number}", f"raw:l:{number}"], args=[rev, body, ""])

    async def append(number: int) -> None:
        keys, entry = [f"raw:r:{number}", f"raw:l:{number}"], json.dumps([{"did": "append"}])
        revs[number] = await write(keys=keys, args=[revs[number], json.dumps(DATA), entry])

    async def claim(number: int) -> None:
        token = await take(keys=[f"raw:c:{number}"], args=["me"])
        await give(keys=[f"raw:c:{number}"], args=[token])

    try:
        yield {"get": get, "edit": edit, "append": append, "claim": claim}
    finally:
        await client.aclose()
