"""The pool of links that runs lease: one per (server, principal, scope, event loop), never shared across these.

It owns every link that runs use: limits and the queue for room, least-recently-used eviction, idle time, maximum age,
and the health check before an idle link is used again. A link is never closed while it is leased: an old one is
drained. `slots.py` decides, on slots and queue alone; waiting, checking and closing are done here.
"""

import asyncio
import atexit
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.client.runs.link_users import LinkUser, LinkUsers
from holdfast.client.runs.slot import Key, Slot
from holdfast.client.runs.slots import Slots, Waiter
from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.errors import HoldfastError, LeaseClosed
from holdfast.links.link import Link

log = logging.getLogger("holdfast.client")

MAX_LINKS = 256  # of a process: a hard limit for programs; for other links, only while one can be closed instead
WAIT = 60.0  # seconds for a free link before `PoolFull`, for a call without a timeout: as long as a start may take
LOOK_AGAIN = 0.5  # seconds
CHECK_SECONDS = 5.0  # for the health check of an idle link


@dataclass(frozen=True)
class PoolStatistics:
    """The counters of a pool."""

    opens: int = 0
    reuses: int = 0
    evictions: int = 0
    health_failures: int = 0
    close_failures: int = 0
    open_links: int = 0
    leased: int = 0


class Lease:
    """The right to use a link until it is released."""

    def __init__(self, pool: "Pool", slot: Slot) -> None:
        self._pool = pool
        self._slot: Slot | None = slot

    @property
    def link(self) -> Link:
        if self._slot is None:
            raise LeaseClosed("the lease was released", remedy="call within the run that holds it")
        return self._slot.link

    def join(self, user: LinkUser) -> None:
        """Let the user answer the server's questions and get the link's events until it leaves."""
        if self._slot is not None:
            self._slot.users.join(user, self._slot.link)

    def leave(self, user: LinkUser) -> None:
        if self._slot is not None:
            self._slot.users.leave(user, self._slot.link)

    def fresh(self) -> bool:
        """Whether the link was used recently. Calling this counts as use."""
        return self._slot is None or self._slot.fresh(self._pool.clock.monotonic())

    async def check(self) -> None:
        """Check an idle link of the run before it is used again."""
        if self._slot is not None:
            await self._pool.check_leased(self._slot)

    async def release(self, *, end: bool | None = None) -> None:
        """Release the lease; may be called twice. `end=False` leaves the server's session alive."""
        slot, self._slot = self._slot, None
        if slot is not None:
            await self._pool.give_back(slot, end)


@dataclass
class Pool:
    """The links of one process."""

    max_links: int = MAX_LINKS
    wait: float = WAIT
    clock: Clock = SYSTEM
    slots: Slots = field(default_factory=Slots)
    _closing: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])
    _checking: dict[Slot, "asyncio.Task[None]"] = field(default_factory=dict[Slot, "asyncio.Task[None]"])
    _count: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("opens", "reuses", "evictions", "health_failures", "close_failures"), 0)
    )

    def statistics(self) -> PoolStatistics:
        slots = self.slots.all()
        return PoolStatistics(**self._count, open_links=len(slots), leased=sum(slot.leases > 0 for slot in slots))

    async def lease(self, key: Key, make: Callable[[], tuple[Link, LinkUsers]]) -> Lease:
        """Lease the key's link:
        the kept one if it is not too old and healthy, else a new one. Waits for room in order of arrival, without a
        limit of its own.
        """
        waiter: Waiter | None = None
        try:
            while True:
                self.slots.forget_dead_loops()
                slot, must_check = self._lease_kept(key)
                if slot is not None:
                    if must_check and not await self._check_kept(slot):
                        continue
                    self._count["reuses"] += 1
                    return Lease(self, slot)
                if self.slots.has_room(key[0], waiter, self.max_links):
                    return Lease(self, self._open(key, make))
                if waiter is None:
                    waiter = Waiter(key[0], asyncio.get_running_loop())
                    self.slots.queue.append(waiter)
                closing = self._evict(self.slots.to_evict(key[0], self.max_links))
                await (asyncio.shield(closing) if closing is not None else self._wait(waiter))
        finally:
            if waiter is not None:
                self.slots.queue.remove(waiter)
                self.slots.wake()  # the next waiter may have room now

    async def give_back(self, slot: Slot, end: bool | None) -> None:
        slot.give_back(self.clock.monotonic())
        if slot.leases:
            return
        if slot.retired or not slot.kept:
            self.slots.retire(slot)
            await self._close(slot, end)
        else:
            slot.start_timer(self.clock.monotonic(), self._idled)
        self.slots.wake()

    async def check_leased(self, slot: Slot) -> None:
        """Check an idle link of a run, once for all calls that wait for it."""
        checking = self._checking.get(slot)
        if checking is None:
            checking = self._checking[slot] = asyncio.get_running_loop().create_task(self._check_leased(slot))
            checking.add_done_callback(lambda _: self._checking.pop(slot, None))
        await asyncio.shield(checking)

    async def close(self) -> None:
        """Close every kept link of this event loop that is not leased."""
        idle = self.slots.idle_here()
        for slot in idle:
            self.slots.retire(slot)
        await asyncio.gather(*(self._close(slot, None) for slot in idle))

    # Decisions, on slots and queue as they are now.

    def _lease_kept(self, key: Key) -> tuple[Slot | None, bool]:
        """The slot of this key with one more lease, and whether it must be checked;
        a slot that is too old is retired.
        """
        slot, now = self.slots.kept.get(key), self.clock.monotonic()
        if slot is not None and slot.too_old(now):
            self._retire_and_close(slot)
            slot = None
        return (None, False) if slot is None else (slot, slot.lease(now))

    def _open(self, key: Key, make: Callable[[], tuple[Link, LinkUsers]]) -> Slot:
        link, users = make()
        slot = self.slots.kept[key] = Slot(key, link, users, self.clock.monotonic())
        self._count["opens"] += 1
        if not slot.program and len(self.slots.all()) > self.max_links:
            self._evict(
                self.slots.oldest_idle(lambda idle: not idle.program)
            )  # if there is none, the limit is exceeded for a while
        return slot

    def _evict(self, slot: Slot | None) -> "asyncio.Task[None] | None":
        if slot is None:
            return None
        self._count["evictions"] += 1
        return self._retire_and_close(slot)

    def _retire_and_close(self, slot: Slot) -> "asyncio.Task[None] | None":
        """Refuse new leases; close the link at once if it is idle, else when the last lease is released."""
        self.slots.retire(slot)
        if slot.leases:
            return None
        closing = asyncio.get_running_loop().create_task(self._close(slot, None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def _idled(self, slot: Slot) -> None:
        """Close a kept link that has been idle for too long or is too old, even if no call comes."""
        if slot.leases or slot.retired or self.slots.kept.get(slot.key) is not slot:
            return
        now = self.clock.monotonic()
        if slot.too_old(now):
            self._retire_and_close(slot)
        else:
            slot.start_timer(now, self._idled)

    # The resulting actions.

    async def _wait(self, waiter: Waiter) -> None:
        with suppress(TimeoutError):
            # Nothing signals that an event loop has ended and left slots, so check periodically.
            async with asyncio.timeout(LOOK_AGAIN):
                await waiter.freed.wait()
        waiter.freed.clear()

    async def _check_kept(self, slot: Slot) -> bool:
        """Whether a kept link is healthy after being idle. If not, its lease is withdrawn and it is closed."""
        try:
            well = await self._is_well(slot.link)
        except BaseException:
            slot.take_back()
            slot.start_timer(self.clock.monotonic(), self._idled)
            raise
        if not well:
            slot.take_back()
            self._retire_and_close(slot)
        return well

    async def _check_leased(self, slot: Slot) -> None:
        """Renew or check an idle link:
        one without state is closed if it is too old, and reconnects with the next call; one with state is only checked,
        so that the state is not lost.
        """
        if slot.outworn(self.clock.monotonic()) and not slot.server.stateful and not slot.link.statistics().in_flight:
            renewed = self.clock.monotonic()
            await slot.link.close()
            slot.renewed(renewed)
        else:
            await self._is_well(slot.link)  # the link recovers from faults, and reports a loss to the next call
        slot.checked(self.clock.monotonic())

    async def _is_well(self, link: Link) -> bool:
        try:
            await link.request("server/discover" if link.era is Era.Y2026 else "ping", timeout=CHECK_SECONDS)
        except HoldfastError:
            self._count["health_failures"] += 1
            return False
        return True

    async def _close(self, slot: Slot, end: bool | None) -> None:
        try:
            slot.link.lifecycle.retire()  # the SDK's session over it may still be in use
            await slot.link.close(end=end)
        except Exception:
            log.exception("a link to %s was not closed", slot.server.name)
            self._count["close_failures"] += 1
        finally:
            self._count["close_failures"] += slot.link.statistics().close_failures
            self.slots.retired.discard(slot)
            self.slots.wake()


pool = Pool()
"""The links of this process."""


async def close_kept_links() -> None:
    """Close what `reuse="process"` keeps for later runs of this event loop. Call it before the loop ends."""
    await pool.close()


@atexit.register
def _warn_of_leaks() -> None:
    """Log links that are still leased at exit:
    a run that is never left is a bug in the program and leaves sessions at servers.
    """
    if leased := pool.statistics().leased:
        log.warning(
            "%d links were still leased when the program ended: a run was never left; use `async with holdfast.run():`",
            leased,
        )
