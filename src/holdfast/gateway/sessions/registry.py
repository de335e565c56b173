"""All sessions: begun, found, put to rest, ended, and reaped, in this process and for dead ones.

It owns limits, lifetimes and the least-recently-used order of live sessions. It refuses an id that is unknown, expired
or another caller's with one and the same answer: None.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.events import GatewaySessionBegan, GatewaySessionEnded, Sink
from holdfast.core.handshake import Saved
from holdfast.core.lifecycle import GatewaySessionEvent, GatewaySessionState
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.core.values import members
from holdfast.errors import (
    Busy,
    Conflict,
    Ended,
    HoldfastError,
    LimitReached,
    NotFound,
    SessionExpired,
    StoreDown,
)
from holdfast.gateway.backends.backend import GRACE, Backend
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.sessions.session import KIND, Client, Session, new_id, record_id
from holdfast.links.lifecycle.ending import end_saved
from holdfast.links.memory.store import KIND as LINKS
from holdfast.links.options import Options
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

TOPIC = "gateway"  # where processes tell each other of ended sessions
AT_ONCE = 20  # sessions that a reaper ends together: each may be a DELETE to every backend
CLAIM_SECONDS = 60.0  # to end one
TOMBSTONE = 300.0  # seconds that an ended session is remembered: its id never comes again, and no write is that late
LOOKS = 5  # at the number of sessions before somebody is refused: others begin and end meanwhile
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
        *,
        owner: str,
    ) -> None:
        self.store = store
        self.settings = settings
        self.backends = backends
        self.retable = retable
        self.new_streams: Callable[[], Streams] = Streams
        self.owner = owner
        self.live: OrderedDict[str, Session] = OrderedDict()
        self._sink = sink
        self.clock = clock
        self._offset = 0.0
        """The store's time less ours: only the store says when a session expires."""
        self._finding: dict[str, asyncio.Task[Session | None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._resting: set[asyncio.Task[None]] = set()
        self._unreaped: set[str] = set()
        """Names of records that this round of the reaper could not end; below, the round before."""
        self._unreaped_before: set[str] = set()
        self._beginning: dict[int, Principal] = {}
        """Sessions on their way, in the order in which they were asked for: each counts those before it."""
        self._places = itertools.count()
        self._begun = 0
        """How many have ended their way, in a session or not: a count during which it grew may have seen some twice."""
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
        place = next(self._places)
        self._beginning[place] = principal
        try:
            await self._check_limits(principal, place)
            session = await self._begin(Session(self, id or new_id(), principal, client, era))
        finally:
            del self._beginning[place]
            self._begun += 1
        self._tell(GatewaySessionBegan(time.time(), session.key, principal, era.value))
        session.step(GatewaySessionEvent.STARTED)
        self.live[session.id] = session
        if session.overrides:  # its own lists were made while others came up, which told only the live sessions
            self.retable(session)
        await self._forget_old(session)
        self._rest_some(session)
        return session

    async def _forget_old(self, session: Session) -> None:
        """A reload while it began: links to servers that are no longer configured."""
        for name, backend_link in list(session.links.items()):
            if self.backends.get(name) is not backend_link.backend:
                del session.links[name]
                await backend_link.close("reconfigured", end=True, leaves_loss=True)

    async def _begin(self, session: Session) -> Session:
        try:
            await self._start(session)
            await self._commit(session)
        except BaseException:
            await self._let_go(session, "did not begin", end=True)
            raise
        return session

    async def _commit(self, session: Session) -> None:
        """The first writing of the record; a backend may come up, and write, while it is under way."""
        before = session.changes
        session.record = await self.store.commit(session.to_record(), expect=0)
        self._offset = session.record.touched - self.clock.now()
        if session.changes != before:
            await session.write(lambda _: None)

    async def _check_limits(self, principal: Principal, place: int) -> None:
        """No lock: everybody counts at once, and whoever came later counts those who came before as well."""
        settings = self.settings
        mine = total = 0
        for _ in range(LOOKS):
            begun = self._begun
            ahead = [each for number, each in self._beginning.items() if number < place]
            mine, total = await asyncio.gather(
                self.store.count(kind=KIND, principal=principal), self._count_all(len(ahead))
            )
            mine += ahead.count(principal)
            if (mine < settings.per_principal and total < settings.total) or self._begun == begun:
                break  # else some of those ahead may stand in both figures
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

    async def _count_all(self, ahead: int) -> int:
        """Everybody's sessions: counted once a second, or each time where it matters."""
        counted, total = self._totals
        if self.clock.monotonic() - counted > 1.0 or total + 1 >= self.settings.total:
            total = await self.store.count(kind=KIND) + ahead
            counted = self.clock.monotonic()
            self._totals = counted, total
            return total
        self._totals = counted, total + 1
        return total + 1

    async def _start(self, session: Session) -> None:
        """All eager backends at once. Whatever one does, the others serve and the session opens."""
        starting: list[asyncio.Task[None]] = []
        for backend in self.backends.values():
            if backend.policy.start == "lazy" or backend.resting or backend.is_per_caller:
                continue
            if backend.policy.reuse != "session" and backend.catalogue is not None:
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
            if backend.policy.reuse != "session":
                await backend.check()
                return
            await backend.spare_comes()
            backend_link = session.backend_link(backend)
            await backend_link.start()
            if backend.catalogue is None or backend.is_stale:
                await backend.refresh(backend_link.link)
            backend.warm_up(session.client.capabilities)
        except HoldfastError as error:
            log.info("session %s: %s did not start: %s", session.key[:8], backend.name, error.what)

    async def find(self, id: str, principal: Principal) -> Session | None:
        """The caller's live session, here or as the store has it."""
        session = self.live.get(id)
        while session is None or session.state is GatewaySessionState.DETACHED:  # put to rest before we came to use it
            session = await self._find(id)
            if session is None:
                return None
        if session.principal != principal or session.state is not GatewaySessionState.OPEN:
            return None
        now = self.clock.monotonic()
        if self._expired(session, now):
            self.end_soon(session, "expired")
            return None
        session.used = now
        if now - session.touched > self.settings.idle / 10:
            session.touched = now
            session.start(self._touch(session), "touch")
        self.live.move_to_end(id)
        return session

    @contextmanager
    def calling(self, session: Session) -> Generator[None]:
        """A call is under way in this session: it is not idle, and its end waits for the call."""
        task = asyncio.current_task()
        assert task is not None
        key = f"call-{secrets.token_hex(8)}"
        session.calls[key] = task
        try:
            yield
        finally:
            session.calls.pop(key, None)
            self.was_used(session)

    def was_used(self, session: Session) -> None:
        """A call has ended: its session idles from now on."""
        session.used = self.clock.monotonic()

    def _expired(self, session: Session, now: float) -> bool:
        return self._over(0.0 if session.in_use else now - session.used, now - session.begun)

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
        session.step(GatewaySessionEvent.STARTED)
        self.live[id] = session
        self._rest_some(session)
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

    def _rest_some(self, newest: Session) -> None:
        """More live sessions than a process should hold: those used longest ago rest in the store."""
        extra = len(self.live) - self.settings.live
        if extra <= 0:
            return
        for session in [each for each in self.live.values() if not each.busy and each is not newest][:extra]:
            del self.live[session.id]
            self._rest(session, "at rest")

    def _rest(self, session: Session, reason: str) -> None:
        session.step(GatewaySessionEvent.HANDED_OVER)
        task = asyncio.get_running_loop().create_task(self._let_go(session, reason, end=False), name="rest session")
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    async def _let_go(self, session: Session, reason: str, *, end: bool) -> None:
        await session.cancel_calls()
        if session.streams is not None:
            session.streams.end()
        await session.close_links(reason, end=end)

    def end_soon(self, session: Session, reason: str) -> None:
        if session.id not in self._ending:
            self._ending[session.id] = self._start_ending(session, reason, True)

    async def end(self, session: Session, reason: str, *, tell: bool = True) -> None:
        """End it at every backend and in the store. Whoever asks may be cancelled, the ending goes on."""
        ending = self._ending.get(session.id)
        if ending is None:
            ending = self._ending[session.id] = self._start_ending(session, reason, tell)
        await asyncio.shield(ending)

    def _start_ending(self, session: Session, reason: str, tell: bool) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._end(session, reason, tell), name="end session")
        task.add_done_callback(lambda task: self._ended(session, task))
        return task

    def _ended(self, session: Session, task: "asyncio.Task[None]") -> None:
        self._ending.pop(session.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session %s could not be ended: %s", session.key[:8], error)

    async def _end(self, session: Session, reason: str, tell: bool) -> None:
        event = GatewaySessionEvent.EXPIRED if reason == "expired" else GatewaySessionEvent.DELETED
        if session.state not in (GatewaySessionState.OPEN, GatewaySessionState.STARTING):
            return
        await self.store.end(KIND, session.key)  # first: nobody begins another call on it
        session.step(event)
        self.live.pop(session.id, None)
        if tell:
            try:
                await self.store.publish(TOPIC, {"ended": session.key})
            except HoldfastError as error:
                log.warning("session %s: its end was not told: %s", session.key[:8], error)
        await self._drain(session)
        if tell:
            await self._end_unopened(session)
        await self._let_go(session, reason, end=tell)  # else whoever ended it has told the servers
        session.step(GatewaySessionEvent.DRAINED)
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
            if name not in session.links or session.links[name].link.handshake is None
        }
        await self._end_saved(session.key, left)

    async def _end_saved(self, key: str, entries: Mapping[str, Any]) -> None:
        async def end(name: str, entry: Any) -> None:
            backend = self.backends.get(name)
            known = members(entry)
            raw = known.get("saved")
            if backend is None or raw is None or known.get("at") not in (None, backend.at):
                return  # nothing stands there, or at a server that nobody knows any more
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
        self._unreaped_before, self._unreaped = self._unreaped, set()
        due_here: list[Session] = []
        for session in list(self.live.values()):
            if self._expired(session, now):
                due_here.append(session)
            elif session.in_use and now - session.touched > self.settings.idle / 10:
                session.touched = now
                await self._reap_each({session.key: self._touch(session)})
        for start in range(0, len(due_here), AT_ONCE):
            part = [self.end(session, "expired") for session in due_here[start : start + AT_ONCE]]
            for failed in await asyncio.gather(*part, return_exceptions=True):
                ended += not isinstance(failed, BaseException)
        after: str | None = None
        while True:
            page = await self.store.scan(kind=KIND, after=after)
            due = [record for record in page.records if self._is_due(record)]
            for start in range(0, len(due), AT_ONCE):
                part = due[start : start + AT_ONCE]
                ended += await self._reap_each({each.id: self._end_record(each, "expired") for each in part})
            if page.next is None:
                break
            after = page.next
        await self._reap_principals()
        for backend in list(self.backends.values()):
            await backend.close_idle(self.settings.idle, self._works)
        await self.store.reap(kind=KIND, ended_for=TOMBSTONE)
        return ended

    async def _reap_each(self, work: Mapping[str, Awaitable[object]]) -> int:
        """By name of record. One that is damaged is left to the store's own expiry, and keeps no other alive."""
        done = await asyncio.gather(*work.values(), return_exceptions=True)
        for name, outcome in zip(work, done, strict=True):
            if isinstance(outcome, StoreDown):
                raise outcome
            if isinstance(outcome, BaseException):
                if name not in self._unreaped_before:  # once, and not in every round
                    log.warning("%s can't be ended, and is left to expire in the store: %s", name[:80], outcome)
                self._unreaped.add(name)
        return sum(outcome is True for outcome in done)

    def _is_due(self, record: Record) -> bool:
        if not self._over(*self._ages(record)):
            return False
        now = self.clock.monotonic()
        return not any(session.key == record.id and not self._expired(session, now) for session in self.live.values())

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
                backend = self.backends.get(parts[1])
                if backend is None or backend.has_principal(record.principal):
                    continue
                lost = members(record.data).get("lost") is True  # ended, and kept to be told of
                if not lost and self._ages(record)[0] > self.settings.idle and not await self._works(record.principal):
                    await self._reap_each({record.id: self._end_principal(record, backend)})
            if page.next is None:
                return
            after = page.next

    async def _works(self, principal: Principal) -> bool:
        """Has it a session, here or in another process?"""
        if any(each.principal == principal and each.state is GatewaySessionState.OPEN for each in self.live.values()):
            return True
        return await self.store.count(kind=KIND, principal=principal) > 0

    async def _end_principal(self, record: Record, backend: Backend) -> None:
        try:
            claim = await self.store.claim(LINKS, record.id, owner=self.owner, ttl=CLAIM_SECONDS)
        except Busy:
            return
        try:
            fresh = await self.store.get(LINKS, record.id)
            if fresh is None or fresh.data is None or self._ages(fresh)[0] <= self.settings.idle:
                return
            await self._end_saved(record.id, {backend.name: {"saved": fresh.data, "at": members(fresh.data).get("at")}})
            memory = backend.memory_of(record.principal, self.settings.idle)
            memory.leaves_loss = (await memory.load()).saved is not None
            await memory.forget()
        finally:
            await self.store.release(claim)

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
            ending = [self.end(session, "shutdown") for session in list(self.live.values())]
            await asyncio.gather(*ending, return_exceptions=True)
        else:
            for session in list(self.live.values()):
                del self.live[session.id]
                self._rest(session, "shutdown")
        for waiting in (self._resting, set(self._ending.values()), set(self._finding.values())):
            if waiting:
                await asyncio.wait(waiting, timeout=self.settings.drain)
