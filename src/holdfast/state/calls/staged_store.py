"""A store whose writes are gathered for one call: the call reads them back at once, and they are written at its end.

Everything that uses a store works inside a call as outside of it, and stands or falls with the call as a whole. What is
read under a turn is not read again.
"""

import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from holdfast.core.models import Claim, LogEntry, NoticeOrGap, Page, Reaped, Record, Turn, Write
from holdfast.core.records import Key, State, absent, ended, expired
from holdfast.core.values import JSON
from holdfast.errors import Conflict, Ended, HoldfastError, NotFound, SessionExpired, UsageError
from holdfast.stores.contract import PAGE, TOMBSTONE_SECONDS, Store

log = logging.getLogger(__name__)

GONE_SECONDS = 10.0  # for which a record without content stands where the process dies before it is ended
_GONE: JSON = {"t": "", "v": 1, "state": {}}  # a session of no kind, which nobody finds


class Staged(NamedTuple):
    """What a call will write of one record: its last form, over the revision that was read, and the new log entries."""

    record: Record
    expect: int
    entries: tuple[JSON, ...]
    fence: int | None


class StagedStore:
    """The store of one call. `write_all` writes what was gathered in one atomic step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Key, Record | None] = {}
        self._staged: dict[Key, Staged] = {}
        self._ends: dict[Key, float | None] = {}
        self._touched: set[Key] = set()

    @property
    def url(self) -> str:
        return self._store.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    # For the call

    def know(self, turns: Sequence[Turn]) -> None:
        """Records that can't change under the call's turns, dead ones included."""
        for turn in turns:
            self._known[turn.claim.kind, turn.claim.id] = turn.record

    def forget(self, keys: Collection[Key]) -> None:
        """The call gives its turns on these records up: they may change."""
        for key in keys:
            self._known.pop(key, None)

    def known(self, key: Key) -> Record | None:
        """What was read with the turn on this name."""
        return self._known.get(key)

    def snapshot(self) -> Any:
        """What was gathered so far, for `restore`."""
        return dict(self._staged), dict(self._ends), set(self._touched)

    def restore(self, snapshot: Any) -> None:
        """Forget what was gathered since the snapshot."""
        staged, ends, touched = snapshot
        self._staged, self._ends, self._touched = dict(staged), dict(ends), set(touched)

    def begins(self, key: Key) -> bool:
        """Whether the call creates this record."""
        staged = self._staged.get(key)
        return staged is not None and staged.expect == 0

    def created(self, kind: str, principal: str) -> list[Record]:
        """The records of one caller that the call creates."""
        staged = [each.record for (its_kind, _), each in self._staged.items() if its_kind == kind and not each.expect]
        return [record for record in staged if record.principal == principal]

    def is_ended(self, key: Key) -> bool:
        """Whether the call ends this record."""
        return key in self._ends

    async def write_all(self, claims: Mapping[Key, Claim]) -> None:
        """Write everything in one step that also gives up the claims, which fence what they claim.

        A record that the call ends loses its content and its life in that step, and is marked as ended after it.
        """
        writes = [
            Write(
                each.record,
                expect=each.expect,
                entries=each.entries,
                fence=claims[key].token if key in claims else each.fence,
            )
            for key, each in self._staged.items()
        ]
        for key in self._ends:
            known = self._known.get(key)
            if key in claims and known is not None and known.ended is None:
                gone = replace(known, data=_GONE, idle=GONE_SECONDS)
                writes.append(Write(gone, expect=known.rev, fence=claims[key].token))
        if writes or claims:
            await self._store.commit_all(writes, release=list(claims.values()))
        # The call is written: what can't be done any more does not make it one that failed.
        for kind, id in self._touched - self._staged.keys() - self._ends.keys():
            try:
                with suppress(NotFound, SessionExpired, Ended):
                    await self._store.touch(kind, id)
            except HoldfastError as error:
                log.warning("the idle time of %s/%.6s… was not restarted: %s", kind, id, error)
        for (kind, id), created in self._ends.items():
            try:
                with suppress(Conflict):  # created again since
                    await self._store.end(kind, id, created=created)
            except HoldfastError as error:
                log.warning("%s/%.6s… was not marked as ended, and expires: %s", kind, id, error)

    # The contract

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        return (await self.get_all([(kind, id)], dead=dead))[0]

    async def get_all(self, keys: Sequence[Key], *, dead: bool = False) -> list[Record | None]:
        unknown = [key for key in keys if key not in self._staged and key not in self._known]
        found = dict(zip(unknown, await self._store.get_all(unknown, dead=True), strict=True)) if unknown else {}
        return [self._seen(key, found, dead) for key in keys]

    def _seen(self, key: Key, found: Mapping[Key, Record | None], dead: bool) -> Record | None:
        staged = self._staged.get(key)
        record = staged.record if staged is not None else self._known[key] if key in self._known else found[key]
        if record is not None and key in self._ends:
            record = replace(record, data=None, ended=record.ended or record.touched)
        return record if record is None or dead or record.ended is None else None

    async def commit(
        self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None
    ) -> Record:
        return (await self.commit_all([Write(record, expect=expect, entries=entries, fence=fence)]))[0]

    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()) -> list[Record]:
        if release:
            raise UsageError("a call gives its claims up at its end", remedy="release them outside of the call")
        for write in writes:
            self._check(write)
        return [self._stage(write) for write in writes]

    def _check(self, write: Write) -> None:
        kind, id = key = write.record.kind, write.record.id
        if key in self._ends:
            raise ended(kind, id)
        staged, known = self._staged.get(key), self._known.get(key)
        if staged is None:
            if known is None or (known.expired and write.expect == 0):
                return  # the store decides at the end of the call
            if known.ended is not None:
                raise expired(kind, id) if known.expired else ended(kind, id)
        rev = staged.record.rev if staged is not None else known.rev if known is not None else 0
        if rev != write.expect:
            raise Conflict(f"{kind}/{id} is at rev {rev}, not {write.expect}", expect=write.expect, actual=rev)

    def _stage(self, write: Write) -> Record:
        """All writes of one call to a record make one revision."""
        key, now = (write.record.kind, write.record.id), time.time()
        staged = self._staged.get(key)
        expect = write.expect if staged is None else staged.expect
        created = write.record.created if expect else now
        made = write.record.written(rev=expect + 1, created=created, touched=now)
        entries = (*(staged.entries if staged is not None else ()), *write.entries)
        self._staged[key] = Staged(made, expect, entries, write.fence if staged is None else staged.fence)
        return made

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        record = await self.get(kind, id, dead=True)
        if record is None:
            raise absent(kind, id)
        if record.ended is not None:
            raise expired(kind, id) if record.expired else ended(kind, id)
        self._touched.add((kind, id))

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        record = await self.get(kind, id, dead=True)
        if record is None or (record.ended is not None and not record.expired):
            return False
        staged = self._staged.pop((kind, id), None)
        if staged is None or staged.expect:
            self._ends[kind, id] = record.created if created is None else created
        return record.ended is None

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        staged = self._staged.get((kind, id))
        if staged is None:
            return await self._store.log(kind, id, after=after, limit=limit, newest_first=newest_first)
        last = 0
        if staged.expect:
            newest = await self._store.log(kind, id, limit=1, newest_first=True)
            last = newest[0].seq if newest else 0
        new = [
            LogEntry(seq, staged.record.rev, staged.record.touched, data)
            for seq, data in enumerate(staged.entries, last + 1)
            if seq > after
        ]
        if newest_first:
            found = new[::-1][:limit]
            if len(found) < limit and last:
                found += await self._store.log(kind, id, after=after, limit=limit - len(found), newest_first=True)
            return found
        found = await self._store.log(kind, id, after=after, limit=limit) if last > after else []
        return [*found, *new][:limit]

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        return await self._store.claim(kind, id, owner=owner, ttl=ttl)

    async def begin_turn(
        self, kind: str, id: str, *, owner: str, ttl: float, dead: bool = False, notify: bool = False
    ) -> Turn:
        return (await self.begin_turns([(kind, id)], owner=owner, ttl=ttl, dead=dead, notify=notify))[0]

    async def begin_turns(
        self, keys: Sequence[Key], *, owner: str, ttl: float, dead: bool = False, notify: bool = False
    ) -> list[Turn]:
        return await self._store.begin_turns(keys, owner=owner, ttl=ttl, dead=dead, notify=notify)

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        return await self._store.renew(claim, ttl=ttl)

    async def release(self, claim: Claim) -> bool:
        return await self._store.release(claim)

    async def holder(self, kind: str, id: str) -> Claim | None:
        return await self._store.holder(kind, id)

    async def scan(
        self,
        *,
        kind: str | None = None,
        principal: str | None = None,
        state: State | None = "live",
        after: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        return await self._store.scan(kind=kind, principal=principal, state=state, after=after, limit=limit)

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        return await self._store.count(kind=kind, principal=principal, state=state)

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        return await self._store.reap(kind=kind, expired_for=expired_for, ended_for=ended_for)

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        return await self._store.erase(principal, kind=kind)

    async def publish(self, topic: str, data: JSON) -> None:
        await self._store.publish(topic, data)

    def listen(self, *topics: str) -> AbstractAsyncContextManager[AsyncIterator[NoticeOrGap]]:
        return self._store.listen(*topics)
