"""The end of sessions: here, by what the store has of them, or noticed from another process.

It owns the endings under way: a session is ended once, however many ask for it.
"""

import asyncio
import logging
import time

from holdfast.core.clock import Clock
from holdfast.core.lifecycle import GatewaySessionEvent, GatewaySessionState
from holdfast.core.models import Gap, Record
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.events import GatewaySessionEnded, Sink
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.ending.stored import TOPIC, StoredSessions
from holdfast.gateway.sessions.live import LiveSessions
from holdfast.gateway.sessions.record import KIND
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.observers import deliver, is_observed
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

LISTEN_AGAIN = 1.0  # seconds before the store is listened to again, after it failed


class Endings:
    """The endings of one gateway's sessions."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        live: LiveSessions,
        stored: StoredSessions,
        *,
        sink: Sink | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._settings = settings
        self._live = live
        self._stored = stored
        self._sink = sink
        self._clock = clock
        self._ending: dict[str, asyncio.Task[None]] = {}

    def configure(self, settings: Settings) -> None:
        """Other settings, for sessions that end from now on."""
        self._settings = settings

    def is_ending(self, id: str) -> bool:
        """Is a session of this id being ended here?"""
        return id in self._ending

    async def end(
        self, session: GatewaySession, reason: str, *, announce: bool = True, cut_calls: bool = False
    ) -> None:
        """End it at every backend and in the store. The caller may be cancelled, the ending goes on. `announce=False`:
        another process has ended it, also at the servers. `cut_calls`: calls under way are answered at once."""
        await asyncio.shield(self.end_soon(session, reason, announce=announce, cut_calls=cut_calls))

    def end_soon(
        self, session: GatewaySession, reason: str, *, announce: bool = True, cut_calls: bool = False
    ) -> "asyncio.Task[None]":
        """Begin to end it, without waiting for that."""
        ending = self._ending.get(session.id)
        if ending is None:
            work = self._end(session, reason, announce, cut_calls)
            ending = self._ending[session.id] = asyncio.get_running_loop().create_task(work, name="end session")
            ending.add_done_callback(lambda task: self._ended(session, task))
        return ending

    def _ended(self, session: GatewaySession, task: "asyncio.Task[None]") -> None:
        self._ending.pop(session.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session %s could not be ended: %s", session.key[:8], error, extra={"session": session.key})

    async def _end(self, session: GatewaySession, reason: str, announce: bool, cut_calls: bool) -> None:
        if session.state not in (GatewaySessionState.OPEN, GatewaySessionState.STARTING):
            return
        await self._store.end(KIND, session.key)  # first: no call begins on it any more
        session.step(GatewaySessionEvent.EXPIRED if reason == "expired" else GatewaySessionEvent.DELETED)
        self._live.remove(session)
        if announce:
            try:
                await self._store.publish(TOPIC, {"ended": session.key, "cut_calls": cut_calls})
            except HoldfastError as error:
                log.warning(
                    "session %s: its end was not announced: %s", session.key[:8], error, extra={"session": session.key}
                )
        await session.drain(0.0 if cut_calls else self._settings.drain)
        if announce:
            await self._stored.end_at_servers(session.key, session.unopened())
        await session.close(reason, end=announce)
        session.step(GatewaySessionEvent.DRAINED)
        if is_observed(self._sink):
            lifetime = self._clock.monotonic() - session.usage.begun
            deliver(GatewaySessionEnded(time.time(), session.key, session.principal, reason, lifetime), self._sink)

    async def end_stored(self, record: Record, reason: str) -> bool:
        """End a session by its record, whether it is live here or not. One process does it."""
        live = self._live.by_key(record.id)
        if live is None:
            return await self._stored.end(record, reason)
        await self.end(live, reason)
        return True

    async def end_by_key(self, key: str, reason: str = "ended by hand") -> bool:
        """End a session by the name of its record."""
        record = await self._store.get(KIND, key)
        return record is not None and await self.end_stored(record, reason)

    async def follow_other_processes(self) -> None:
        """End here what other processes have ended, until cancelled."""
        while True:
            try:
                async with self._store.listen(TOPIC) as notices:
                    async for notice in notices:
                        if isinstance(notice, Gap):
                            continue  # each session's next touch finds out
                        said = members(notice.data)
                        key, cut_calls = said.get("ended"), said.get("cut_calls") is True
                        session = self._live.by_key(key) if isinstance(key, str) else None
                        if session is not None:
                            self.end_soon(session, "ended elsewhere", announce=False, cut_calls=cut_calls)
            except HoldfastError as error:
                log.warning("sessions that other processes end are not noticed at once: %s", error)
            await asyncio.sleep(LISTEN_AGAIN)

    async def wait(self, seconds: float) -> None:
        """Wait until no session is being ended, or the time is over."""
        if self._ending:
            await asyncio.wait(set(self._ending.values()), timeout=seconds)
