"""The store in this process's memory: the reference that the others are measured against, and a store for tests.

Every method first yields to other tasks, as a store on disk would, and then runs to its end without awaiting, so no
lock is needed. For records that outlive the process use SQLite.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

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
    LogRow,
    Row,
    State,
    decide_claim,
    decide_claims,
    decide_commits,
    decide_end,
    decide_renew,
    decide_touch,
    in_the_way,
    reapable,
    record_of,
)
from holdfast.core.values import JSON
from holdfast.events import RecordsReaped, Sink, StoreOpened
from holdfast.stores.archive import Damaged, Place
from holdfast.stores.base import BaseStore, Begun, Rows
from holdfast.stores.codec import Codec, check_fence
from holdfast.stores.contract import PAGE, TOMBSTONE_SECONDS, TURNS
from holdfast.stores.paging import Reading, check_after, check_ages, check_filters, check_limit, cursor, position


class MemoryStore(BaseStore):
    """A store in this process's memory; `open_store("memory:")` makes one. See `Store` for the contract.

    `codec` checks and encodes bodies, `clock` replaces the system's, `on_event` is called with events of the store.
    """

    def __init__(self, *, clock: Clock | None = None, codec: Codec, on_event: Sink | None = None) -> None:
        super().__init__("memory:", clock=clock, codec=codec, on_event=on_event)
        self._rows: dict[Key, Row] = {}
        self._logs: dict[Key, list[LogRow]] = {}
        self._claims: dict[Key, Claim] = {}
        self._awaited: set[Key] = set()
        self._token = 0

    async def _open(self) -> None:
        self._report(lambda at: StoreOpened(at, self.url, 0))

    async def _close(self) -> None:
        pass

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        await self._turn()
        row = self._row(kind, id)
        now = self._clock.now()
        if row is None or not (dead or row.state(now) == "live"):
            return None
        return self._codec.record(row, now)

    async def _commit(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        await self._turn()
        now = self._clock.now()
        rows = decide_commits(now, self._rows, self._claims, writes, release)
        stored: list[Record] = []
        for row, write in zip(rows, writes, strict=True):
            key = row.kind, row.id
            self._rows[key] = row
            if row.rev == 1:
                self._logs.pop(key, None)
            if write.entries:
                self._logs.setdefault(key, []).append(LogRow(row.last, row.rev, row.touched, write.entries))
            stored.append(record_of(row, now, values.decode(write.plain)))
        for claim in release:
            self._free(claim)
        return stored

    async def _read_all(self, keys: Sequence[Key]) -> tuple[float, Rows]:
        await self._turn()
        return self._clock.now(), [partial(self._rows.get, key) for key in keys]

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        check_fence(fence)
        await self._turn()
        row, claim = self._row(kind, id), self._claims.get((kind, id))
        self._rows[kind, id] = decide_touch(self._clock.now(), row, claim, kind, id, fence)

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        check_fence(fence)
        await self._turn()
        row, claim = self._row(kind, id), self._claims.get((kind, id))
        tombstone = decide_end(self._clock.now(), row, claim, created=created, fence=fence)
        if tombstone is None:
            return False
        self._rows[kind, id] = tombstone
        self._logs.pop((kind, id), None)
        return True

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        await self._turn()
        check_limit(limit)
        check_after(after)
        row = self._row(kind, id)
        if row is None or row.state(self._clock.now()) != "live":
            return []
        rows = [entry for entry in self._logs.get((kind, id), []) if entry.last > after]
        chosen = rows[-limit:] if newest_first else rows[:limit]
        return self._codec.log(kind, id, row.principal, chosen, after, limit, newest_first)

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        await self._turn()
        check_key(kind, id)
        check_name(owner, "owner")
        check_seconds(ttl, "ttl")
        claim = decide_claim(self._clock.now(), self._claims.get((kind, id)), kind, id, owner, ttl, self._next_token)
        self._claims[kind, id] = claim
        self._awaited.discard((kind, id))
        return claim

    async def _begin_to_the_end(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        return await self._begin_turns(keys, owner, ttl, notify)  # which no cancel can reach once it has claimed

    async def _begin_turns(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        await self._turn()
        now = self._clock.now()
        if notify:
            self._awaited.update((held.kind, held.id) for held in in_the_way(now, self._claims, keys, owner))
        claims = decide_claims(now, self._claims, keys, owner, ttl, self._next_token)
        self._claims.update(zip(keys, claims, strict=True))
        self._awaited.difference_update(keys)
        return Begun(claims, now, [partial(self._rows.get, key) for key in keys])

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        await self._turn()
        check_seconds(ttl, "ttl")
        key = claim.kind, claim.id
        renewed = decide_renew(self._clock.now(), self._claims.get(key), claim, ttl)
        self._claims[key] = renewed
        return renewed

    async def release(self, claim: Claim) -> bool:
        await self._turn()
        held = self._claims.get((claim.kind, claim.id))
        if held is None or held.token != claim.token:
            return False
        self._free(claim)
        return held.expires > self._clock.now()

    def _free(self, claim: Claim) -> None:
        del self._claims[claim.kind, claim.id]
        if (claim.kind, claim.id) in self._awaited:
            self._awaited.remove((claim.kind, claim.id))
            self._listeners.deliver(TURNS, self._codec.turn_notice(claim))

    async def holder(self, kind: str, id: str) -> Claim | None:
        await self._turn()
        check_key(kind, id)
        held = self._claims.get((kind, id))
        return held if held is not None and held.expires > self._clock.now() else None

    async def scan(
        self,
        *,
        kind: str | None = None,
        principal: str | None = None,
        state: State | None = "live",
        after: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        await self._turn()
        check_limit(limit)
        check_filters(kind, principal, state)
        start = position(after)
        now = self._clock.now()
        rows = sorted(self._matching(kind, principal, state, now), key=lambda row: (row.kind, row.id))
        found = [row for row in rows if start is None or (row.kind, row.id) > start][: limit + 1]
        more = len(found) > limit
        found = found[:limit]
        reading = Reading(self._report_corrupt)
        for row in found:
            reading.take(partial(self._codec.record, row, now))
        return reading.page(cursor(found[-1].kind, found[-1].id) if more else None)

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        await self._turn()
        check_filters(kind, principal, state)
        return sum(1 for _ in self._matching(kind, principal, state, self._clock.now()))

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        await self._turn()
        check_ages(kind, expired_for, ended_for)
        now = self._clock.now()
        removed = {"expired": 0, "ended": 0, "live": 0}
        for row in list(self._matching(kind, None, None, now)):
            if (why := reapable(now, row, expired_for, ended_for)) is not None:
                removed[why] += 1
                del self._rows[row.kind, row.id]
                self._logs.pop((row.kind, row.id), None)
        self._claims = {key: claim for key, claim in self._claims.items() if claim.expires > now}
        self._awaited &= self._claims.keys()
        reaped = Reaped(removed["expired"], removed["ended"])
        self._report(lambda at: RecordsReaped(at, self.url, reaped.expired, reaped.tombstones))
        return reaped

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        check_filters(kind, principal, None)
        await self._turn()
        rows = list(self._matching(kind, principal, None, self._clock.now()))
        for row in rows:
            del self._rows[row.key]
            self._logs.pop(row.key, None)
        return len(rows)

    async def publish(self, topic: str, data: JSON) -> None:
        await self._turn()
        check_name(topic, "topic")
        self._listeners.deliver(topic, self._codec.notice(topic, data))

    @asynccontextmanager
    async def listen(self, *topics: str) -> AsyncGenerator[AsyncIterator[NoticeOrGap], None]:
        self._check_open()
        with self._listeners.register(topics) as listener:
            yield listener

    def archive(self) -> "MemoryArchive":
        """For `copy_store` and `reseal_store`."""
        self._check_open()
        return MemoryArchive(self)

    def _matching(self, kind: str | None, principal: str | None, state: State | None, now: float) -> Iterable[Row]:
        return (
            row
            for row in self._rows.values()
            if (kind is None or row.kind == kind)
            and (principal is None or row.principal == principal)
            and (state is None or row.state(now) == state)
        )

    def _row(self, kind: str, id: str) -> Row | None:
        check_key(kind, id)
        return self._rows.get((kind, id))

    def raise_token(self, at_least: int) -> int:
        """Let the next fencing token be higher than `at_least`; the highest token so far is returned."""
        self._token = max(self._token, at_least)
        return self._token

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        self._check_open()


class MemoryArchive:
    """See `Archive`."""

    def __init__(self, store: MemoryStore) -> None:
        # A friend of the store in the same file: these are its dictionaries, below its rules.
        self._rows: dict[Key, Row] = store.__dict__["_rows"]
        self._logs: dict[Key, list[LogRow]] = store.__dict__["_logs"]
        self._store = store

    async def rows(self, after: Place | None, limit: int) -> list[Row | Damaged]:
        found: list[Row | Damaged] = [self._rows[key] for key in sorted(self._rows) if after is None or key > after]
        return found[:limit]

    async def row(self, kind: str, id: str) -> Row | None:
        return self._rows.get((kind, id))

    async def log(self, kind: str, id: str, after: int, limit: int) -> list[LogRow]:
        return [row for row in self._logs.get((kind, id), []) if row.last > after][:limit]

    async def put(self, row: Row) -> None:
        self._rows[row.kind, row.id] = row

    async def put_log(self, kind: str, id: str, rows: Sequence[LogRow]) -> None:
        log = {row.last: row for row in (*self._logs.get((kind, id), ()), *rows)}
        self._logs[kind, id] = [log[last] for last in sorted(log)]

    async def drop_log(self, kind: str, id: str) -> None:
        self._logs.pop((kind, id), None)

    async def swap(self, row: Row, body: bytes) -> bool:
        if self._rows.get((row.kind, row.id)) != row:
            return False
        self._rows[row.kind, row.id] = row._replace(body=body)
        return True

    async def swap_log(self, kind: str, id: str, row: LogRow, body: bytes) -> bool:
        log = self._logs.get((kind, id), [])
        if row not in log:
            return False
        log[log.index(row)] = replace(row, body=body)
        return True

    async def tokens(self, at_least: int = 0) -> int:
        return self._store.raise_token(at_least)
