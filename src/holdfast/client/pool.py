"""Links, kept for whoever leases them: one per (server, principal, scope, event loop), never shared across these.

It owns every link that runs use: caps, least-recently-used eviction, idle time, maximum age, the health check before a
link that idled is used again. It refuses to close a link under somebody: an old one is drained, never cut.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.client.server import Server
from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.errors import HoldfastError, LeaseClosed, PoolFull
from holdfast.links.link import Link

log = logging.getLogger("holdfast.client")

Key: TypeAlias = tuple[Server, str, object, int]
"""Server, principal, scope (a run; or, for the process, what its runs can do), event loop."""

MAX_LINKS = 256  # of a process: each may be a child process
WAIT = 5.0  # seconds for a link to come free before `PoolFull`
LOOK_AGAIN = 0.05  # seconds
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
    _freed: dict[int, asyncio.Event] = field(default_factory=dict[int, asyncio.Event])
    _count: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("opens", "reuses", "evictions", "health_failures", "close_failures"), 0)
    )

    def statistics(self) -> PoolStatistics:
        slots = [*self._slots.values(), *self._retired]
        return PoolStatistics(**self._count, open_links=len(slots), leased=sum(slot.leases > 0 for slot in slots))

    async def lease(self, key: Key, make: Callable[[], Link]) -> Lease:
        """A lease on the key's link: the kept one if it is young and well, else a new one."""
        server, loop = key[0], asyncio.get_running_loop()
        deadline = loop.time() + self.wait
        while True:
            self._forget_dead_loops()
            slot = self._slots.get(key)
            now = self.clock.monotonic()
            if slot is not None and self._too_old(slot, server, now):
                self._retire(slot)
                continue
            if slot is not None:
                idled, slot.used = now - slot.used, now
                slot.leases += 1
                if slot.leases == 1 and idled > CHECK_AFTER:
                    try:
                        well = await self._well(slot)
                    except BaseException:
                        slot.leases -= 1
                        raise
                    if not well:
                        slot.leases -= 1
                        self._retire(slot)
                        continue
                self._count["reuses"] += 1
                return Lease(self, slot)
            if not (full := self._full(server)):
                slot = Slot(key, make(), now, now, loop, leases=1)
                self._slots[key] = slot
                self._count["opens"] += 1
                return Lease(self, slot)
            closing = self._evict(server, full)
            if closing is not None:
                await asyncio.shield(closing)
            else:
                await self._wait(full, server, deadline)

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

    def _full(self, server: Server) -> str | None:
        of_server = sum(slot.key[0] == server for slot in (*self._slots.values(), *self._retired))
        if of_server >= server.max_links:
            return f"{of_server} of {server.max_links} links to {server.name!r}"
        total = len(self._slots) + len(self._retired)
        return f"{total} of {self.max_links} links of the process" if total >= self.max_links else None

    def _forget_dead_loops(self) -> None:
        """What a closed loop left behind can be neither used nor closed."""
        for slot in [slot for slot in self._slots.values() if slot.loop.is_closed()]:
            del self._slots[slot.key]
            if slot.leases:
                log.warning(
                    "a run still held %s when its event loop ended: that session is left to expire at the server; "
                    "leave every run, with `async with holdfast.run():`",
                    slot.key[0].name,
                )
        self._retired = {slot for slot in self._retired if not slot.loop.is_closed()}

    def _evict(self, server: Server, full: str) -> "asyncio.Task[None] | None":
        """Close the link that nobody leases and that was used longest ago; None if there is none."""
        idle = sorted((slot for slot in self._slots.values() if not slot.leases), key=lambda slot: slot.used)
        mine = [slot for slot in idle if slot.loop is asyncio.get_running_loop()]
        if "of the process" not in full:  # closing another server's link would make no room here
            mine = [slot for slot in mine if slot.key[0] == server]
        for slot in mine:
            self._count["evictions"] += 1
            return self._retire(slot)
        return None

    async def _wait(self, full: str, server: Server, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        freed = self._freed.setdefault(id(loop), asyncio.Event())
        try:
            # A lease that another loop gives back wakes nobody here, so look again now and then.
            async with asyncio.timeout_at(min(deadline, loop.time() + LOOK_AGAIN)):
                await freed.wait()
        except TimeoutError:
            if loop.time() < deadline:
                return
            raise PoolFull(
                f"the pool is full: {full} are leased, waited {self.wait:g} s",
                server=server.name,
                remedy="end runs that are done, or raise Server(max_links=…) or the pool's max_links",
            ) from None

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
        if slot.retired or not isinstance(slot.key[2], frozenset):  # a run's own; the process's are kept
            if self._slots.get(slot.key) is slot:
                del self._slots[slot.key]
            self._retired.add(slot)
            await self._close(slot, end)
        self._tell_freed()

    async def _close(self, slot: Slot, end: bool | None) -> None:
        try:
            await slot.link.close(end=end)
        except Exception:
            log.exception("a link to %s was not closed", slot.key[0].name)
            self._count["close_failures"] += 1
        finally:
            self._count["close_failures"] += slot.link.statistics().close_failures
            self._retired.discard(slot)
            self._tell_freed()

    def _tell_freed(self) -> None:
        freed = self._freed.pop(id(asyncio.get_running_loop()), None)
        if freed is not None:
            freed.set()

    async def close(self) -> None:
        """Close every link of this event loop that nobody leases: the kept ones."""
        here = asyncio.get_running_loop()
        mine = [slot for slot in self._slots.values() if slot.loop is here and not slot.leases]
        for slot in mine:
            del self._slots[slot.key]
            self._retired.add(slot)
        await asyncio.gather(*(self._close(slot, None) for slot in mine))
