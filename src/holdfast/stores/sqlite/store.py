"""The embedded store: one SQLite file, shared by the tasks and processes of one machine.

It has two connections, one that writes and one that reads, each with a thread of its own. A write is one function on
the writing thread (begin, read, decide, write, commit), so a cancelled caller can't leave half of it behind and
writers queue without a lock. Network file systems are refused: SQLite's locks need a local disk.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.core import values
from holdfast.core.clock import Clock
from holdfast.core.models import (
    Claim,
    LogEntry,
    NoticeOrGap,
    Page,
    Reaped,
    Record,
    check_key,
    check_name,
    check_seconds,
)
from holdfast.core.records import EncodedWrite, Key, Row, State, record_of
from holdfast.core.values import JSON
from holdfast.errors import Busy
from holdfast.events import RecordsReaped, Sink, StoreMigrated, StoreOpened
from holdfast.stores.base import BaseStore, Begun, Look, Rows
from holdfast.stores.codec import Codec, check_fence, checked_log, checked_row
from holdfast.stores.contract import CLOSE_SECONDS, PAGE, TOMBSTONE_SECONDS
from holdfast.stores.paging import (
    Reading,
    check_after,
    check_ages,
    check_filters,
    check_limit,
    cursor,
    position_in_file,
)
from holdfast.stores.sql import schema
from holdfast.stores.sql.archive import SqlArchive
from holdfast.stores.sqlite import steps as sqlite_steps
from holdfast.stores.sqlite.file import AnswerLost, SqliteFile
from holdfast.stores.sqlite.notices import SqliteNotices
from holdfast.stores.sqlite.thread import FileReplaced, SqliteThread

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Step = Callable[Concatenate[sqlite3.Connection, Clock, _P], _T]


class SqliteStore(BaseStore):
    """See `Store` for the contract."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None,
        codec: Codec,
        create: bool = True,
        on_event: Sink | None = None,
        timeout: float = 5.0,
        synchronous: str = "FULL",
    ) -> None:
        super().__init__(f"sqlite:///{path}", clock=clock, codec=codec, on_event=on_event)
        self._file = SqliteFile(path, create, timeout, synchronous)
        self._writer = SqliteThread(path, timeout)
        self._reader = SqliteThread(path, timeout)
        self._notices = SqliteNotices(self._read, self._listeners, self._listener_failed)

    # Opening and closing

    async def _open(self) -> None:
        self._file.check()
        self._file.make_private()
        self._notices = SqliteNotices(self._read, self._listeners, self._listener_failed)
        await self._open_thread(self._writer)
        before = await self._on(self._writer, self._migrate)
        await self._open_thread(self._reader)
        version = len(schema.MIGRATIONS)
        if before != version:
            self._report(lambda at: StoreMigrated(at, self.url, before, version))
        self._report(lambda at: StoreOpened(at, self.url, version))

    async def _open_thread(self, thread: SqliteThread) -> None:
        try:
            await thread.open()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._file.translate(error) from error
        await self._on(thread, lambda db: self._file.prepare(db, self._clock))

    def _migrate(self, db: sqlite3.Connection) -> int:
        return sqlite_steps.migrate(
            db,
            schema.create_meta(schema.SQLITE),
            schema.SCHEMA_VERSION,
            lambda version: schema.steps_from(version, schema.SQLITE, self.url),
        )

    async def _close(self) -> None:
        await self._notices.close()
        await asyncio.gather(self._writer.close(CLOSE_SECONDS), self._reader.close(CLOSE_SECONDS))

    # Records

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        check_key(kind, id)
        found = await self._read(sqlite_steps.GET, (kind, id))
        if not found:
            return None
        row = checked_row(kind, id, found[0])
        now = self._clock.now()
        return self._codec.record(row, now) if dead or row.state(now) == "live" else None

    async def _commit(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        try:
            rows, now, notified = await self._write(sqlite_steps.commit, writes, release, self._codec.turn_notice)
        except AnswerLost as lost:

            async def look() -> Look:
                _, rows = await self._read_all([write.key for write in writes])
                return {row.key: row for each in rows if (row := each()) is not None}

            return await self._settle(writes, lost, look)
        if notified:
            self._notices.wake()
        return [record_of(row, now, values.decode(write.plain)) for row, write in zip(rows, writes, strict=True)]

    async def _read_all(self, keys: Sequence[Key]) -> tuple[float, Rows]:
        found = await self._read(sqlite_steps.get_all_sql(len(keys)), [part for key in keys for part in key])
        rows = {(kind, id): fields for kind, id, *fields in found}
        return self._clock.now(), [partial(_row, key, rows.get(key)) for key in keys]

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        check_fence(fence)
        check_key(kind, id)
        await self._change(sqlite_steps.touch, kind, id, fence)

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        check_fence(fence)
        check_key(kind, id)
        return await self._change(sqlite_steps.end, kind, id, created, fence)

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        check_limit(limit)
        check_after(after)
        check_key(kind, id)
        sql = sqlite_steps.LOG_NEWEST if newest_first else sqlite_steps.LOG
        found = await self._read(sql, (kind, id, after, self._clock.now(), limit))
        if not found:
            return []
        rows = [checked_log(kind, id, last, rev, at, body) for rev, last, at, body, _ in found]
        return self._codec.log(kind, id, found[0][4], rows, after, limit, newest_first)

    # Claims

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        check_key(kind, id)
        check_name(owner, "owner")
        check_seconds(ttl, "ttl")
        return await self._change(sqlite_steps.claim, kind, id, owner, ttl)

    async def _begin_turns(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        begun = await self._change(sqlite_steps.begin_turns, keys, owner, ttl, notify)
        if isinstance(begun, Busy):
            raise begun
        claims, now, rows = begun
        return Begun(claims, now, [partial(_row, key, row) for key, row in zip(keys, rows, strict=True)])

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        check_seconds(ttl, "ttl")
        return await self._change(sqlite_steps.renew, claim, ttl)

    async def release(self, claim: Claim) -> bool:
        held, notified = await self._change(sqlite_steps.release, claim, self._codec.turn_notice)
        if notified:
            self._notices.wake()
        return held

    async def holder(self, kind: str, id: str) -> Claim | None:
        check_key(kind, id)
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
        check_filters(kind, principal, state)
        start = position_in_file(after)
        now = self._clock.now()
        condition, given = sqlite_steps.matching(kind, principal, state, now)
        sql, behind = sqlite_steps.scan_sql(condition, start)
        found = await self._read(sql, (*given, *behind, limit + 1))
        reading = Reading(self._report_corrupt)
        for row in found[:limit]:
            reading.take(partial(self._codec.read, now, row))
        return reading.page(cursor(*found[limit - 1][:2]) if len(found) > limit else None)

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        check_filters(kind, principal, state)
        condition, given = sqlite_steps.matching(kind, principal, state, self._clock.now())
        found = await self._read(f"SELECT count(*) FROM holdfast_records WHERE {condition}", given)
        return found[0][0]

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        check_ages(kind, expired_for, ended_for)
        expired = tombstones = 0
        more = True
        while more:
            some, old, more = await self._change(sqlite_steps.reap_some, kind, expired_for, ended_for)
            expired += some
            tombstones += old
        self._report(lambda at: RecordsReaped(at, self.url, expired, tombstones))
        return Reaped(expired, tombstones)

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        check_filters(kind, principal, None)
        erased = 0
        while some := await self._change(sqlite_steps.erase_some, principal, kind):
            erased += some
        return erased

    # Notices

    async def publish(self, topic: str, data: JSON) -> None:
        check_name(topic, "topic")
        await self._change(sqlite_steps.publish, topic, self._codec.notice(topic, data))
        self._notices.wake()

    def listen(self, *topics: str) -> AbstractAsyncContextManager[AsyncIterator[NoticeOrGap]]:
        self._check_open()
        return self._notices.listen(topics)

    # The two threads

    def archive(self) -> SqlArchive:
        """For `copy_store` and `reseal_store`."""
        self._check_open()

        async def ask(sql: str, *given: object) -> list[Any]:
            return await self._change(sqlite_steps.run, sql, given)

        async def tokens(at_least: int) -> int:
            return await self._change(sqlite_steps.tokens, at_least)

        return SqlArchive(ask, tokens, sqlite_steps.behind_place)

    async def _read(self, sql: str, given: Sequence[object]) -> list[Any]:
        self._check_open()
        try:
            return await self._reader.read(sql, given)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._file.translate(error) from error

    async def _write(self, step: _Step[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._check_open()
        return await self._on(self._writer, lambda db: step(db, self._clock, *args, **kwargs))

    async def _change(self, step: _Step[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A write that no nonce can settle: what became of it under a failing disk is the caller's to find out."""
        try:
            return await self._write(step, *args, **kwargs)
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    async def _on(self, thread: SqliteThread, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await thread.run(work)
        except (sqlite3.Error, FileReplaced, UnicodeDecodeError) as error:
            raise self._file.translate(error) from error


def _row(key: Key, fields: Sequence[object] | None) -> Row | None:
    return None if fields is None else checked_row(*key, fields)
