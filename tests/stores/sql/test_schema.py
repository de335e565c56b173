"""The tables as a real SQLite and a real PostgreSQL hold them, column by column; and files from before they were
written by hand."""

import re
import secrets
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.core.models import LogEntry
from holdfast.stores import Record
from holdfast.stores.sql import schema
from tests.servers import Postgres

pytestmark = pytest.mark.anyio

# Version 2, column by column: the name, its kind of value, whether it may be empty. Keys and indexes are below.
TABLES: dict[str, dict[str, tuple[str, bool]]] = {
    "holdfast_meta": {"name": ("name", False), "value": ("number", False)},
    "holdfast_records": {
        "kind": ("name", False),
        "id": ("name", False),
        "principal": ("name", False),
        "rev": ("number", False),
        "body": ("bytes", True),
        "last": ("number", False),
        "created": ("float", False),
        "touched": ("float", False),
        "idle": ("float", True),
        "max_age": ("float", True),
        "ended": ("float", True),
        "nonce": ("text", False),
        "expires": ("float", True),
    },
    "holdfast_log": {
        "kind": ("name", False),
        "id": ("name", False),
        "last": ("number", False),
        "rev": ("number", False),
        "at": ("float", False),
        "body": ("bytes", False),
    },
    "holdfast_claims": {
        "kind": ("name", False),
        "id": ("name", False),
        "owner": ("name", False),
        "token": ("number", False),
        "expires": ("float", False),
        "awaited": ("number", False),
    },
}
DEFAULTS = {"awaited": "0"}
NOTICES = {"seq": ("number", False), "topic": ("name", False), "body": ("bytes", False), "at": ("float", False)}
KEYS = {
    "holdfast_meta": ["name"],
    "holdfast_records": ["kind", "id"],
    "holdfast_log": ["kind", "id", "last"],
    "holdfast_claims": ["kind", "id"],
}
INDEXES = {
    "holdfast_records_ended": ("holdfast_records", ["ended"]),
    "holdfast_records_expires": ("holdfast_records", ["expires"]),
    "holdfast_records_principal": ("holdfast_records", ["principal"]),
}
SQLITE_TYPES = {"name": "TEXT", "text": "TEXT", "number": "INTEGER", "bytes": "BLOB", "float": "DOUBLE"}
POSTGRES_TYPES = {
    "name": ("text", "C"),
    "text": ("text", "default"),
    "number": ("bigint", None),
    "bytes": ("bytea", None),
    "float": ("double precision", None),
}

# What SQLAlchemy 2.1 compiled for SQLite, to the letter but for white space, until the tables were written by hand.
COMPILED = """
CREATE TABLE IF NOT EXISTS holdfast_meta (
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO holdfast_meta (name, value) VALUES ('schema', 1);
CREATE TABLE holdfast_records (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    principal TEXT NOT NULL,
    rev INTEGER NOT NULL,
    body BLOB,
    last INTEGER NOT NULL,
    created DOUBLE NOT NULL,
    touched DOUBLE NOT NULL,
    idle DOUBLE,
    max_age DOUBLE,
    ended DOUBLE,
    nonce TEXT NOT NULL,
    expires DOUBLE,
    PRIMARY KEY (kind, id)
);
CREATE TABLE holdfast_log (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    last INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    at DOUBLE NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, id, last)
);
CREATE TABLE holdfast_claims (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    token INTEGER NOT NULL,
    expires DOUBLE NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE TABLE holdfast_notices (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    body BLOB NOT NULL,
    at DOUBLE NOT NULL
);
CREATE INDEX holdfast_records_ended ON holdfast_records (ended);
CREATE INDEX holdfast_records_expires ON holdfast_records (expires);
CREATE INDEX holdfast_records_principal ON holdfast_records (principal);
INSERT INTO holdfast_meta (name, value) VALUES ('token', 7);
INSERT INTO holdfast_records VALUES ('session', 'a', 'anonymous', 2, x'7b226e223a327d', 1, 100.0, 200.0,
    NULL, NULL, NULL, 'c0ffee', NULL);
INSERT INTO holdfast_log VALUES ('session', 'a', 1, 2, 200.0, x'5b22736169642e225d');
INSERT INTO holdfast_records VALUES ('session', 'b', 'anonymous', 1, NULL, 0, 100.0, 100.0,
    5000.0, NULL, 150.0, 'decaf', 5100.0);
"""


def _sqlite(path: Path) -> tuple[set[tuple[str, str, str]], dict[str, Any], dict[str, str]]:
    """Every object, the columns and index columns as SQLite reads them, and the text of each statement."""
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        details = {
            name: db.execute(f"PRAGMA {'table_xinfo' if kind == 'table' else 'index_xinfo'}({name})").fetchall()
            for kind, name, _, _ in rows
        }
    db.close()
    return {row[:3] for row in rows}, details, {row[1]: re.sub(r"\s+", "", row[3] or "") for row in rows}


@pytest.mark.promise("sqlite.schema")
async def test_sqlite_has_the_tables_that_are_written_here(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    async with holdfast.open_store(f"sqlite:///{path}"):
        pass
    objects, details, texts = _sqlite(path)
    assert objects == {
        *(("table", table, table) for table in [*TABLES, "holdfast_notices", "sqlite_sequence"]),
        *(("index", f"sqlite_autoindex_{table}_1", table) for table in TABLES),
        *(("index", name, table) for name, (table, _) in INDEXES.items()),
    }
    for table, columns in {**TABLES, "holdfast_notices": NOTICES}.items():
        key = KEYS.get(table, ["seq"])
        assert details[table] == [
            (
                place,
                name,
                SQLITE_TYPES[kind],
                not empty,
                DEFAULTS.get(name),
                key.index(name) + 1 if name in key else 0,
                0,
            )
            for place, (name, (kind, empty)) in enumerate(columns.items())
        ]
    wanted = {f"sqlite_autoindex_{table}_1": (table, key) for table, key in KEYS.items()} | INDEXES
    for name, (table, keyed) in wanted.items():
        found = [(column, way, order) for _, _, column, way, order, counts in details[name] if counts]
        assert found == [(column, 0, "BINARY") for column in keyed], table
    assert "AUTOINCREMENT" in texts["holdfast_notices"]


@pytest.mark.promise("sqlite.schema")
async def test_a_file_that_sqlalchemy_made_has_the_same_tables_and_opens(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with sqlite3.connect(old) as db:
        db.executescript(COMPILED)
    db.close()
    before = _sqlite(old)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        async with holdfast.open_store(f"sqlite:///{new}"):
            assert _sqlite(new) == before
    async with holdfast.open_store(f"sqlite:///{new}"):
        after = _sqlite(new)
    async with holdfast.open_store(f"sqlite:///{old}") as store:
        record = await store.get("session", "a")
        assert record == Record("session", "a", data={"n": 2}, rev=2, created=100.0, touched=200.0)
        assert await store.log("session", "a") == [LogEntry(1, 2, 200.0, "said.")]
        dead = await store.get("session", "b", dead=True)
        assert dead is not None
        assert dead.ended == 150.0
        assert (await store.commit(record.with_data({"n": 3}), expect=2)).rev == 3
        assert (await store.claim("session", "a", owner="me", ttl=10)).token == 8
    assert _sqlite(old) == after


@pytest.fixture
async def empty(postgres: Postgres) -> AsyncIterator[str]:
    """A database of its own."""
    name = f"t{secrets.token_hex(4)}"
    postgres.psql(f"CREATE DATABASE {name}")
    yield postgres.url.replace("/holdfast", f"/{name}")
    postgres.psql(f"DROP DATABASE {name}")


@pytest.mark.promise("store.open")
async def test_postgresql_has_the_tables_that_are_written_here(empty: str) -> None:
    async with holdfast.open_store(empty):
        pass
    db = await asyncpg.connect(empty)
    try:
        relations = await db.fetch(
            "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        )
        columns = await db.fetch(
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), l.collname, NOT a.attnotnull, "
            "a.atthasdef FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "LEFT JOIN pg_collation l ON l.oid = a.attcollation "
            "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0 "
            "ORDER BY c.relname, a.attnum"
        )
        constraints = await db.fetch(
            "SELECT conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = current_schema()::regnamespace AND contype <> 'n'"
        )
        indexes = await db.fetch("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()")
        sequence = await db.fetchrow(
            "SELECT data_type::text, start_value, min_value, max_value, increment_by, cycle, cache_size "
            "FROM pg_sequences WHERE sequencename = 'holdfast_tokens'"
        )
    finally:
        await db.close()
    assert {tuple(row) for row in relations} == {
        *((table, "r") for table in TABLES),
        *((f"{table}_pkey", "i") for table in TABLES),
        *((name, "i") for name in INDEXES),
        ("holdfast_tokens", "S"),
    }
    assert [tuple(row) for row in columns] == [
        (table, name, *POSTGRES_TYPES[kind], empty, name in DEFAULTS)
        for table in sorted(TABLES)
        for name, (kind, empty) in TABLES[table].items()
    ]
    assert {tuple(row) for row in constraints} == {
        (f"{table}_pkey", "p", f"PRIMARY KEY ({', '.join(key)})") for table, key in KEYS.items()
    }
    assert {tuple(row) for row in indexes} == {
        *(
            (f"{table}_pkey", f"CREATE UNIQUE INDEX {table}_pkey ON public.{table} USING btree ({', '.join(key)})")
            for table, key in KEYS.items()
        ),
        *(
            (name, f"CREATE INDEX {name} ON public.{table} USING btree ({', '.join(key)})")
            for name, (table, key) in INDEXES.items()
        ),
    }
    assert tuple(sequence) == ("bigint", 1, 1, 2**63 - 1, 1, False, 1)
