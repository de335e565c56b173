"""Which sessions may begin: the limits of one caller and of all callers, counted without a lock.

It owns the sessions on their way: each counts those that came before it as well as those in the store.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.core.clock import Clock
from holdfast.core.models import Principal
from holdfast.errors import LimitReached
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.record import KIND
from holdfast.stores.contract import Store

LOOKS = 5  # at the number of sessions before one is refused: others begin and end meanwhile
RETRY_AFTER = 5.0  # seconds, for a caller that met a limit
COUNTED_SECONDS = 1.0  # for which a count of all sessions is good enough, where the limit is far


def check_limits(settings: Settings, mine: int, total: int) -> None:
    """`LimitReached` if this many sessions leave no room for another one."""
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


class Admission:
    """The sessions of one gateway that are beginning."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._beginning: dict[int, Principal] = {}
        """Sessions on their way, in the order in which they were asked for."""
        self._places = itertools.count()
        self._begun = 0
        """How many have ended their way, in a session or not: a count during which it grew may have seen some twice."""
        self._totals: tuple[float, int] = (float("-inf"), 0)

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def admitted(self, principal: Principal) -> AsyncGenerator[None]:
        """A session begins inside the block; `LimitReached` if there are too many."""
        place = next(self._places)
        self._beginning[place] = principal
        try:
            await self._check(principal, place)
            yield
        finally:
            del self._beginning[place]
            self._begun += 1

    async def _check(self, principal: Principal, place: int) -> None:
        """No lock: all count at once, and each counts those that came before it as well."""
        settings = self._settings
        mine = total = 0
        for _ in range(LOOKS):
            begun = self._begun
            ahead = [each for number, each in self._beginning.items() if number < place]
            mine, total = await asyncio.gather(
                self._store.count(kind=KIND, principal=principal), self._count_all(len(ahead))
            )
            mine += ahead.count(principal)
            if (mine < settings.per_principal and total < settings.total) or self._begun == begun:
                break  # else some of those ahead may stand in both figures
        check_limits(settings, mine, total)

    async def _count_all(self, ahead: int) -> int:
        """All callers' sessions: counted once a second, or each time where the limit is near."""
        counted, total = self._totals
        if self._clock.monotonic() - counted > COUNTED_SECONDS or total + 1 >= self._settings.total:
            total = await self._store.count(kind=KIND) + ahead
            counted = self._clock.monotonic()
            self._totals = counted, total
            return total
        self._totals = counted, total + 1
        return total + 1
