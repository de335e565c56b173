"""Servers with session state that are ill on purpose: `python -m tests.testing.sick_servers ILLNESS PORT`.

STATE is a folder that all replicas share. All have the tools of a healthy one: create, add, slow, look and end.
"""

import asyncio
import os
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_access_token

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


def process_dict(server: "FastMCP[Any]") -> None:
    """State in the process: the tutorial's way."""
    lists: dict[str, list[str]] = {}

    def of(session_id: str) -> list[str]:
        if session_id not in lists:
            raise ToolError("no such session; call create")
        return lists[session_id]

    @server.tool
    def create() -> dict[str, str]:
        session_id = str(uuid.uuid4())
        lists[session_id] = []
        return {"session_id": session_id}

    @server.tool
    def add(article: str, session_id: str) -> str:
        of(session_id).append(article)
        return "ok"

    @server.tool
    async def slow(article: str, session_id: str) -> str:
        await asyncio.sleep(0.05)
        of(session_id).append(article)
        return "ok"

    @server.tool
    def look(session_id: str) -> list[str]:
        return of(session_id)

    @server.tool
    def end(session_id: str) -> str:
        of(session_id)
        del lists[session_id]
        return "ok"


def fastmcp_sessions(folder: Path) -> "FastMCP[Any]":
    """FastMCP's own sessions on a store that replicas share: it reads, changes and writes in three steps."""
    from fastmcp.server.sessions import SessionId, SessionProvider, get_session
    from key_value.aio.stores.filetree import FileTreeStore

    server: FastMCP[Any] = FastMCP("sick", session_state_store=FileTreeStore(data_directory=folder))
    server.add_provider(SessionProvider())

    @server.tool
    async def add(article: str, session_id: SessionId) -> str:
        session = await get_session(session_id)
        await session.set("items", [*await session.get("items", []), article])
        return "ok"

    @server.tool
    async def slow(article: str, session_id: SessionId) -> str:
        await asyncio.sleep(0.05)
        return await add(article, session_id)

    @server.tool
    async def look(session_id: SessionId) -> list[str]:
        return list(await (await get_session(session_id)).get("items", []))

    return server


class Rows:
    """Sessions in SQLite, whole and shared, but for the illnesses asked for."""

    def __init__(self, illnesses: set[str], folder: Path) -> None:
        self._ill = illnesses
        self._file = folder / "rows.db"
        with self._turn() as database:
            database.execute("CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, owner TEXT, ended INT)")
            database.execute("CREATE TABLE IF NOT EXISTS items (session TEXT, article TEXT)")

    @contextmanager
    def _turn(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=20, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    def create(self) -> str:
        session_id = uuid.uuid4().hex
        with self._turn() as database:
            database.execute("INSERT INTO sessions VALUES (?, ?, 0)", (session_id, self._caller()))
        return session_id

    def add(self, session_id: str, *articles: str) -> None:
        with self._turn() as database:
            self._check(database, session_id, writes=True)
            database.executemany("INSERT INTO items VALUES (?, ?)", [(session_id, each) for each in articles])

    def look(self, session_id: str) -> list[str]:
        with self._turn() as database:
            self._check(database, session_id)
            return [row[0] for row in database.execute("SELECT article FROM items WHERE session = ?", (session_id,))]

    def end(self, session_id: str) -> None:
        with self._turn() as database:
            self._check(database, session_id)
            database.execute("UPDATE sessions SET ended = 1 WHERE id = ?", (session_id,))

    def _caller(self) -> str:
        token = get_access_token()
        return str(token.subject or token.claims.get("sub")) if token is not None else ""

    def _check(self, database: sqlite3.Connection, session_id: str, writes: bool = False) -> None:
        found = database.execute("SELECT owner, ended FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if found is None and "says ok" in self._ill:
            return
        if found is None or (found[0] != self._caller() and "ignores principals" not in self._ill):
            if found is not None and "tells strangers" in self._ill:
                raise ToolError("this is another user's session")
            raise ToolError("no such session; call create")
        if found[1] and writes and "revives" in self._ill:
            database.execute("UPDATE sessions SET ended = 0 WHERE id = ?", (session_id,))
        elif found[1]:
            raise ToolError("this session was ended; call create")


def rows(server: "FastMCP[Any]", folder: Path, illnesses: set[str]) -> None:
    kept = Rows(illnesses, folder)

    @server.tool
    async def create() -> dict[str, str]:
        return {"session_id": kept.create()}

    @server.tool
    async def add(article: str, session_id: str) -> str:
        if "dies of odd handles" in illnesses and len(session_id) > 1000:
            os._exit(1)
        kept.add(session_id, article, f"wrapping of {article}")
        return "ok"

    @server.tool
    async def slow(article: str, session_id: str) -> str:
        if "half turns" in illnesses:
            kept.add(session_id, article)
            await asyncio.sleep(0.2)
            kept.add(session_id, f"wrapping of {article}")
        else:
            await asyncio.sleep(0.05)
            kept.add(session_id, article, f"wrapping of {article}")
        return "ok"

    @server.tool
    async def look(session_id: str) -> list[str]:
        return kept.look(session_id)

    @server.tool
    async def end(session_id: str) -> str:
        kept.end(session_id)
        return "ok"


def serve(illness: str, port: int) -> None:
    folder = Path(os.environ["STATE"])
    server: FastMCP[Any] = FastMCP("sick")
    if os.environ.get("TOKENS"):
        from fastmcp.server.auth import StaticTokenVerifier  # it takes half a second to import

        known = {token: {"client_id": "app", "sub": name, "scopes": []} for token, name in TOKENS.items()}
        server.auth = StaticTokenVerifier(tokens=known)
    if illness == "process dict":
        process_dict(server)
    elif illness == "fastmcp sessions":
        server = fastmcp_sessions(folder)
    else:
        rows(server, folder, set(illness.split(",")))
    server.run(transport="http", port=port, show_banner=False, log_level="ERROR")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
