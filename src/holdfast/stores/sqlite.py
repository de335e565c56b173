"""The embedded store: one SQLite file, shared by the tasks and processes of one machine. The door to SQLite.

It owns two connections, one that writes and one that reads, each with a thread of its own. A write is one function on
the writing thread (begin, read, decide, write, commit), so a cancelled caller can't leave half of it behind and
writers queue without a lock. It refuses network file systems: SQLite's locks need a local disk.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import aiosqlite
from sqlalchemy.dialects.sqlite.aiosqlite import dialect as sqlite_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from holdfast.core import values
from holdfast.core.clock import Clock
from holdfast.core.events import ListenerFailed, RecordsReaped, Sink, StoreClosed, StoreMigrated, StoreOpened
from holdfast.core.models import Claim, Heard, LogEntry, Page, Reaped, Record, check_key, check_name, check_span
from holdfast.core.records import State, Write, record_of
from holdfast.core.values import JSON
from holdfast.errors import ConfigError, CorruptRecord, HoldfastError, LeaseClosed, StoreDown, WriteUnsettled
from holdfast.stores import schema, sqlite_steps
from holdfast.stores.base import CLOSE_SECONDS, PAGE, TOMBSTONE_SECONDS
from holdfast.stores.codec import Codec, checked_row, corrupt
from holdfast.stores.notices import Listeners
from holdfast.stores.paging import check_limit, cursor, position

POLL_SECONDS = 0.05  # how late a notice of another process may come; asking costs 0.1 ms

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Step = Callable[Concatenate[sqlite3.Connection, Clock, _P], _T]


class SqliteStore:
    """See `Store` for the contract."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        codec: Codec,
        create: bool = True,
        on_event: Sink | None = None,
        timeout: float = 5.0,
        synchronous: str = "FULL",
    ) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._clock = clock
        self._codec = codec
        self._create = create
        self._on_event = on_event
        self._timeout = timeout
        self._synchronous = synchronous
        self._engine: AsyncEngine | None = None
        self._connections: list[AsyncConnection] = []
        self._writer: aiosqlite.Connection | None = None
        self._reader: aiosqlite.Connection | None = None
        self._listeners = Listeners()
        self._poller: asyncio.Task[None] | None = None
        self._published = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} {'open' if self._writer else 'closed'}>"

    # Opening and closing

    async def __aenter__(self) -> Self:
        self._check_path()
        opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(opening)
        except BaseException:
            # Also if only the caller was cancelled: the threads that were started must not stay behind.
            with suppress(Exception):
                await opening
            await self._close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        closing = asyncio.create_task(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def _open(self) -> None:
        self._engine = create_async_engine(
            "sqlite+aiosqlite://",
            poolclass=NullPool,
            async_creator=partial(aiosqlite.connect, self._path, timeout=self._timeout, isolation_level=None),
        )
        writer = await self._connect(self._engine)
        before = await self._on(writer, self._migrate)
        self._reader = await self._connect(self._engine)
        self._writer = writer
        version = len(schema.MIGRATIONS)
        if before != version:
            self._tell(partial(StoreMigrated, store=self.url, before=before, after=version))
        self._tell(partial(StoreOpened, store=self.url, schema=version))

    async def _connect(self, engine: AsyncEngine) -> aiosqlite.Connection:
        try:
            connection = await engine.connect()
        except DBAPIError as error:
            raise self._translate(cast("sqlite3.Error", error.orig)) from error
        self._connections.append(connection)
        raw = await connection.get_raw_connection()
        driver = cast("aiosqlite.Connection", raw.driver_connection)
        await self._on(driver, self._prepare)
        return driver

    def _prepare(self, db: sqlite3.Connection) -> None:
        mode = db.execute("PRAGMA journal_mode").fetchone()[0]
        if mode != "wal":
            # Under the write lock's busy handler, which SQLite does not call for the change of mode itself.
            deadline = self._clock.monotonic() + self._timeout
            while mode != "wal":
                try:
                    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._clock.monotonic() > deadline:
                        raise
                    db.execute("BEGIN IMMEDIATE")
                    db.execute("ROLLBACK")
        db.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _migrate(self, db: sqlite3.Connection) -> int:
        dialect = sqlite_dialect()
        return sqlite_steps.migrate(
            db,
            schema.create_meta(dialect),
            schema.SCHEMA_VERSION,
            lambda version: schema.steps_from(version, dialect, self.url),
        )

    async def _close(self) -> None:
        was_open, self._writer, self._reader = self._writer is not None, None, None
        self._listeners.close()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
            self._poller = None
        async with asyncio.timeout(CLOSE_SECONDS):
            while self._connections:
                await self._connections.pop().close()
            if self._engine is not None:
                await self._engine.dispose()
                self._engine = None
        if was_open:
            self._tell(partial(StoreClosed, store=self.url))

    def _check_path(self) -> None:
        folder = self._path.parent
        if self._path.is_dir():
            raise ConfigError(f"{self._path} is a folder", store=self.url, remedy="name a file in it")
        if not folder.is_dir():
            raise ConfigError(
                f"the folder {folder} of the store {self._path.name} does not exist",
                store=self.url,
                remedy=f"create it: mkdir -p {folder}",
            )
        if not self._create and not self._path.exists():
            raise ConfigError(f"there is no store at {self._path}", store=self.url, remedy="check the path")

    # Records

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        check_key(kind, id)
        found = await self._read(sqlite_steps.GET, (kind, id))
        if not found:
            return None
        row = checked_row(kind, id, found[0])
        now = self._clock.now()
        return self._codec.record(row, now) if dead or row.state(now) == "live" else None

    async def commit(
        self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None
    ) -> Record:
        write = self._codec.write(record, expect, entries, fence)
        try:
            row, now = await self._write(sqlite_steps.commit, write)
        except _AnswerLost as lost:
            await self._settle(write, lost)
            return await self._committed(write)
        return record_of(row, now, record.data)

    async def _settle(self, write: Write, lost: "_AnswerLost") -> None:
        """The disk failed under a commit. Return if it happened all the same; say so if it did not."""
        try:
            found = await self._read(sqlite_steps.GET, (write.kind, write.id))
        except HoldfastError:
            raise WriteUnsettled(
                f"whether {write.kind}/{write.id} was written as rev {write.rev} is unknown: {lost}",
                kind=write.kind,
                id=write.id,
                store=self.url,
                remedy="read it again when the disk is back",
            ) from lost
        if not found or checked_row(write.kind, write.id, found[0]).nonce != write.nonce:
            raise StoreDown(str(lost), store=self.url, kind=write.kind, id=write.id) from lost

    async def _committed(self, write: Write) -> Record:
        record = await self.get(write.kind, write.id, dead=True)
        if record is None:
            raise corrupt(write.kind, write.id, "it vanished right after it was written")
        return record

    async def touch(self, kind: str, id: str) -> None:
        check_key(kind, id)
        await self._write(sqlite_steps.touch, kind, id)

    async def end(self, kind: str, id: str) -> bool:
        check_key(kind, id)
        return await self._write(sqlite_steps.end, kind, id)

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        check_limit(limit)
        check_key(kind, id)
        sql = sqlite_steps.LOG_NEWEST if newest_first else sqlite_steps.LOG
        found = await self._read(sql, (kind, id, max(after, 0), self._clock.now(), limit))
        entries = [
            entry
            for rev, last, at, body, principal in found
            for entry in self._codec.entries(kind, id, principal, rev, last, at, body)
            if entry.seq > after
        ]
        return sorted(entries, key=lambda entry: entry.seq, reverse=newest_first)[:limit]

    # Claims

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        check_key(kind, id)
        check_name(owner, "owner")
        check_span(ttl, "ttl")
        return await self._write(sqlite_steps.claim, kind, id, owner, ttl)

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        check_span(ttl, "ttl")
        return await self._write(sqlite_steps.renew, claim, ttl)

    async def release(self, claim: Claim) -> bool:
        return await self._write(sqlite_steps.release, claim)

    async def holder(self, kind: str, id: str) -> Claim | None:
        found = await self._read(sqlite_steps.HOLDER, (kind, id))
        held = sqlite_steps.claim_from(kind, id, found[0] if found else None)
        return held if held is not None and held.expires > self._clock.now() else None

    # Many records

    async def scan(
        self,
        *,
        kind: str | None = None,
        principal: str | None = None,
        state: State | None = "live",
        after: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        check_limit(limit)
        start = position(after)
        now = self._clock.now()
        condition, given = sqlite_steps.matching(kind, principal, state, now)
        sql = sqlite_steps.scan_sql(condition, start is not None)
        found = await self._read(sql, (*given, *(start or ()), limit + 1))
        more = len(found) > limit
        records: list[Record] = []
        broken: list[CorruptRecord] = []
        for row in found[:limit]:
            try:
                records.append(self._codec.record(checked_row(row[0], row[1], row[2:]), now))
            except CorruptRecord as error:
                broken.append(error)
        return Page(tuple(records), cursor(found[limit - 1][0], found[limit - 1][1]) if more else None, tuple(broken))

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        condition, given = sqlite_steps.matching(kind, principal, state, self._clock.now())
        found = await self._read(f"SELECT count(*) FROM holdfast_records WHERE {condition}", given)
        return found[0][0]

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        expired = tombstones = 0
        more = True
        while more:
            some, old, more = await self._write(sqlite_steps.reap_some, kind, expired_for, ended_for)
            expired += some
            tombstones += old
        self._tell(partial(RecordsReaped, store=self.url, expired=expired, tombstones=tombstones))
        return Reaped(expired, tombstones)

    # Notices

    async def publish(self, topic: str, data: JSON) -> None:
        check_name(topic, "topic")
        await self._write(sqlite_steps.publish, topic, values.encode(data))
        self._published.set()

    @asynccontextmanager
    async def listen(self, *topics: str) -> AsyncGenerator[AsyncIterator[Heard], None]:
        with self._listeners.register(topics) as ear:
            if self._poller is None:
                seen: int = (await self._read(sqlite_steps.LAST_NOTICE, ()))[0][0]
                if self._poller is None:  # another listener may have been faster
                    self._poller = asyncio.create_task(self._poll(seen))
            yield ear

    async def _poll(self, seen: int) -> None:
        """Hand on what others published. Rows are numbered without gaps, so a hole is a loss, and said to be one."""
        version: int | None = None
        failing = False
        while self._listeners:
            try:
                now = (await self._read("PRAGMA data_version", ()))[0][0]
                found = await self._read(sqlite_steps.NOTICES, (seen,)) if now != version else []
            except StoreDown as error:
                if not failing:
                    self._tell(partial(ListenerFailed, store=self.url, why=str(error)))
                failing, found, now = True, [], None
            else:
                if failing:
                    self._listeners.gap()
                failing = False
            for seq, topic, body in found:
                if seq != seen + 1:
                    self._listeners.gap()
                seen = seq
                self._listeners.deliver(topic, values.decode(body))
            if found:
                continue
            version = now
            self._published.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._published.wait()
        self._poller = None

    # The two threads

    async def _read(self, sql: str, given: Sequence[object]) -> list[Any]:
        reader = self._reader
        if reader is None:
            raise self._closed()
        try:
            return cast("list[Any]", await reader.execute_fetchall(sql, given))
        except (sqlite3.Error, ValueError) as error:
            raise self._translate(error) from error

    async def _write(self, step: _Step[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        writer = self._writer
        if writer is None:
            raise self._closed()
        return await self._on(writer, lambda db: step(db, self._clock, *args, **kwargs))

    async def _on(self, driver: aiosqlite.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
        # aiosqlite has no public way to run one function on the connection's thread, and a transaction made of
        # awaited statements could be cut in two by a cancelled caller. tests/stores/test_sqlite.py asserts the door.
        run = cast("Callable[..., Coroutine[Any, Any, _T]]", driver._execute)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        connection = driver._conn  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            return await run(work, connection)
        except (sqlite3.Error, ValueError) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> HoldfastError:
        """The one place where SQLite's errors become ours."""
        if not isinstance(error, sqlite3.Error):
            return self._closed()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        path = self._path
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreDown(
                    f"{path} is locked by another process since {self._timeout:g} s or more",
                    store=self.url,
                    remedy="end the process that holds a transaction open, or raise ?timeout=",
                )
            case sqlite3.SQLITE_FULL:
                return StoreDown(f"the disk of {path} is full", store=self.url, remedy="free some space and retry")
            case sqlite3.SQLITE_IOERR:
                return _AnswerLost(f"the disk of {path} failed: {error}", store=self.url)
            case sqlite3.SQLITE_NOTADB:
                return ConfigError(
                    f"{path} is not an SQLite database", store=self.url, remedy="name another file, or a new one"
                )
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return ConfigError(
                    f"{path} can't be opened for writing: {error}",
                    store=self.url,
                    remedy="give this user the right to write the file and its folder",
                )
            case sqlite3.SQLITE_CORRUPT:
                return CorruptRecord(f"{path} is damaged: {error}", store=self.url, remedy="restore it from a backup")
            case _:
                return StoreDown(f"{path}: {error}", store=self.url)

    def _closed(self) -> LeaseClosed:
        return LeaseClosed(f"the store {self.url} is closed", store=self.url, remedy="use it inside `async with`")

    def _tell(self, event: Callable[[float], Any]) -> None:
        if self._on_event:
            self._on_event(event(self._clock.now()))


class _AnswerLost(StoreDown):
    """The disk failed in the middle; `commit` settles what became of it."""
