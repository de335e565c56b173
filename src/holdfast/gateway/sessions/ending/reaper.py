"""The reaper: ends sessions that have expired, live ones and those that no process holds, and idle shared links.

It owns which records could not be ended, so that each is logged once and not in every round.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from holdfast.core.models import Principal, Record
from holdfast.core.values import members
from holdfast.errors import HoldfastError, StoreDown
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.parking.record import KIND as PARKED
from holdfast.gateway.sessions.record import KIND
from holdfast.gateway.sessions.registry import Sessions
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.memory.store import KIND as LINKS

log = logging.getLogger("holdfast.gateway")

REAP_SECONDS = 30.0  # between two rounds of the reaper, at most
AT_ONCE = 20  # sessions that are ended together: each may be a DELETE to every backend
TOMBSTONE = 300.0  # seconds that an ended session is remembered: its id never comes again, and no write is that late

T = TypeVar("T")


class Reaper:
    """The reaper of one gateway's sessions."""

    def __init__(self, sessions: Sessions, backends: Mapping[str, Backend]) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._lifetimes = sessions.lifetimes
        self._backends = backends
        self._failed: set[str] = set()
        """Names of records that this round could not end; below, those of the round before."""
        self._failed_before: set[str] = set()

    async def keep_reaping(self) -> None:
        """Reap again and again, until cancelled."""
        while True:
            await asyncio.sleep(min(REAP_SECONDS, max(0.2, self._sessions.settings.idle / 10)))
            try:
                await self.reap()
            except HoldfastError as error:
                log.warning("expired sessions were not all ended: %s", error)
            except Exception:
                log.exception("expired sessions were not all ended")

    async def reap(self) -> int:
        """End what has expired, whichever process began it. Returns how many."""
        self._failed_before, self._failed = self._failed, set()
        ended = await self._reap_live()
        ended += await self._reap_stored()
        await self._reap_principals()
        idle = self._sessions.settings.idle
        for backend in list(self._backends.values()):
            await backend.links.close_idle(idle, self._sessions.has_session)
        await self._store.reap(kind=KIND, ended_for=TOMBSTONE)
        await self._store.reap(kind=PARKED, ended_for=0.0)
        return ended

    async def _reap_live(self) -> int:
        """End what is over here, and touch what is in use: its record must not expire."""
        due: list[GatewaySession] = []
        ended = 0
        for session in list(self._sessions.live.values()):
            if self._sessions.is_over(session):
                due.append(session)
            elif session.in_use and self._sessions.must_touch(session):
                await self._each({session.key: self._sessions.touch(session)})
        for part in _parts(due):
            ending = [self._sessions.endings.end(session, "expired") for session in part]
            for failed in await asyncio.gather(*ending, return_exceptions=True):
                ended += not isinstance(failed, BaseException)
        return ended

    async def _reap_stored(self) -> int:
        ended = 0
        after: str | None = None
        while True:
            page = await self._store.scan(kind=KIND, after=after)
            for part in _parts([record for record in page.records if self._is_due(record)]):
                ended += await self._each(
                    {each.id: self._sessions.endings.end_stored(each, "expired") for each in part}
                )
            if page.next is None:
                return ended
            after = page.next

    def _is_due(self, record: Record) -> bool:
        if not self._lifetimes.is_record_over(record):
            return False
        live = self._sessions.live.by_key(record.id)
        return live is None or self._sessions.is_over(live)

    async def _reap_principals(self) -> None:
        """End sessions at servers of principals whose process is gone."""
        after: str | None = None
        while True:
            page = await self._store.scan(kind=LINKS, after=after)
            for record in page.records:
                backend = self._backend_of(record)
                if backend is not None and await self._is_abandoned(record):
                    ending = self._sessions.stored.end_of_principal(record, backend, self._sessions.settings)
                    await self._each({record.id: ending})
            if page.next is None:
                return
            after = page.next

    def _backend_of(self, record: Record) -> Backend | None:
        """The backend of a principal's session that no link of this process uses."""
        parts = record.id.split("/", 3)
        if parts[0] != "gateway" or len(parts) != 4 or record.data is None:
            return None
        backend = self._backends.get(parts[1])
        return None if backend is None or backend.links.has_principal(record.principal) else backend

    async def _is_abandoned(self, record: Record) -> bool:
        if members(record.data).get("lost") is True:  # ended, and kept for the report of the loss
            return False
        idle = self._lifetimes.ages(record)[0]
        return idle > self._sessions.settings.idle and not await self._sessions.has_session(Principal(record.principal))

    async def _each(self, work: Mapping[str, Awaitable[object]]) -> int:
        """Run work by the name of its record. A damaged one is left to expire in the store, and holds up no other."""
        done = await asyncio.gather(*work.values(), return_exceptions=True)
        for name, outcome in zip(work, done, strict=True):
            if isinstance(outcome, StoreDown):
                raise outcome
            if isinstance(outcome, BaseException):
                if name not in self._failed_before:
                    log.warning("%s can't be ended, and is left to expire in the store: %s", name[:80], outcome)
                self._failed.add(name)
        return sum(outcome is True for outcome in done)


def _parts(items: list[T]) -> list[list[T]]:
    return [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]
