"""All sessions: begun, found, put to rest, ended, and reaped, in this process and for dead ones.

It owns limits, lifetimes and the least-recently-used order of live sessions. It refuses an id that is unknown, expired
or another caller's with one and the same answer: None.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.events import GatewaySessionBegan, GatewaySessionEnded, Sink
from holdfast.core.greeting import Saved
from holdfast.core.lifecycle import SessionEvent, SessionState
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.errors import Busy, Conflict, Ended, HoldfastError, LimitReached, NotFound, SessionExpired
from holdfast.gateway.backend import GRACE, Backend
from holdfast.gateway.config import Sessions as Settings
from holdfast.gateway.session import KIND, Client, Session, new_id, record_id
from holdfast.links.ending import end_saved
from holdfast.links.memory import KIND as LINKS
from holdfast.links.memory import StoreMemory
from holdfast.links.options import Options
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.gateway")

TOPIC = "gateway"  # where processes tell each other of ended sessions
AT_ONCE = 20  # sessions that a reaper ends together: each may be a DELETE to every backend
CLAIM_SECONDS = 60.0  # to end one
RETRY_AFTER = 5.0  # seconds, told to whoever meets a limit


class Sessions:
    """The sessions of one gateway."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        backends: Mapping[str, Backend],
        retable: Callable[[Session], None],
        sink: Sink | None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.settings = settings
        self.backends = backends
        self.retable = retable
        self.owner = f"gateway-{secrets.token_hex(8)}"
        self.live: OrderedDict[str, Session] = OrderedDict()
        self._sink = sink
        self.clock = clock
        self._offset = 0.0
        """The store's time less ours: only the store says when a session expires."""
        self._finding: dict[str, asyncio.Task[Session | None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._resting: set[asyncio.Task[None]] = set()
        self._totals: tuple[float, int] = (float("-inf"), 0)

    @property
    def spans(self) -> tuple[float, float]:
        """A record outlives its session a little, so that whoever ends it can still read what must be ended."""
        return self.settings.idle + GRACE, self.settings.max_age + GRACE

    def _tell(self, event: Any) -> None:
        if self._sink is not None:
            self._sink(event)

    # Begin and find

    async def begin(
        self, principal: Principal, client: Client, era: Era = Era.Y2025, id: FrontSessionId | None = None
    ) -> Session:
        """A new session with its backends starting; returns at the latest when the start deadline has passed."""
        await self._check_limits(principal)
        session = Session(self, id or new_id(), principal, client, era)
        self._tell(GatewaySessionBegan(time.time(), session.key, principal, era.value))
        try:
            await self._start(session)
            committing = session.to_record()
            session.take(await self.store.commit(committing, expect=0))
        except BaseException:
            await self._let_go(session, "did not begin", end=True)
            raise
        assert session.record is not None
        self._offset = session.record.touched - self.clock.now()
        session.step(SessionEvent.STARTED)
        self.live[session.id] = session
        self._rest_some()
        return session

    async def _check_limits(self, principal: Principal) -> None:
        settings = self.settings
        mine = await self.store.count(kind=KIND, principal=principal)
        counted, total = self._totals
        if self.clock.monotonic() - counted > 1.0 or total >= settings.total:
            total = mine if mine >= settings.total else await self.store.count(kind=KIND)
            self._totals = (self.clock.monotonic(), total)
        for count, limit, whose in (
            (mine, settings.per_principal, "this caller's"),
            (total, settings.total, "all callers'"),
        ):
            if count >= limit:
                raise LimitReached(
                    f"{count} of {limit} sessions, {whose}, are open",
                    limit=limit,
                    actual=count,
                    retry_after=RETRY_AFTER,
                    remedy="end sessions that are done, or raise the limits under `sessions`",
                )
        self._totals = (self._totals[0], total + 1)

    async def _start(self, session: Session) -> None:
        """All eager backends at once. Whatever one does, the others serve and the session opens."""
        starting: list[asyncio.Task[None]] = []
        for backend in self.backends.values():
            if backend.policy.start == "lazy" or backend.resting or backend.policy.reuse != "session":
                continue
            task = asyncio.get_running_loop().create_task(
                self._start_one(session, backend), name=f"start {backend.name}"
            )
            session.tasks.add(task)
            task.add_done_callback(session.tasks.discard)
            starting.append(task)
        if starting:
            await asyncio.wait(starting, timeout=self.settings.start)

    async def _start_one(self, session: Session, backend: Backend) -> None:
        try:
            back = session.back(backend)
            await back.start()
            if backend.catalogue is None or backend.is_stale:
                await backend.refresh(back.link)
            backend.warm_up(session.client.capabilities)
        except HoldfastError as error:
            log.info("session %s: %s did not start: %s", session.key[:8], backend.name, error.what)

    async def find(self, id: str, principal: Principal) -> Session | None:
        """The caller's live session, here or as the store has it."""
        session = self.live.get(id)
        if session is None:
            session = await self._find(id)
        if session is None or session.principal != principal or session.state is not SessionState.OPEN:
            return None
        now = self.clock.monotonic()
        if self._over(now - session.used, now - session.begun):
            self.end_soon(session, "expired")
            return None
        session.used = now
        if now - session.touched > self.settings.idle / 10:
            session.touched = now
            session.start(self._touch(session), "touch")
        self.live.move_to_end(id)
        return session

    def _over(self, idle: float, age: float) -> bool:
        return idle > self.settings.idle or age > self.settings.max_age

    async def _find(self, id: str) -> Session | None:
        """One read of the store for all who ask at once."""
        if len(id) > 200:
            return None
        finding = self._finding.get(id)
        if finding is None:
            finding = asyncio.get_running_loop().create_task(self._load(id), name="find session")
            self._finding[id] = finding
            finding.add_done_callback(lambda _: self._finding.pop(id, None))
        return await asyncio.shield(finding)

    async def _load(self, id: str) -> Session | None:
        if id in self._ending:
            return None
        record = await self.store.get(KIND, record_id(id))
        if record is None or not isinstance(record.data, dict):
            return None
        idle, age = self._ages(record)
        if self._over(idle, age):
            await self._end_record(record, "expired")
            return None
        era = Era.Y2026 if record.data.get("era") == Era.Y2026.value else Era.Y2025
        session = Session(self, FrontSessionId(id), record.principal, Client.from_json(record.data.get("client")), era)
        session.take(record)
        now = self.clock.monotonic()
        session.used, session.begun = now - idle, now - age
        session.touched = float("-inf")
        session.step(SessionEvent.STARTED)
        self.live[id] = session
        self._rest_some()
        return session

    def _ages(self, record: Record) -> tuple[float, float]:
        now = self.clock.now() + self._offset
        return max(0.0, now - record.touched), max(0.0, now - record.created)

    async def _touch(self, session: Session) -> None:
        try:
            await self.store.touch(KIND, session.key)
        except (Ended, NotFound, SessionExpired):
            # Another process ended it.
            await self.end(session, "ended elsewhere", tell=False)

    # Rest and end

    def _rest_some(self) -> None:
        """More live sessions than a process should hold: those used longest ago rest in the store."""
        extra = len(self.live) - self.settings.live
        if extra <= 0:
            return
        for session in [each for each in self.live.values() if not each.busy][:extra]:
            del self.live[session.id]
            self._rest(session, "at rest")

    def _rest(self, session: Session, reason: str) -> None:
        session.step(SessionEvent.HANDED_OVER)
        task = asyncio.get_running_loop().create_task(self._let_go(session, reason, end=False), name="rest session")
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    async def _let_go(self, session: Session, reason: str, *, end: bool) -> None:
        await session.cancel_calls()
        if session.streams is not None:
            session.streams.end()
        await session.close_links(reason, end=end)

    def end_soon(self, session: Session, reason: str) -> None:
        self._ending.setdefault(session.id, self._start_ending(session, reason, True))

    async def end(self, session: Session, reason: str, *, tell: bool = True) -> None:
        """End it at every backend and in the store. Whoever asks may be cancelled, the ending goes on."""
        ending = self._ending.get(session.id)
        if ending is None:
            ending = self._ending[session.id] = self._start_ending(session, reason, tell)
        await asyncio.shield(ending)

    def _start_ending(self, session: Session, reason: str, tell: bool) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._end(session, reason, tell), name="end session")
        task.add_done_callback(lambda _: self._ending.pop(session.id, None))
        return task

    async def _end(self, session: Session, reason: str, tell: bool) -> None:
        event = SessionEvent.EXPIRED if reason == "expired" else SessionEvent.DELETED
        if session.state not in (SessionState.OPEN, SessionState.STARTING):
            return
        session.step(event)
        self.live.pop(session.id, None)
        try:
            await self.store.end(KIND, session.key)  # first: nobody begins another call on it
            if tell:
                await self.store.publish(TOPIC, {"ended": session.key})
        except HoldfastError as error:
            log.error("session %s could not be ended in the store: %s", session.key[:8], error)
        await self._drain(session)
        await self._end_unopened(session)
        await self._let_go(session, reason, end=True)
        session.step(SessionEvent.DRAINED)
        lifetime = self.clock.monotonic() - session.begun
        self._tell(GatewaySessionEnded(time.time(), session.key, session.principal, reason, lifetime))

    async def _drain(self, session: Session) -> None:
        calls = [task for task in session.calls.values() if task is not asyncio.current_task()]
        if calls:
            await asyncio.wait(calls, timeout=self.settings.drain)

    async def _end_unopened(self, session: Session) -> None:
        """Sessions at backends that this process has not used yet, or that went with another one."""
        left = {
            name: entry
            for name, entry in session.backends.items()
            if name not in session.backs or session.backs[name].link.greeting is None
        }
        await self._end_saved(session.key, left)

    async def _end_saved(self, key: str, entries: Mapping[str, Any]) -> None:
        async def end(name: str, entry: Any) -> None:
            backend = self.backends.get(name)
            raw = cast("dict[str, Any]", entry).get("saved") if isinstance(entry, dict) else None
            if backend is None or raw is None:
                return
            server = backend.entry.server
            await end_saved(server.target, Saved.from_json(raw), Options(limits=server.limits), name)

        results = await asyncio.gather(*(end(*item) for item in entries.items()), return_exceptions=True)
        for name, failed in zip(entries, results, strict=True):
            if isinstance(failed, BaseException):
                log.warning("session %s at %s is left to expire there: %s", key[:8], name, failed)

    # The reaper

    async def reap(self) -> int:
        """End what has expired, whoever began it. Returns how many."""
        now, ended = self.clock.monotonic(), 0
        for session in list(self.live.values()):
            if self._over(now - session.used, now - session.begun) and not session.calls:
                await self.end(session, "expired")
                ended += 1
            elif now - session.used < self.settings.idle / 10 and now - session.touched > self.settings.idle / 10:
                session.touched = now
                await self._touch(session)
        after: str | None = None
        while True:
            page = await self.store.scan(kind=KIND, after=after)
            due = [record for record in page.records if self._is_due(record)]
            for start in range(0, len(due), AT_ONCE):
                part = due[start : start + AT_ONCE]
                done = await asyncio.gather(*(self._end_record(record, "expired") for record in part))
                ended += sum(done)
            if page.next is None:
                break
            after = page.next
        await self._reap_principals()
        for backend in self.backends.values():
            await backend.close_idle(self.settings.idle)
        await self.store.reap(kind=KIND)
        return ended

    def _is_due(self, record: Record) -> bool:
        if not self._over(*self._ages(record)):
            return False
        now = self.clock.monotonic()
        return not any(
            session.key == record.id and not self._over(now - session.used, now - session.begun)
            for session in self.live.values()
        )

    async def _end_record(self, record: Record, reason: str) -> bool:
        """End a session that no process holds live. One process does it."""
        live = next((session for session in self.live.values() if session.key == record.id), None)
        if live is not None:
            await self.end(live, reason)
            return True
        try:
            claim = await self.store.claim(KIND, record.id, owner=self.owner, ttl=CLAIM_SECONDS)
        except Busy:
            return False
        try:
            fresh = await self.store.get(KIND, record.id)
            if fresh is None or (reason == "expired" and not self._over(*self._ages(fresh))):
                return False
            data = fresh.data if isinstance(fresh.data, dict) else {}
            backends = data.get("backends")
            ended = await self.store.end(KIND, record.id, created=record.created, fence=claim.token)
            await self._end_saved(record.id, cast("dict[str, Any]", backends) if isinstance(backends, dict) else {})
            await self.store.publish(TOPIC, {"ended": record.id})
        except Conflict:
            return False
        finally:
            await self.store.release(claim)
        age = self._ages(record)[1]
        self._tell(GatewaySessionEnded(time.time(), record.id, record.principal, reason, age))
        return ended

    async def end_by_key(self, key: str, reason: str = "ended by hand") -> bool:
        """End a session by the name of its record."""
        record = await self.store.get(KIND, key)
        return record is not None and await self._end_record(record, reason)

    async def _reap_principals(self) -> None:
        """Sessions of principals whose process is gone."""
        after: str | None = None
        while True:
            page = await self.store.scan(kind=LINKS, after=after)
            for record in page.records:
                parts = record.id.split("/", 3)
                if parts[0] != "gateway" or len(parts) != 4 or record.data is None:
                    continue
                if self._ages(record)[0] > self.settings.idle and parts[1] in self.backends:
                    memory = StoreMemory(self.store, record.id, principal=record.principal)
                    await self._end_saved(record.id, {parts[1]: {"saved": record.data}})
                    await memory.forget()
            if page.next is None:
                return
            after = page.next

    def ended_elsewhere(self, key: str) -> None:
        """Another process says so."""
        session = next((each for each in self.live.values() if each.key == key), None)
        if session is not None and session.id not in self._ending:
            self._ending[session.id] = self._start_ending(session, "ended elsewhere", False)

    # The end of the process

    async def close(self, *, end: bool) -> None:
        """Let go of every live session: ended, or left in the store for the next process."""
        for session in self.live.values():
            if session.streams is not None:
                session.streams.end()
        calls = [task for session in self.live.values() for task in session.calls.values()]
        if calls:
            await asyncio.wait(calls, timeout=self.settings.drain)
        if end:
            await asyncio.gather(*(self.end(session, "shutdown") for session in list(self.live.values())))
        else:
            for session in list(self.live.values()):
                del self.live[session.id]
                self._rest(session, "shutdown")
        for waiting in (self._resting, set(self._ending.values()), set(self._finding.values())):
            if waiting:
                await asyncio.wait(waiting, timeout=self.settings.drain)
