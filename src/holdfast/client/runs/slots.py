"""The slots of the pool and the queue of callers: which limit is reached, and which link is closed to make room.

The functions here do not `await` and decide on the current slots and queue; `pool.py` waits, checks and closes.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.client.declaration import ServerDeclaration
from holdfast.client.runs.slot import Key, Slot
from holdfast.links.target import CommandTarget

log = logging.getLogger("holdfast.client")


@dataclass(eq=False)
class Waiter:
    """A caller that waits for room."""

    server: ServerDeclaration
    loop: asyncio.AbstractEventLoop
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def program(self) -> bool:
        return isinstance(self.server.target, CommandTarget)


@dataclass(frozen=True, slots=True)
class Full:
    """A limit that is reached."""

    what: str
    of_process: bool


class Slots:
    """The slots and the queue of one pool."""

    def __init__(self) -> None:
        self.kept: dict[Key, Slot] = {}
        """Slots that can be leased."""
        self.retired: set[Slot] = set()
        """Slots that close once their last lease is released, or are being closed."""
        self.queue: list[Waiter] = []

    def all(self) -> tuple[Slot, ...]:
        """All slots whose link is open."""
        return (*self.kept.values(), *self.retired)

    def full(self, server: ServerDeclaration, max_links: int) -> Full | None:
        """The limit that is reached; None if there is room for a link to this server."""
        cap = server.link_cap
        if cap is not None:
            of_server = sum(slot.server == server for slot in self.all())
            if of_server >= cap:
                return Full(f"{of_server} of {cap} links to {server.name!r}", of_process=False)
        if isinstance(server.target, CommandTarget):
            programs = sum(slot.program for slot in self.all())
            if programs >= max_links:
                return Full(f"{programs} of {max_links} programs of the process", of_process=True)
        return None

    def has_room(self, server: ServerDeclaration, waiter: Waiter | None, max_links: int) -> bool:
        """Whether a link may be opened now. Callers that came earlier have priority."""
        if server.link_cap is None:
            return True
        if self.full(server, max_links) is not None:
            return False
        ahead = self.queue if waiter is None else self.queue[: self.queue.index(waiter)]
        return not any(self._rivals(other, server, max_links) for other in ahead)

    def _rivals(self, earlier: Waiter, later: ServerDeclaration, max_links: int) -> bool:
        """Whether two callers compete for the same room.
        One whose server's own limit is reached, or whose event loop does not run, does not compete.
        """
        if not earlier.loop.is_running():
            return False
        return earlier.server == later or (earlier.program and self.full(earlier.server, max_links) is None)

    def to_evict(self, server: ServerDeclaration, max_links: int) -> Slot | None:
        """The link to close to make room for one to this server: the least recently used idle one."""
        full = self.full(server, max_links)
        if full is None:
            return None
        if full.of_process:
            return self.oldest_idle(lambda slot: slot.program)
        return self.oldest_idle(lambda slot: slot.server == server)  # another server's would make no room here

    def oldest_idle(self, which: Callable[[Slot], bool]) -> Slot | None:
        """The least recently used idle link of this event loop; None if there is none."""
        return min((slot for slot in self.idle_here() if which(slot)), key=lambda slot: slot.used, default=None)

    def idle_here(self) -> list[Slot]:
        """The idle slots of this event loop; those of another can't be closed from here."""
        loop = asyncio.get_running_loop()
        return [slot for slot in self.kept.values() if not slot.leases and slot.loop is loop]

    def retire(self, slot: Slot) -> None:
        """Allow no new leases."""
        if self.kept.get(slot.key) is slot:
            del self.kept[slot.key]
        self.retired.add(slot)
        slot.retire()

    def forget_dead_loops(self) -> None:
        """Drop the slots of a closed event loop, whose links can be neither used nor closed."""
        for slot in [slot for slot in self.kept.values() if slot.loop.is_closed()]:
            del self.kept[slot.key]
            if not slot.leases:
                log.warning(
                    "%s: a link that reuse='process' had kept was left when its event loop ended, and its session with "
                    "it; later runs begin a new one: keep one event loop, or close links before it ends, with "
                    "`await holdfast.close_kept_links()`",
                    slot.server.name,
                )
            else:
                log.warning(
                    "a run still held %s when its event loop ended: that session is left to expire at the server; "
                    "leave every run, with `async with holdfast.run():`",
                    slot.server.name,
                )
        self.retired = {slot for slot in self.retired if not slot.loop.is_closed()}

    def wake(self) -> None:
        """Wake the first caller in the queue for each server; each one wakes the next when it is served or gives up."""
        first: set[ServerDeclaration] = set()
        for waiter in self.queue:
            if waiter.server not in first and waiter.loop.is_running():
                first.add(waiter.server)
                with suppress(RuntimeError):  # that loop was just closed
                    waiter.loop.call_soon_threadsafe(waiter.freed.set)
