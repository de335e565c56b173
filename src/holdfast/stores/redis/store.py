"""The store on Redis or Valkey, for many machines: a single primary.

Each step is one script, atomic on the server. Clusters and replicas are refused when it is opened. It warns once
about settings that would lose records: eviction, and no append-only file.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

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
    decide_claim,
    decide_claims,
    decide_end,
    decide_renew,
    decide_touch,
    refuse_commits,
)
from holdfast.core.values import JSON
from holdfast.errors import ConfigError, CorruptRecord, HoldfastError
from holdfast.events import RecordsReaped, Sink, StoreOpened, StoreWarned
from holdfast.stores.base import BaseStore, Begun, Look, Rows, to_the_end, written
from holdfast.stores.codec import Codec, check_fence, corrupt
from holdfast.stores.contract import PAGE, TOMBSTONE_SECONDS
from holdfast.stores.paging import Reading, check_after, check_ages, check_filters, check_limit, cursor, position
from holdfast.stores.redis.archive import RedisArchive
from holdfast.stores.redis.notice_listener import RedisNoticeListener
from holdfast.stores.redis.pool import AnswerLost, CancelledLate, RedisPool
from holdfast.stores.redis.rows import claim_from, log_row_from, refusal_from, row_from, text_of
from holdfast.stores.redis.scripts import SCRIPTS, SEPARATOR, Script, bounds, key_of_index, matches, name_of

OLDEST = (6, 2)
KEEP_SECONDS = 7 * 86_400.0  # the server drops what is dead by itself after this, if nothing reaps
BATCH = 200  # names looked at in one command: well under a millisecond
BATCH_BYTES = 256 * 1024  # of bodies in one answer, beyond which it is cut short

_log = logging.getLogger("holdfast")
_warned: set[tuple[str, str]] = set()


class RedisStore(BaseStore):
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
        connections: int = 32,
        prefix: str = "holdfast",
    ) -> None:
        super().__init__(url, clock=clock, codec=codec, on_event=on_event)
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix):
            raise ConfigError(f"{url}: prefix={prefix} is not a plain word", remedy="use letters, digits and _ . : -")
        self._injected = clock
        self._timeout = timeout
        self._prefix = prefix
        self._pool = RedisPool(dsn, url, timeout, connections)
        self._listener = RedisNoticeListener(self._pool, prefix, self._listeners, self._listener_failed)

    # Opening and closing

    async def _open(self) -> None:
        self._pool.open()
        self._listener = RedisNoticeListener(self._pool, self._prefix, self._listeners, self._listener_failed)
        text = (await self._pool.command("INFO", "everything")).decode()
        info = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        version = tuple(int(part) for part in info.get("redis_version", "0.0").split(".")[:2])
        if version < OLDEST:
            raise ConfigError(
                f"{self.url} runs Redis {info['redis_version']}",
                store=self.url,
                remedy=f"Holdfast needs {'.'.join(map(str, OLDEST))} or newer",
            )
        if info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster":
            raise ConfigError(
                f"{self.url} is a cluster", store=self.url, remedy="use a single primary: a commit spans several keys"
            )
        if info.get("role") not in (None, "master"):
            raise ConfigError(
                f"{self.url} is a replica", store=self.url, remedy=f"use the primary, {info.get('master_host')}"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            self._warn(
                f"{self.url} evicts records when memory runs short (maxmemory-policy {policy})",
                "set maxmemory-policy noeviction",
            )
        if info.get("aof_enabled", "1") != "1":
            self._warn(f"{self.url} forgets its latest records in a crash (no append-only file)", "set appendonly yes")
        await self._pool.commands([("SCRIPT", "LOAD", text) for text, _ in SCRIPTS.values()])
        self._report(lambda at: StoreOpened(at, self.url, 1))

    async def _close(self) -> None:
        await self._listener.close()
        await self._pool.close()

    def _warn(self, what: str, remedy: str) -> None:
        self._report(lambda at: StoreWarned(at, self.url, what, remedy))
        if (self.url, what) not in _warned:
            _warned.add((self.url, what))
            _log.warning("%s; %s", what, remedy)

    # Records

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        check_key(kind, id)
        found = await self._run("get", name_of(kind, id))
        if found is None:
            return None
        now, row = _got(kind, id, found)
        return self._codec.record(row, now) if dead or row.state(now) == "live" else None

    async def _commit(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        given: list[object] = [str(len(writes)), str(len(release))]
        for write in writes:
            given += (name_of(*write.key), str(write.expect), write.principal, write.body, str(write.added))
            given += (text_of(write.idle), text_of(write.max_age), text_of(write.created), write.nonce)
            given += (write.entries or b"", "" if write.fence is None else str(write.fence))
        for claim in release:
            given += (name_of(claim.kind, claim.id), str(claim.token), self._codec.turn_notice(claim))
        try:
            found = await self._run("commit", "", *given)
        except AnswerLost as lost:
            return await self._settle(writes, lost, partial(self._look_back, writes, lost))
        if not found[0]:
            raise self._refusal(writes, release, found[1:])
        moments = zip(writes, found[1::2], found[2::2], strict=True)
        return [written(write, created=float(created), touched=float(touched)) for write, created, touched in moments]

    def _refusal(
        self, writes: Sequence[EncodedWrite], release: Sequence[Claim], found: Sequence[Sequence[Any]]
    ) -> CorruptRecord:
        """Raise what stands against a commit, or return the error that nothing does."""
        keys = [*(write.key for write in writes), *((claim.kind, claim.id) for claim in release)]
        rows: dict[Key, Row] = {}
        claims: dict[Key, Claim] = {}
        now = 0.0
        for key, fields in zip(keys, found, strict=True):
            now, row, claim = refusal_from(*key, fields)
            if row is not None:
                rows[key] = row
            if claim is not None:
                claims[key] = claim
        refuse_commits(now, rows, claims, writes, release)
        return self._disagreement("commit", *keys[0])

    async def _look_back(self, writes: Sequence[EncodedWrite], lost: AnswerLost) -> Look:
        """Make sure that nothing we sent is still to be executed, so that what is read next is final."""
        if lost.client is not None:
            # By number and address: after a restart of the server the number alone may be another client's.
            await self._pool.command("CLIENT", "KILL", "ID", lost.client[0], "ADDR", lost.client[1])
        _, rows = await self._read_all([write.key for write in writes])
        return {row.key: row for each in rows if (row := each()) is not None}

    async def _read_all(self, keys: Sequence[Key]) -> tuple[float, Rows]:
        now, *found = await self._run("get_all", "", *(name_of(*key) for key in keys))
        return float(now), [partial(_row, key, fields) for key, fields in zip(keys, found, strict=True)]

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        check_fence(fence)
        check_key(kind, id)
        found = await self._change("touch", name_of(kind, id), "" if fence is None else str(fence))
        if not found[0]:
            now, row, claim = refusal_from(kind, id, found)
            decide_touch(now, row, claim, kind, id, fence)
            raise self._disagreement("touch", kind, id)

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        check_fence(fence)
        check_key(kind, id)
        given = "" if created is None else text_of(created), "" if fence is None else str(fence)
        found = await self._change("end", name_of(kind, id), *given)
        if found[0]:
            return True
        now, row, claim = refusal_from(kind, id, found)
        if decide_end(now, row, claim, created=created, fence=fence) is not None:
            raise self._disagreement("end", kind, id)
        return False

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        check_limit(limit)
        check_after(after)
        check_key(kind, id)
        found = await self._run("log", name_of(kind, id), str(after), str(limit), "1" if newest_first else "0")
        if not found:
            return []
        principal, *rest = found
        rows = [log_row_from(kind, id, body, last) for body, last in zip(rest[::2], rest[1::2], strict=True)]
        return self._codec.log(kind, id, principal.decode(), rows, after, limit, newest_first)

    # Claims

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        check_key(kind, id)
        check_name(owner, "owner")
        check_seconds(ttl, "ttl")
        found = await self._change("claim", name_of(kind, id), owner, text_of(ttl))
        if not found[0]:
            decide_claim(float(found[1]), claim_from(kind, id, found[2:]), kind, id, owner, ttl, lambda: 0)
            raise self._disagreement("claim", kind, id)
        return Claim(kind, id, owner, found[1], float(found[2]))

    async def _begin_to_the_end(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        """Without a task of its own, which would take as long as the script: only the answer is waited for."""
        names = [name_of(*key) for key in keys]
        given = owner, text_of(ttl), str(int(notify)), *names
        try:
            found = await self._change("begin_turns", "", *given, awaited=True)
        except CancelledLate as late:
            with suppress(HoldfastError):
                await to_the_end(self._give_back(self._begun(keys, owner, ttl, late.answers[0]).claims))
            raise asyncio.CancelledError from None
        return self._begun(keys, owner, ttl, found)

    def _begun(self, keys: Sequence[Key], owner: str, ttl: float, answer: Sequence[Any]) -> Begun:
        done, moment, *found = answer
        now = float(moment)
        if not done:
            held = [claim_from(*key, fields) for key, fields in zip(keys, found, strict=True)]
            decide_claims(now, {(c.kind, c.id): c for c in held if c is not None}, keys, owner, ttl, lambda: 0)
            raise self._disagreement("claim", *keys[0])
        claims = [
            Claim(*key, owner, token, float(expires))
            for key, token, expires in zip(keys, found[::3], found[1::3], strict=True)
        ]
        return Begun(claims, now, [partial(_row, key, fields) for key, fields in zip(keys, found[2::3], strict=True)])

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        check_seconds(ttl, "ttl")
        found = await self._change("renew", name_of(claim.kind, claim.id), str(claim.token), text_of(ttl))
        if not found[0]:
            decide_renew(float(found[1]), claim_from(claim.kind, claim.id, found[2:]), claim, ttl)
            raise self._disagreement("renew", claim.kind, claim.id)
        return Claim(claim.kind, claim.id, found[1].decode(), claim.token, float(found[2]))

    async def release(self, claim: Claim) -> bool:
        name, notice = name_of(claim.kind, claim.id), self._codec.turn_notice(claim)
        return bool(await self._change("release", name, str(claim.token), notice))

    async def holder(self, kind: str, id: str) -> Claim | None:
        check_key(kind, id)
        return claim_from(kind, id, await self._run("holder", name_of(kind, id)))

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
        self._check_open()
        start = position(after, damaged=True)
        reading = Reading(self._report_corrupt)
        last = ("", "")
        index = key_of_index(self._prefix, principal)
        while True:
            moment, *found = await self._run("page", index, *bounds(kind, start), str(BATCH), str(BATCH_BYTES))
            now = float(moment)
            if not found:
                return reading.page(None)
            for name, fields in zip(found[::2], found[1::2], strict=True):
                row_kind, _, row_id = name.decode("utf-8", "surrogateescape").partition(SEPARATOR)
                start = row_kind, row_id
                if all(field is None for field in fields):
                    continue  # the server forgot it, and its index will be reaped
                try:
                    row = row_from(row_kind, row_id, fields)
                except CorruptRecord as error:
                    if len(reading) == limit:
                        return reading.page(cursor(*last))
                    reading.refuse(error)
                else:
                    if not matches(row.state(now), state) or row.principal != (principal or row.principal):
                        continue
                    if len(reading) == limit:
                        return reading.page(cursor(*last))
                    reading.take(partial(self._codec.record, row, now))
                last = start

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        check_filters(kind, principal, state)
        self._check_open()
        total = 0
        for wanted in ("live", "expired", "ended") if state is None else (state,):
            low, high = bounds(kind, None)
            while True:
                index = key_of_index(self._prefix, principal)
                some, last = await self._run("count", index, low, high, str(BATCH), wanted, principal or "")
                total += some
                if not last:
                    break
                low = b"(" + last
        return total

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        check_ages(kind, expired_for, ended_for)
        expired = await self._reap("exp", kind, expired_for)
        tombstones = await self._reap("dead", kind, ended_for)
        self._report(lambda at: RecordsReaped(at, self.url, expired, tombstones))
        return Reaped(expired, tombstones)

    async def _reap(self, index: str, kind: str | None, age: float) -> int:
        total = skipped = 0
        while True:
            wanted = "" if kind is None else kind + SEPARATOR
            removed, seen = await self._change("reap", index, text_of(age), wanted, str(skipped), str(BATCH))
            total += removed
            skipped += seen - removed
            if seen < BATCH:
                return total

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        check_filters(kind, principal, None)
        index, erased = key_of_index(self._prefix, principal), 0
        while some := await self._change("erase", index, *bounds(kind, None), str(BATCH)):
            erased += some
        return erased

    # Notices

    async def publish(self, topic: str, data: JSON) -> None:
        self._check_open()
        check_name(topic, "topic")
        body = self._codec.notice(topic, data)
        try:
            await self._pool.command("PUBLISH", f"{self._prefix}:n:{topic}", body)
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    def listen(self, *topics: str) -> AbstractAsyncContextManager[AsyncIterator[NoticeOrGap]]:
        self._check_open()
        return self._listener.listen(topics, self._timeout)

    # Asking

    def archive(self) -> RedisArchive:
        """For `copy_store` and `reseal_store`."""
        self._check_open()
        return RedisArchive(self._pool, self._prefix, KEEP_SECONDS if self._injected is None else None, self._run)

    async def _run(self, script: Script, name: str, *given: Any, awaited: bool = False) -> Any:
        self._check_open()
        clock = ("", str(KEEP_SECONDS)) if self._injected is None else (text_of(self._injected.now()), "")
        return await self._pool.script(script, self._prefix, name, *clock, *given, awaited=awaited)

    async def _change(self, script: Script, name: str, *given: Any, awaited: bool = False) -> Any:
        """A write that no nonce can settle: after a lost answer the caller must look."""
        try:
            return await self._run(script, name, *given, awaited=awaited)
        except AnswerLost as lost:
            raise self._unsettled(lost) from lost

    def _disagreement(self, step: str, kind: str, id: str) -> CorruptRecord:
        """The script refused what the rules allow: a field that Holdfast did not write."""
        return corrupt(kind, id, f"the server would not {step} it")


def _got(kind: str, id: str, found: list[Any]) -> tuple[float, Row]:
    """What the `get` script returns: the fields, and behind them the time in seconds and microseconds."""
    return float(found[10]) + float(found[11]) / 1e6, row_from(kind, id, found[:10])


def _row(key: Key, fields: Sequence[Any]) -> Row | None:
    """A row of a script that returns several, all fields of which are empty where nothing was found."""
    return None if fields[1] is None else row_from(*key, fields)
