"""One SQLite connection and the thread that runs its work.

The thread does not keep the process alive, skips work whose caller was cancelled, and closing it is bounded.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import aiosqlite

T = TypeVar("T")


class FileReplaced(Exception):
    """The file that we have open is no longer the file at the path: what we write would be lost."""


def _text(raw: bytes) -> str:
    """Text as it stands in the file. What is damaged must not keep a query from the rows that are not."""
    return raw.decode("utf-8", "surrogateescape")


class SqliteThread:
    """A connection in autocommit mode. `run` puts a function on its thread; functions run one after another."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._connection: aiosqlite.Connection | None = None
        self._file = (0, 0)

    async def open(self) -> None:
        connection = aiosqlite.connect(self._path, timeout=self._timeout, isolation_level=None)
        # aiosqlite has no public setting for this: a store that was never closed must not hang the exit.
        thread = connection._thread  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        thread.daemon = True
        try:
            self._connection = await connection
        except BaseException:
            # aiosqlite asks its thread to stop and does not wait for it; a thread that outlives the event loop fails
            # because it can't report to the loop.
            while thread.is_alive():
                await asyncio.sleep(0.001)
            raise
        connection.text_factory = _text
        self._file = self._identity()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What the function returned. If the caller is cancelled before its turn comes, it never runs."""
        connection = self._connection
        if connection is None:
            raise sqlite3.ProgrammingError("the connection is closed")
        abandoned = False

        def turn(db: sqlite3.Connection) -> T:
            if abandoned:
                raise asyncio.CancelledError
            if self._identity() != self._file:
                raise FileReplaced(str(self._path))
            return work(db)

        # aiosqlite has no public way to run one function on the connection's thread, and a transaction made of
        # awaited statements could be cut in two by a cancelled caller. tests/stores/sqlite/test_thread.py asserts it.
        run = cast("Callable[..., Coroutine[Any, Any, T]]", connection._execute)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            return await run(turn, connection._conn)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        finally:
            abandoned = True

    async def read(self, sql: str, given: Sequence[object]) -> list[Any]:
        connection = self._connection
        if connection is None:
            raise sqlite3.ProgrammingError("the connection is closed")
        return cast("list[Any]", await connection.execute_fetchall(sql, given))

    async def close(self, seconds: float) -> bool:
        """False if the thread was still busy: then it closes when it is done, and is not waited for."""
        connection, self._connection = self._connection, None
        if connection is None:
            return True
        stopped = cast("asyncio.Future[Any] | None", cast("Any", connection).stop())
        return stopped is None or bool((await asyncio.wait([stopped], timeout=seconds))[0])

    def _identity(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)  # noqa: PTH116  # on the hot path: a microsecond less
        except OSError:
            return (0, 0)
        return found.st_dev, found.st_ino
