"""Links, kept for whoever leases them: one per (server, principal, scope, event loop), never shared across these.

It owns every link that runs use: caps and the queue for room, least-recently-used eviction, idle time, maximum age, the
health check before a link that idled is used again. It refuses to close a link under somebody: an old one is drained.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.client.server import Server
from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.errors import HoldfastError, LeaseClosed
from holdfast.links.link import Link
from holdfast.links.target import CommandTarget

log = logging.getLogger("holdfast.client")

Key: TypeAlias = tuple[Server, str, object, int]
"""Server, principal, scope (a run; or, for the process, what its runs can do), event loop."""

MAX_LINKS = 256  # of a process: programs never more, other links as long as one of them can be closed instead
WAIT = 60.0  # seconds for a link to come free before `PoolFull`, for a call without a timeout: as for one to come up
LOOK_AGAIN = 0.5  # seconds
CLOCK_SLACK = 0.01  # seconds: a timer that fires a moment early would only be set again
CHECK_AFTER = 60.0  # seconds of idling after which a kept link is asked whether it lives
CHECK_SECONDS = 5.0  # for that question


@dataclass(eq=False)
class Slot:
    """One link and who uses it."""

    key: Key
    link: Link
    created: float
    used: float
    loop: asyncio.AbstractEventLoop
    leases: int = 0
    retired: bool = False
    checking: "asyncio.Task[None] | None" = None
    timer: asyncio.TimerHandle | None = None

    @property
    def program(self) -> bool:
        return isinstance(self.key[0].target, CommandTarget)


@dataclass(eq=False)
class Waiter:
    """Somebody who waits for room."""

    server: Server
    loop: asyncio.AbstractEventLoop
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def program(self) -> bool:
        return isinstance(self.server.target, CommandTarget)


@dataclass(frozen=True, slots=True)
class Full:
    """A cap that is reached."""

    what: str
    of_process: bool


@dataclass(frozen=True)
class PoolStatistics:
    """What a pool did so far."""

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

    def fresh(self) -> bool:
        """Was it used a moment ago? Being asked is use."""
        slot, now = self._slot, self._pool.clock.monotonic()
        if slot is None or now - slot.used > CHECK_AFTER:
            return slot is None
        slot.used = now
        return True

    async def check(self) -> None:
        """Look after a link that idled within its run, before it is used again."""
        if self._slot is not None:
            await self._pool.look_after(self._slot)

    async def release(self, *, end: bool | None = None) -> None:
        """Give it back; twice is fine. `end=False` leaves the server's session alive."""
        slot, self._slot = self._slot, None
        if slot is not None:
            await self._pool.give_back(slot, end)


@dataclass
class Pool:
    """The links of one process."""

    max_links: int = MAX_LINKS
    wait: float = WAIT
    clock: Clock = SYSTEM
    _slots: dict[Key, Slot] = field(default_factory=dict[Key, Slot])
    _closing: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])
    _retired: set[Slot] = field(default_factory=set[Slot])
    _queue: list[Waiter] = field(default_factory=list[Waiter])
    _count: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("opens", "reuses", "evictions", "health_failures", "close_failures"), 0)
    )

    def statistics(self) -> PoolStatistics:
        slots = [*self._slots.values(), *self._retired]
        return PoolStatistics(**self._count, open_links=len(slots), leased=sum(slot.leases > 0 for slot in slots))

    async def lease(self, key: Key, make: Callable[[], Link]) -> Lease:
        """A lease on the key's link: the kept one if it is young and well, else a new one. Waits for room in turn, for
        as long as the caller does."""
        waiter: Waiter | None = None
        try:
            while True:
                self._forget_dead_loops()
                lease = await self._kept(key)
                if lease is not None:
                    return lease
                if not self._must_wait(key[0], waiter):
                    return self._open(key, make)
                if waiter is None:
                    waiter = Waiter(key[0], asyncio.get_running_loop())
                    self._queue.append(waiter)
                closing = self._evict(key[0])
                await (asyncio.shield(closing) if closing is not None else self._wait(waiter))
        finally:
            if waiter is not None:
                self._queue.remove(waiter)
                self._tell_freed()  # whoever is next may have room now

    async def _kept(self, key: Key) -> Lease | None:
        server = key[0]
        while (slot := self._slots.get(key)) is not None:
            now = self.clock.monotonic()
            if self._too_old(slot, server, now):
                self._retire(slot)
                continue
            idled, slot.used = now - slot.used, now
            slot.leases += 1
            if slot.timer is not None:
                slot.timer.cancel()
                slot.timer = None
            if slot.leases == 1 and idled > CHECK_AFTER:
                try:
                    well = await self._well(slot)
                except BaseException:
                    slot.leases -= 1
                    self._keep(slot)
                    raise
                if not well:
                    slot.leases -= 1
                    self._retire(slot)
                    continue
            self._count["reuses"] += 1
            return Lease(self, slot)
        return None

    def _open(self, key: Key, make: Callable[[], Link]) -> Lease:
        now = self.clock.monotonic()
        slot = Slot(key, make(), now, now, asyncio.get_running_loop(), leases=1)
        self._slots[key] = slot
        self._count["opens"] += 1
        if not slot.program and len(self._slots) + len(self._retired) > self.max_links:
            self._evict_one(lambda idle: not idle.program)  # none to spare: then there are more for a while
        return Lease(self, slot)

    async def look_after(self, slot: Slot) -> None:
        """A link that idled within a run. One without state is closed when it is too old, and comes up anew with the
        next call; one with state is asked whether it lives, since only its server may forget that."""
        server, now = slot.key[0], self.clock.monotonic()
        if slot.checking is None:
            slot.checking = asyncio.get_running_loop().create_task(self._look_after(slot, server, now))
            slot.checking.add_done_callback(lambda _: setattr(slot, "checking", None))
        await asyncio.shield(slot.checking)

    async def _look_after(self, slot: Slot, server: Server, now: float) -> None:
        idled, age = now - slot.used, now - slot.created
        old = idled > server.idle or (server.max_age is not None and age > server.max_age)
        if old and not server.stateful and not slot.link.statistics().in_flight:
            await slot.link.close()
            slot.created = now
        else:
            await self._well(slot)  # what it finds, the link heals, and tells to the call that must know
        slot.used = self.clock.monotonic()

    def _too_old(self, slot: Slot, server: Server, now: float) -> bool:
        idle = slot.leases == 0 and now - slot.used > server.idle
        return idle or (server.max_age is not None and now - slot.created > server.max_age)

    def full(self, server: Server) -> "Full | None":
        """The cap that is reached; None if there is room for a link to this server."""
        cap = server.link_cap
        if cap is not None:
            of_server = sum(slot.key[0] == server for slot in self._all())
            if of_server >= cap:
                return Full(f"{of_server} of {cap} links to {server.name!r}", of_process=False)
        if isinstance(server.target, CommandTarget):
            programs = sum(slot.program for slot in self._all())
            if programs >= self.max_links:
                return Full(f"{programs} of {self.max_links} programs of the process", of_process=True)
        return None

    def _all(self) -> "tuple[Slot, ...]":
        return (*self._slots.values(), *self._retired)

    def _must_wait(self, server: Server, waiter: Waiter | None) -> bool:
        """There is no room, or those who came earlier come first."""
        if server.link_cap is None:
            return False
        if self.full(server) is not None:
            return True
        until = len(self._queue) if waiter is None else self._queue.index(waiter)
        return any(self._rivals(other, server) for other in self._queue[:until])

    def _rivals(self, earlier: Waiter, later: Server) -> bool:
        """Do both wait for the same room? A server whose own cap is reached takes none, nor does a loop that stands."""
        if not earlier.loop.is_running():
            return False
        return earlier.server == later or (earlier.program and self.full(earlier.server) is None)

    def _forget_dead_loops(self) -> None:
        """What a closed loop left behind can be neither used nor closed."""
        for slot in [slot for slot in self._slots.values() if slot.loop.is_closed()]:
            del self._slots[slot.key]
            if not slot.leases:
                log.warning(
                    "%s: a link that reuse='process' had kept was left when its event loop ended, and its session with "
                    "it; later runs begin a new one: keep one event loop, or close links before it ends, with "
                    "`await holdfast.close_kept_links()`",
                    slot.key[0].name,
                )
            else:
                log.warning(
                    "a run still held %s when its event loop ended: that session is left to expire at the server; "
                    "leave every run, with `async with holdfast.run():`",
                    slot.key[0].name,
                )
        self._retired = {slot for slot in self._retired if not slot.loop.is_closed()}

    def _evict(self, server: Server) -> "asyncio.Task[None] | None":
        """Make room: close the link that nobody leases and that was used longest ago; None if there is none."""
        full = self.full(server)
        if full is None:
            return None
        if full.of_process:
            return self._evict_one(lambda slot: slot.program)
        return self._evict_one(lambda slot: slot.key[0] == server)  # another server's would make no room here

    def _evict_one(self, which: Callable[[Slot], bool]) -> "asyncio.Task[None] | None":
        here = asyncio.get_running_loop()
        idle = [slot for slot in self._slots.values() if not slot.leases and slot.loop is here and which(slot)]
        if not idle:
            return None
        self._count["evictions"] += 1
        return self._retire(min(idle, key=lambda slot: slot.used))

    async def _wait(self, waiter: Waiter) -> None:
        with suppress(TimeoutError):
            # Nobody tells of what a loop left behind that ended, so look again now and then.
            async with asyncio.timeout(LOOK_AGAIN):
                await waiter.freed.wait()
        waiter.freed.clear()

    async def _well(self, slot: Slot) -> bool:
        link = slot.link
        try:
            method = "server/discover" if link.era is Era.Y2026 else "ping"
            await link.request(method, timeout=CHECK_SECONDS)
        except HoldfastError:
            self._count["health_failures"] += 1
            return False
        return True

    def _retire(self, slot: Slot) -> "asyncio.Task[None] | None":
        """No new lease; closed at once if nobody leases it, else when the last lease is given back."""
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        slot.retired = True
        if slot.timer is not None:
            slot.timer.cancel()
        self._retired.add(slot)
        if slot.leases == 0:
            closing = asyncio.get_running_loop().create_task(self._close(slot, None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            return closing
        return None

    async def give_back(self, slot: Slot, end: bool | None) -> None:
        slot.leases -= 1
        slot.used = self.clock.monotonic()
        if slot.leases > 0:
            return
        if slot.timer is not None:
            slot.timer.cancel()
        if slot.retired or not isinstance(slot.key[2], frozenset):  # a run's own; the process's are kept
            if self._slots.get(slot.key) is slot:
                del self._slots[slot.key]
            self._retired.add(slot)
            await self._close(slot, end)
        else:
            self._keep(slot)
        self._tell_freed()

    def _keep(self, slot: Slot) -> None:
        """Until it has idled for too long, or is too old: then it is closed, whether or not anybody calls again."""
        server, now = slot.key[0], self.clock.monotonic()
        left = slot.used + server.idle - now
        if server.max_age is not None:
            left = min(left, slot.created + server.max_age - now)
        slot.timer = slot.loop.call_later(max(left, 0.0) + CLOCK_SLACK, self._idled, slot)

    def _idled(self, slot: Slot) -> None:
        slot.timer = None
        if slot.leases or slot.retired or self._slots.get(slot.key) is not slot:
            return
        if self._too_old(slot, slot.key[0], self.clock.monotonic()):
            self._retire(slot)
        else:
            self._keep(slot)

    async def _close(self, slot: Slot, end: bool | None) -> None:
        try:
            slot.link.retire()  # somebody may still hold the SDK's session over it
            await slot.link.close(end=end)
        except Exception:
            log.exception("a link to %s was not closed", slot.key[0].name)
            self._count["close_failures"] += 1
        finally:
            self._count["close_failures"] += slot.link.statistics().close_failures
            self._retired.discard(slot)
            self._tell_freed()

    def _tell_freed(self) -> None:
        """Wake the first who waits for each server; who is served, or gives up, wakes the next."""
        first: set[Server] = set()
        for waiter in self._queue:
            if waiter.server not in first and waiter.loop.is_running():
                first.add(waiter.server)
                with suppress(RuntimeError):  # that loop was closed this moment
                    waiter.loop.call_soon_threadsafe(waiter.freed.set)

    async def close(self) -> None:
        """Close every link of this event loop that nobody leases: the kept ones."""
        here = asyncio.get_running_loop()
        mine = [slot for slot in self._slots.values() if slot.loop is here and not slot.leases]
        for slot in mine:
            del self._slots[slot.key]
            self._retired.add(slot)
            if slot.timer is not None:
                slot.timer.cancel()
        await asyncio.gather(*(self._close(slot, None) for slot in mine))
