"""All sessions of one gateway: begun, found, put to rest and ended.

It owns the live sessions and their least-recently-used order. An id that is unknown, expired or another caller's gets
one and the same answer: None.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.lifecycle import GatewaySessionEvent, GatewaySessionState
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.errors import Ended, HoldfastError, NotFound, SessionExpired
from holdfast.events import Event, GatewaySessionBegan, GatewaySessionEnded, Sink
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.offers import Offers
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.sessions.admission import Admission
from holdfast.gateway.sessions.lifetimes import Lifetimes
from holdfast.gateway.sessions.record import KIND, Client, era_of, new_id, record_id
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.sessions.start import start_backends
from holdfast.gateway.sessions.stored import TOPIC, StoredSessions
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

ID_LENGTH = 200  # characters of an id that is looked for: ours are far shorter


class Sessions:
    """The sessions of one gateway."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        backends: Mapping[str, Backend],
        offers: Offers,
        *,
        owner: str,
        new_streams: Callable[[], Streams] = Streams,
        sink: Sink | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.settings = settings
        self.backends = backends
        self.offers = offers
        self.owner = owner
        self.new_streams = new_streams
        self.clock = clock
        self.live: OrderedDict[str, GatewaySession] = OrderedDict()
        """By id. The one used last stands last."""
        self.lifetimes = Lifetimes(settings, clock)
        self.stored = StoredSessions(store, owner, backends, self.lifetimes, sink)
        self._admission = Admission(store, settings, clock)
        self._sink = sink
        self._finding: dict[str, asyncio.Task[GatewaySession | None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._resting: set[asyncio.Task[None]] = set()

    def configure(self, settings: Settings) -> None:
        """Other settings, for live sessions too."""
        self.settings = settings
        self.lifetimes.configure(settings)
        self._admission.configure(settings)

    def _emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)

    # Begin and find

    async def begin(
        self, principal: Principal, client: Client, era: Era = Era.Y2025, id: FrontSessionId | None = None
    ) -> GatewaySession:
        """A new session with its backends starting; returns at the latest when the start deadline has passed."""
        async with self._admission.admitted(principal):
            session = GatewaySession(self, id or new_id(), principal, client, era)
            try:
                await start_backends(session, self.backends.values(), self.settings.start)
                await session.record.commit_first()
            except BaseException:
                await session.close("did not begin", end=True)
                raise
        self._emit(GatewaySessionBegan(time.time(), session.key, principal, era.value))
        session.step(GatewaySessionEvent.STARTED)
        self.live[session.id] = session
        session.lists.rebuild()  # other backends' lists may have changed meanwhile; only live sessions were updated
        await self._close_outdated(session)
        self._rest_some(session)
        return session

    async def _close_outdated(self, session: GatewaySession) -> None:
        """A reload while the session began: close links to servers that are no longer configured."""
        for name, backend_link in list(session.links.items()):
            if self.backends.get(name) is not backend_link.backend:
                session.links.drop(name)
                session.lists.rebuild()
                await backend_link.close("reconfigured", end=True, leaves_loss=True)

    async def find(self, id: str, principal: Principal) -> GatewaySession | None:
        """The caller's live session, here or as the store has it."""
        session = self.live.get(id)
        while session is None or session.state is GatewaySessionState.DETACHED:  # put to rest before it could be used
            session = await self._find(id)
            if session is None:
                return None
        if session.principal != principal or session.state is not GatewaySessionState.OPEN:
            return None
        if self.is_over(session):
            self._end_soon(session, "expired", announce=True)
            return None
        session.usage.mark_used(self.clock.monotonic())
        if self.must_touch(session):
            session.start(self.touch(session), "touch")
        self.live.move_to_end(id)
        return session

    async def _find(self, id: str) -> GatewaySession | None:
        """One read of the store for all requests that look for a session at once."""
        if len(id) > ID_LENGTH:
            return None
        finding = self._finding.get(id)
        if finding is None:
            finding = asyncio.get_running_loop().create_task(self._load(id), name="find session")
            self._finding[id] = finding
            finding.add_done_callback(lambda _: self._finding.pop(id, None))
        return await asyncio.shield(finding)

    async def _load(self, id: str) -> GatewaySession | None:
        if id in self._ending:
            return None
        record = await self.store.get(KIND, record_id(id))
        if record is None or not isinstance(record.data, dict):
            return None
        if self.lifetimes.is_record_over(record):
            await self.end_stored(record, "expired")
            return None
        client = Client.from_json(record.data.get("client"))
        session = GatewaySession(self, FrontSessionId(id), record.principal, client, era_of(record))
        session.record.take(record)
        session.usage.restore(self.clock.monotonic(), *self.lifetimes.ages(record))
        session.step(GatewaySessionEvent.STARTED)
        self.live[id] = session
        self._rest_some(session)
        return session

    def live_by_key(self, key: str) -> GatewaySession | None:
        """The live session whose record has this name."""
        return next((session for session in self.live.values() if session.key == key), None)

    async def has_session(self, principal: Principal) -> bool:
        """Does a principal have a session, here or in another process?"""
        if any(each.principal == principal and each.state is GatewaySessionState.OPEN for each in self.live.values()):
            return True
        return await self.store.count(kind=KIND, principal=principal) > 0

    # Time

    def is_over(self, session: GatewaySession) -> bool:
        """Has a live session expired?"""
        return self.lifetimes.is_over(session.usage, in_use=session.in_use)

    def must_touch(self, session: GatewaySession) -> bool:
        """Is it time to touch the record? Then it counts as touched."""
        return session.usage.take_touch(self.clock.monotonic(), self.lifetimes.touch_every)

    async def touch(self, session: GatewaySession) -> None:
        """Keep the record of a session in use from expiring."""
        try:
            await self.store.touch(KIND, session.key)
        except (Ended, NotFound, SessionExpired):
            await self._end_here(session, "ended elsewhere", announce=False)

    # Rest

    def _rest_some(self, newest: GatewaySession) -> None:
        """More live sessions than a process should hold: those used longest ago rest in the store."""
        extra = len(self.live) - self.settings.live
        if extra <= 0:
            return
        for session in [each for each in self.live.values() if each.may_rest and each is not newest][:extra]:
            self._rest(session, "at rest")

    def _rest(self, session: GatewaySession, reason: str) -> None:
        del self.live[session.id]
        session.step(GatewaySessionEvent.HANDED_OVER)
        task = asyncio.get_running_loop().create_task(session.close(reason, end=False), name="rest session")
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    # The end of one session

    async def end(self, session: GatewaySession, reason: str) -> None:
        """End it at every backend and in the store. The caller may be cancelled, the ending goes on."""
        await self._end_here(session, reason, announce=True)

    async def _end_here(self, session: GatewaySession, reason: str, *, announce: bool) -> None:
        await asyncio.shield(self._end_soon(session, reason, announce=announce))

    def _end_soon(self, session: GatewaySession, reason: str, *, announce: bool) -> "asyncio.Task[None]":
        """`announce=False`: another process has ended it, also at the servers."""
        ending = self._ending.get(session.id)
        if ending is None:
            work = self._end(session, reason, announce)
            ending = self._ending[session.id] = asyncio.get_running_loop().create_task(work, name="end session")
            ending.add_done_callback(lambda task: self._ended(session, task))
        return ending

    def _ended(self, session: GatewaySession, task: "asyncio.Task[None]") -> None:
        self._ending.pop(session.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session %s could not be ended: %s", session.key[:8], error)

    async def _end(self, session: GatewaySession, reason: str, announce: bool) -> None:
        if session.state not in (GatewaySessionState.OPEN, GatewaySessionState.STARTING):
            return
        await self.store.end(KIND, session.key)  # first: no call begins on it any more
        session.step(GatewaySessionEvent.EXPIRED if reason == "expired" else GatewaySessionEvent.DELETED)
        self.live.pop(session.id, None)
        if announce:
            try:
                await self.store.publish(TOPIC, {"ended": session.key})
            except HoldfastError as error:
                log.warning("session %s: its end was not announced: %s", session.key[:8], error)
        await session.drain(self.settings.drain)
        if announce:
            await self.stored.end_at_servers(session.key, session.unopened())
        await session.close(reason, end=announce)
        session.step(GatewaySessionEvent.DRAINED)
        lifetime = self.clock.monotonic() - session.usage.begun
        self._emit(GatewaySessionEnded(time.time(), session.key, session.principal, reason, lifetime))

    async def end_stored(self, record: Record, reason: str) -> bool:
        """End a session by its record, whether it is live here or not. One process does it."""
        live = self.live_by_key(record.id)
        if live is None:
            return await self.stored.end(record, reason)
        await self.end(live, reason)
        return True

    async def end_by_key(self, key: str, reason: str = "ended by hand") -> bool:
        """End a session by the name of its record."""
        record = await self.store.get(KIND, key)
        return record is not None and await self.end_stored(record, reason)

    def ended_elsewhere(self, key: str) -> None:
        """Another process has ended a session."""
        session = self.live_by_key(key)
        if session is not None:
            self._end_soon(session, "ended elsewhere", announce=False)

    # The end of the process

    def end_streams(self) -> None:
        """Clients that listen see that it is over in this process."""
        for session in self.live.values():
            if session.streams is not None:
                session.streams.end()

    async def close(self, *, end: bool) -> None:
        """Let go of every live session: ended, or left in the store for the next process."""
        self.end_streams()
        calls = [task for session in self.live.values() for task in session.calls.values()]
        if calls:
            await asyncio.wait(calls, timeout=self.settings.drain)
        if end:
            ending: list[Coroutine[Any, Any, None]] = [self.end(each, "shutdown") for each in self.live.values()]
            await asyncio.gather(*ending, return_exceptions=True)
        else:
            for session in list(self.live.values()):
                self._rest(session, "shutdown")
        for waiting in (self._resting, set(self._ending.values()), set(self._finding.values())):
            if waiting:
                await asyncio.wait(waiting, timeout=self.settings.drain)
