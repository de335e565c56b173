"""The sessions of one gateway: begun, and found again, here or by their records.

An id that is unknown, expired or another caller's gets one and the same answer: None. Which sessions are live is in
`live.py`, how one ends in `endings.py`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.lifecycle import GatewaySessionState
from holdfast.core.models import FrontSessionId, Principal
from holdfast.errors import Ended, NotFound, SessionExpired
from holdfast.events import GatewaySessionBegan, Sink
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.fronts.http.streams import Streams
from holdfast.gateway.lists.listeners import Listeners
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.sessions.admission import Admission
from holdfast.gateway.sessions.ending.endings import Endings
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes
from holdfast.gateway.sessions.ending.stored import StoredSessions
from holdfast.gateway.sessions.live import LiveSessions
from holdfast.gateway.sessions.record import KIND, Client, era_of, new_id, record_id
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.sessions.start import start_backends
from holdfast.gateway.tasks.ids import TaskIds
from holdfast.links.trace import step
from holdfast.observers import deliver, is_observed
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
        listeners: Listeners | None = None,
        sink: Sink | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.settings = settings
        self.backends = backends
        self.offers = offers
        self.owner = owner
        self.new_streams = new_streams
        self.listeners = Listeners() if listeners is None else listeners
        self.clock = clock
        self.task_ids = TaskIds(store)
        self.live = LiveSessions()
        self.lifetimes = Lifetimes(settings, clock)
        self.stored = StoredSessions(store, owner, backends, self.lifetimes, sink)
        self.endings = Endings(store, settings, self.live, self.stored, sink=sink, clock=clock)
        self._admission = Admission(store, settings, clock)
        self._sink = sink
        self._finding: dict[str, asyncio.Task[GatewaySession | None]] = {}

    def configure(self, settings: Settings) -> None:
        """Other settings, for live sessions too."""
        self.settings = settings
        self.lifetimes.configure(settings)
        self._admission.configure(settings)
        self.endings.configure(settings)

    # Begin and find

    async def begin(
        self, principal: Principal, client: Client, era: Era = Era.Y2025, id: FrontSessionId | None = None
    ) -> GatewaySession:
        """A new session with its backends starting; returns at the latest when the start deadline has passed."""
        async with self._admission.admitted(principal):
            session = GatewaySession(self, id or new_id(), principal, client, era)
            try:
                with step("session start", {"mcp.session.id": session.key}) as span:
                    if span is not None:
                        session.started_in(span.context)
                    await start_backends(session, self.backends.values(), self.settings.start)
                    await session.record.commit_first()
            except BaseException:
                await session.close("did not begin", end=True)
                raise
        if is_observed(self._sink):
            deliver(GatewaySessionBegan(time.time(), session.key, principal, era.value), self._sink)
        self.live.add(session, self.settings.live)
        session.lists.rebuild()  # other backends' lists may have changed meanwhile; only live sessions were updated
        await self._close_outdated(session)
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
            self.endings.end_soon(session, "expired")
            return None
        session.usage.mark_used(self.clock.monotonic())
        if self.must_touch(session):
            session.start(self.touch(session), "touch")
        self.live.mark_used(session)
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
        if self.endings.is_ending(id):
            return None
        record = await self.store.get(KIND, record_id(id))
        if record is None or not isinstance(record.data, dict):
            return None
        if self.lifetimes.is_record_over(record):
            await self.endings.end_stored(record, "expired")
            return None
        client = Client.from_json(record.data.get("client"))
        session = GatewaySession(self, FrontSessionId(id), record.principal, client, era_of(record))
        session.record.take(record)
        session.usage.restore(self.clock.monotonic(), *self.lifetimes.ages(record))
        self.live.add(session, self.settings.live)
        return session

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
            await self.endings.end(session, "ended elsewhere", announce=False)

    # The end of the process

    async def close(self, *, end: bool) -> None:
        """Close every live session: ended, or left in the store for the next process."""
        self.live.end_streams()
        calls = [task for session in self.live.values() for task in session.calls.values()]
        if calls:
            await asyncio.wait(calls, timeout=self.settings.drain)
        if end:
            ending = [self.endings.end(each, "shutdown") for each in self.live.values()]
            await asyncio.gather(*ending, return_exceptions=True)
        else:
            for session in list(self.live.values()):
                self.live.rest(session, "shutdown")
        await self.live.wait_rested(self.settings.drain)
        await self.endings.wait(self.settings.drain)
        if self._finding:
            await asyncio.wait(set(self._finding.values()), timeout=self.settings.drain)
