"""A slot of the pool: one link, its leases, and since when it is idle. Only its methods change it."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from holdfast.client.declaration import ServerDeclaration
from holdfast.client.runs.link_users import LinkUsers
from holdfast.links.link import Link
from holdfast.links.target import CommandTarget

Key: TypeAlias = tuple[ServerDeclaration, str, object, int]
"""Server, principal, scope (a run; or for the process, the capabilities of its runs), event loop."""

CLOCK_SLACK = 0.01  # seconds: tolerance for a timer that fires early
CHECK_AFTER = 60.0  # seconds idle after which a kept link is checked before it is used again


class Slot:
    """One link, and its leases."""

    def __init__(self, key: Key, link: Link, users: LinkUsers, now: float) -> None:
        self.key = key
        self.link = link
        self.users = users
        self.loop = asyncio.get_running_loop()
        self.leases = 1
        self.retired = False
        """It gets no new leases, and the link is closed when the last one is released."""
        self._created = now
        self.used = now
        """When it was used last."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = f"{self.leases} leases" if self.leases else "idle"
        return f"<Slot {self.server.name} {state}{', retired' if self.retired else ''}>"

    @property
    def server(self) -> ServerDeclaration:
        return self.key[0]

    @property
    def program(self) -> bool:
        return isinstance(self.server.target, CommandTarget)

    @property
    def kept(self) -> bool:
        """Whether it stays open for later runs of the process."""
        return isinstance(self.key[2], frozenset)

    def lease(self, now: float) -> bool:
        """Add a lease. Returns True if the link was idle for so long that it must be checked before use."""
        idled, self.used = now - self.used, now
        self.leases += 1
        self._stop_timer()
        return self.leases == 1 and idled > CHECK_AFTER

    def give_back(self, now: float) -> None:
        self.leases -= 1
        self.used = now
        if not self.leases:
            self._stop_timer()

    def take_back(self) -> None:
        """Remove a lease that failed."""
        self.leases -= 1

    def retire(self) -> None:
        self.retired = True
        self._stop_timer()

    def fresh(self, now: float) -> bool:
        """Whether it was used recently. Calling this counts as use."""
        if now - self.used > CHECK_AFTER:
            return False
        self.used = now
        return True

    def checked(self, now: float) -> None:
        self.used = now

    def renewed(self, now: float) -> None:
        """Record that the link was closed and reconnects with its next call."""
        self._created = now

    def outworn(self, now: float) -> bool:
        """Whether it has been idle for too long or is too old, whether or not it is leased."""
        return now - self.used > self.server.idle or self._aged(now)

    def too_old(self, now: float) -> bool:
        """Whether it may not be leased again. A leased slot is not idle."""
        return self._aged(now) if self.leases else self.outworn(now)

    def _aged(self, now: float) -> bool:
        return self.server.max_age is not None and now - self._created > self.server.max_age

    def start_timer(self, now: float, expired: Callable[["Slot"], None]) -> None:
        """Call `expired` when it has been idle for too long or is too old."""
        left = self.used + self.server.idle - now
        if self.server.max_age is not None:
            left = min(left, self._created + self.server.max_age - now)
        self._timer = self.loop.call_later(max(left, 0.0) + CLOCK_SLACK, expired, self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
