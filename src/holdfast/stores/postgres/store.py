"""The store on PostgreSQL, for many machines.

Each write is one statement; if it wrote nothing, the row is read and `core.records` says why. After a
lost answer it stops the old backend and reads the nonce back; if even that can't be done, it raises `WriteUnsettled`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, cast

import asyncpg

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
from holdfast.core.records import (
    EncodedWrite,
    Key,
    Row,
    State,
    decide_claims,
    decide_commits,
    decide_end,
    decide_renew,
    decide_touch,
    record_of,
    refuse_commits,
)
from holdfast.core.values import JSON
from holdfast.errors import Busy, ConfigError, StoreDown
from holdfast.events import RecordsReaped, Sink, StoreMigrated, StoreOpened
from holdfast.stores.base import BaseStore, Begun, Look, Rows, written
from holdfast.stores.codec import Codec, check_fence, checked_log, checked_row
from holdfast.stores.contract import PAGE, TOMBSTONE_SECONDS, TURNS
from holdfast.stores.paging import Reading, check_after, check_ages, check_filters, check_limit, cursor, position
from holdfast.stores.postgres import several
from holdfast.stores.postgres import statements as sql
from holdfast.stores.postgres.notice_listener import PostgresNoticeListener
from holdfast.stores.postgres.pool import AnswerLost, Connection, PostgresPool, Raced
from holdfast.stores.sql import schema
from holdfast.stores.sql.archive import SqlArchive

OLDEST = 14  # the oldest major version that PostgreSQL's own team still maintains
MIGRATION_SECONDS = 10.0  # for the tables, behind other processes that make them too
REAP_ROWS = 500  # removed in one statement
_MIGRATION_LOCK = 0x486F6C64  # one number for all of us, so that ten processes may start at once
_RACES = 20  # how often a commit may find the record changed between its refusal and the reading of the reason


class PostgresStore(BaseStore):
    """See `Store` for the contract."""

    def __init__(
        self,
        dsn: str,
        *,
        url: str,
        clock: Clock | None,
        codec: Codec,
        on_event: Sink | None = None,
        timeout: float = 5.0,
        connections: int = 16,
    ) -> None:
        super().__init__(url, clock=clock, codec=codec, on_event=on_event)
        self._injected = clock
        self._timeout = timeout
        self._pool = PostgresPool(dsn, url, timeout, connections)
        self._listener = PostgresNoticeListener(self._pool, self._listeners, self._listener_failed)

    # Opening and closing

    async def _open(self) -> None:
        connection = await self._pool.connect()
        try:
            async with asyncio.timeout(MIGRATION_SECONDS):
                before = await self._migrate(connection)
        except TimeoutError:
            raise StoreDown(
                f"{self.url} did not finish opening within {MIGRATION_SECONDS:g} s", store=self.url
            ) from None
        finally:
            connection.terminate()
        self._pool.open()
        self._listener = PostgresNoticeListener(self._pool, self._listeners, self._listener_failed)
        version = len(schema.MIGRATIONS)
        if before != version:
            self._report(lambda at: StoreMigrated(at, self.url, before, version))
        self._report(lambda at: StoreOpened(at, self.url, version))

    async def _close(self) -> None:
        await self._listener.close()
        await self._pool.close()

    async def _migrate(self, connection: Connection) -> int:
        major = connection.get_server_version().major
        if major < OLDEST:
            raise ConfigError(
                f"{self.url} runs PostgreSQL {major}", store=self.url, remedy=f"Holdfast needs {OLDEST} or newer"
            )
        try:
            known = await connection.fetchval("SELECT to_regclass('holdfast_meta') IS NOT NULL")
            found = cast("int", await connection.fetchval(schema.SCHEMA_VERSION)) if known else 0
            if found == len(schema.MIGRATIONS):
                return found  # the usual case needs no right to create anything
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
                for statement in schema.create_meta(schema.POSTGRESQL):
                    await connection.execute(statement)
                before = cast("int", await connection.fetchval(schema.SCHEMA_VERSION))
                for statement in schema.steps_from(before, schema.POSTGRESQL, self.url):
                    await connection.execute(statement)
            return before
        except asyncpg.InsufficientPrivilegeError as error:
            user = await connection.fetchval("SELECT current_user")
            where = await connection.fetchval("SELECT current_schema()") or "public"
            raise ConfigError(
                f"the user {user} may not create Holdfast's tables in {self.url}: {error}",
                store=self.url,
                remedy=f'run as the owner: GRANT CREATE, USAGE ON SCHEMA "{where}" TO "{user}";',
            ) from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise self._pool.translate(error) from error

    # Records

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        check_key(kind, id)
        self._check_open()
        found = await self._pool.row(sql.GET, self._given_time(), kind, id)
        if found is None:
            return None
        now = found[0]
        row = checked_row(kind, id, found[1:])
        return self._codec.record(row, now) if dead or row.state(now) == "live" else None

    async def _commit(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        self._check_open()
        alone = len(writes) == 1 and all(_is_fence(claim, writes[0]) for claim in release)
        for _ in range(_RACES):
            try:
                stored = await (
                    self._commit_one(writes[0], release) if alone else self._commit_several(writes, release)
                )
                if stored is None:
                    now, rows, claims = await self._look(_keys(writes, release))
                    refuse_commits(now, rows, claims, writes, release)
                    if not any(write.expect == 0 and write.key in rows for write in writes):
                        continue  # nothing stands against it any more: it changed between the two statements
                    stored = await self._commit_locked(writes, release)
            except Raced:
                continue
            except AnswerLost as lost:
                return await self._settle(writes, lost, partial(self._look_back, writes, lost))
            return stored
        kind, id = _keys(writes, release)[0]
        raise Busy(f"{kind}/{id} changes too fast", store=self.url, kind=kind, id=id)

    async def _commit_one(self, write: EncodedWrite, release: Sequence[Claim]) -> list[Record] | None:
        """One statement, no larger than it needs to be; `release` can only be its fence. None if it wrote nothing."""
        statement = sql.commit_sql(
            creates=write.expect == 0,
            fenced=write.fence is not None,
            logs=write.entries is not None,
            releases=bool(release),
        )
        given: list[object] = [
            *(write.kind, write.id, write.principal, write.body, write.added, write.idle, write.max_age, write.nonce)
        ]
        given += [] if write.expect == 0 else [write.expect, write.created]
        given += [] if write.entries is None else [write.entries]
        given += [] if write.fence is None else [write.fence]
        given += [self._turn_payload(claim) for claim in release]
        found = await self._row(statement, *given)
        return None if found is None else [written(write, created=found[1], touched=found[2])]

    async def _commit_several(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record] | None:
        """The same for any number of records and claims."""
        columns = list(
            zip(*((*w.key, w.principal, w.expect, w.body, w.added, *_spans(w)) for w in writes), strict=True)
        )
        freed = {(claim.kind, claim.id, claim.token): self._turn_payload(claim) for claim in release}
        held = [(w.kind, w.id, w.fence) for w in writes if w.fence is not None]
        wanted = [(*name, name in freed, freed.get(name)) for name in dict.fromkeys([*held, *freed])]
        claims = list(zip(*wanted, strict=True))
        found = await self._row(several.COMMIT, *(columns or [[]] * 11), *(claims or [[]] * 5))
        ok, touched, created, _ = found
        if not ok:
            return None
        moments = zip(writes, created, touched, strict=True)
        return [written(write, created=begun, touched=used) for write, begun, used in moments]

    async def _commit_locked(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        """For a new life of an expired id: the old log must go before the new one comes, so this is a transaction."""
        async with self._pool.transaction() as connection:
            now, rows, claims = await self._lock(connection, _keys(writes, release))
            decided = decide_commits(now, rows, claims, writes, release)
            for row, write in zip(decided, writes, strict=True):
                if row.rev == 1 and row.key in rows:
                    await connection.execute(sql.DROP_LOG, row.kind, row.id)
                await connection.execute(
                    sql.REPLACE if row.key in rows else sql.INSERT,
                    *(row.kind, row.id, row.principal, row.rev, row.body, row.last, row.created, row.touched),
                    *(row.idle, row.max_age, row.ended, row.nonce, row.expires),
                )
                if write.entries is not None:
                    await connection.execute(sql.ADD_LOG, row.kind, row.id, row.last, row.rev, now, write.entries)
            for claim in release:
                freed = self._given_time(), claim.kind, claim.id, claim.token, self._turn_payload(claim)
                await connection.execute(sql.RELEASE, *freed)
            return [record_of(row, now, values.decode(write.plain)) for row, write in zip(decided, writes, strict=True)]

    async def _look_back(self, writes: Sequence[EncodedWrite], lost: AnswerLost) -> Look | None:
        """End the backend that may still be at work on it; then what is read is final."""
        stopped = lost.backend and await self._pool.row(sql.STOP_BACKEND, *lost.backend, int(self._timeout * 500))
        _, rows = await self._read_all([write.key for write in writes])
        if stopped is not None and not stopped[0]:
            return None  # it would not die, and may still write
        return {row.key: row for each in rows if (row := each()) is not None}

    async def _read_all(self, keys: Sequence[Key]) -> tuple[float, Rows]:
        found = await self._rows(several.GET_ALL, *_columns(keys))
        return found[0][0], [partial(_row, key, tuple(row)[1:]) for key, row in zip(keys, found, strict=True)]

    async def _look(self, keys: Sequence[Key]) -> tuple[float, dict[Key, Row], dict[Key, Claim]]:
        """The rows and claims of these names, without the bodies, at one moment."""
        rows: dict[Key, Row] = {}
        claims: dict[Key, Claim] = {}
        now = 0.0
        for key, found in zip(keys, await self._rows(several.LOOK, *_columns(keys)), strict=True):
            now, *rest = found
            if (row := _row(key, rest[:10])) is not None:
                rows[key] = row
            if rest[10] is not None:
                claims[key] = Claim(*key, rest[10], rest[11], rest[12])
        return now, rows, claims

    async def _lock(
        self, connection: Connection, keys: Sequence[Key]
    ) -> tuple[float, dict[Key, Row], dict[Key, Claim]]:
        """The same, staying as they are until the transaction ends. Claims come first, as in every statement."""
        names = _columns(keys)
        held = await connection.fetch(several.LOCK_CLAIMS, *names)
        found = await connection.fetch(several.LOCK, *names)
        now = cast("float", await connection.fetchval(f"SELECT {sql.NOW}", self._given_time()))
        rows = {(kind, id): checked_row(kind, id, fields) for kind, id, *fields in map(tuple, found)}
        return now, rows, {(kind, id): Claim(kind, id, *rest) for kind, id, *rest in map(tuple, held)}

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        check_fence(fence)
        check_key(kind, id)
        if fence is None and await self._change(sql.TOUCH, kind, id) is not None:
            return
        self._check_open()
        try:
            async with self._pool.transaction() as connection:
                now, rows, claims = await self._lock(connection, [(kind, id)])
                decide_touch(now, rows.get((kind, id)), claims.get((kind, id)), kind, id, fence)
                await connection.execute(sql.TOUCH, now, kind, id)
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        check_fence(fence)
        check_key(kind, id)
        self._check_open()
        try:
            async with self._pool.transaction() as connection:
                now, rows, claims = await self._lock(connection, [(kind, id)])
                row, claim = rows.get((kind, id)), claims.get((kind, id))
                tombstone = decide_end(now, row, claim, created=created, fence=fence)
                if tombstone is None:
                    return False
                await connection.execute(sql.END, kind, id, tombstone.ended)
                await connection.execute(sql.DROP_LOG, kind, id)
            return True
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        check_limit(limit)
        check_after(after)
        check_key(kind, id)
        found = await self._rows(sql.LOG_NEWEST if newest_first else sql.LOG, kind, id, after, limit)
        if not found:
            return []
        rows = [checked_log(kind, id, *row[:4]) for row in map(tuple, found)]
        return self._codec.log(kind, id, found[0][4], rows, after, limit, newest_first)

    # Claims

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        check_key(kind, id)
        check_name(owner, "owner")
        check_seconds(ttl, "ttl")
        for _ in range(_RACES):
            found = await self._change(sql.CLAIM, kind, id, owner, float(ttl))
            if found is not None:
                return Claim(kind, id, owner, found[0], found[1])
            now, _, claims = await self._look([(kind, id)])
            decide_claims(now, claims, [(kind, id)], owner, ttl, lambda: 0)
        raise Busy(f"{kind}/{id} is claimed and released too fast", store=self.url, kind=kind, id=id)

    async def _begin_turns(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        alone = len(keys) == 1
        statement, names = (several.BEGIN_TURN, keys[0]) if alone else (several.BEGIN_TURNS, _columns(keys))
        for _ in range(_RACES):
            try:
                found = await self._rows(statement, *names, owner, float(ttl), notify)
            except Raced:
                continue
            except AnswerLost as lost:
                raise self._unsettled(lost) from lost
            now: float = found[0][0]
            claims: list[Claim] = []
            rows: list[Callable[[], Row | None]] = []
            standing: dict[Key, Claim] = {}
            for key, row in zip(keys, found, strict=True):
                _, token, expires, *held, _, _ = row[:8]
                claims.append(Claim(*key, owner, token, expires))
                rows.append(partial(_row, key, tuple(row)[8:]))
                if held[0] is not None:
                    standing[key] = Claim(*key, *held)
            if found[0][1] is None:
                decide_claims(now, standing, keys, owner, ttl, lambda: 0)
                continue
            if found[0][6]:
                return Begun(claims, *await self._read_all(keys))
            return Begun(claims, now, rows)
        kind, id = keys[0]
        raise Busy(f"{kind}/{id} is claimed and released too fast", store=self.url, kind=kind, id=id)

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        check_seconds(ttl, "ttl")
        found = await self._change(sql.RENEW, claim.kind, claim.id, claim.token, float(ttl))
        if found is not None:
            return Claim(claim.kind, claim.id, found[0], claim.token, found[1])
        now, _, claims = await self._look([(claim.kind, claim.id)])
        return decide_renew(now, claims.get((claim.kind, claim.id)), claim, ttl)

    async def release(self, claim: Claim) -> bool:
        payload = self._turn_payload(claim)
        return await self._change(sql.RELEASE, claim.kind, claim.id, claim.token, payload) is not None

    async def holder(self, kind: str, id: str) -> Claim | None:
        check_key(kind, id)
        return _claim(kind, id, await self._row(sql.HOLDER, kind, id))

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
        start = position(after)
        condition, given = sql.matching(kind, principal, state)
        statement = sql.scan_sql(condition, len(given), start is not None)
        found = await self._rows(statement, *given, *(start or ()), limit + 1)
        reading = Reading(self._report_corrupt)
        for now, *row in found[:limit]:
            reading.take(partial(self._codec.read, now, row))
        more = len(found) > limit
        return reading.page(cursor(found[limit - 1][1], found[limit - 1][2]) if more else None)

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        check_filters(kind, principal, state)
        condition, given = sql.matching(kind, principal, state)
        found = await self._row(sql.count_sql(condition), *given)
        return 0 if found is None else found[0]

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        check_ages(kind, expired_for, ended_for)
        total = tombstones = 0
        while True:
            found = await self._change(sql.REAP, kind, float(expired_for), float(ended_for), REAP_ROWS)
            removed, ended = found or (0, 0)
            total += removed
            tombstones += ended
            if removed < REAP_ROWS:
                break
        await self._change(sql.REAP_CLAIMS)
        self._report(lambda at: RecordsReaped(at, self.url, total - tombstones, tombstones))
        return Reaped(total - tombstones, tombstones)

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        check_filters(kind, principal, None)
        erased = 0
        while some := (await self._change(sql.ERASE, principal, kind, REAP_ROWS) or (0,))[0]:
            erased += some
        return erased

    # Notices

    async def publish(self, topic: str, data: JSON) -> None:
        self._check_open()
        check_name(topic, "topic")
        try:
            await self._pool.row(sql.PUBLISH, _payload(topic, self._codec.notice(topic, data)))
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    def listen(self, *topics: str) -> AbstractAsyncContextManager[AsyncIterator[NoticeOrGap]]:
        self._check_open()
        return self._listener.listen(topics, self._timeout)

    # Asking

    def archive(self) -> SqlArchive:
        """For `copy_store` and `reseal_store`."""
        self._check_open()

        async def tokens(at_least: int) -> int:
            return (await self._pool.row(sql.TOKENS, at_least))[0]

        return SqlArchive(self._pool.rows, tokens)

    async def _row(self, statement: str, *given: object) -> Any:
        self._check_open()
        return await self._pool.row(statement, self._given_time(), *given)

    async def _rows(self, statement: str, *given: object) -> list[Any]:
        self._check_open()
        return await self._pool.rows(statement, self._given_time(), *given)

    async def _change(self, statement: str, *given: object) -> Any:
        """A write that no nonce can settle: a lost answer is the caller's to judge."""
        try:
            return await self._row(statement, *given)
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    def _turn_payload(self, claim: Claim) -> str:
        return _payload(TURNS, self._codec.turn_notice(claim))

    def _given_time(self) -> float | None:
        """NULL for the server's own clock."""
        return None if self._injected is None else self._injected.now()


def _claim(kind: str, id: str, found: Any) -> Claim | None:
    return None if found is None else Claim(kind, id, found[0], found[1], found[2])


def _row(key: Key, fields: Sequence[object]) -> Row | None:
    """A row of an outer join, which is empty where nothing was found."""
    return None if fields[1] is None else checked_row(*key, fields)


def _is_fence(claim: Claim, write: EncodedWrite) -> bool:
    return (claim.kind, claim.id, claim.token) == (write.kind, write.id, write.fence)


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str]]:
    return [kind for kind, _ in keys], [id for _, id in keys]


def _keys(writes: Sequence[EncodedWrite], release: Sequence[Claim]) -> list[Key]:
    """Each name that a commit is about, once."""
    return list(dict.fromkeys([*(write.key for write in writes), *((claim.kind, claim.id) for claim in release)]))


def _spans(write: EncodedWrite) -> tuple[object, ...]:
    return write.idle, write.max_age, write.created, write.nonce, write.entries


def _payload(topic: str, body: bytes) -> str:
    return f"{topic}\n{body.decode()}"
