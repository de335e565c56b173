"""Spare links of one backend: after their handshake, and not yet used by any session.

It owns their number, and closes a spare whose program has ended or that was made for another kind of client.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.core.handshake import Ours
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.links.link import BackendLink, close_all

log = logging.getLogger("holdfast.gateway")

CLOSE_SECONDS = 10.0  # for spares that are being closed when the backend is


class Spares:
    """The spare links of one backend. `count`: how many are kept ready."""

    def __init__(self, name: str, count: int, children: Children, make: Callable[[Ours], BackendLink]) -> None:
        self._name = name
        self._count = count
        self._children = children
        self._make = make
        self._ready: list[tuple[Ours, BackendLink]] = []
        self._warming: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def resize(self, count: int) -> None:
        """Another number of spares, from the next time that one is taken or made."""
        self._count = count

    def take(self, client: Ours) -> BackendLink | None:
        """A spare that was introduced as this client, or None."""
        if not self._count:
            return None
        self._ready = [spare for spare in self._ready if not self._is_dead(spare[1])]
        for number, (introduced, backend_link) in enumerate(self._ready):
            if introduced == client:
                del self._ready[number]
                return backend_link
        return None

    def _is_dead(self, backend_link: BackendLink) -> bool:
        """Has the program of this spare ended? Then the spare is closed."""
        if backend_link.link.handshake is not None:
            return False
        closing = asyncio.get_running_loop().create_task(
            backend_link.close("its program ended", end=True), name="close spare"
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return True

    async def wait_if_scarce(self) -> None:
        """Where no more programs may start, wait for the spare that is being made: better than to refuse."""
        if self._warming is not None and not self._ready and self._children.count >= self._children.limit:
            await asyncio.wait((self._warming,))

    def warm_up(self, client: Ours) -> None:
        """Make the missing spares, introduced as the latest client."""
        if self._count and self._warming is None and not self._closed:
            self._warming = asyncio.get_running_loop().create_task(self._warm_up(client), name=f"warm {self._name}")
            self._warming.add_done_callback(self._warmed)

    def _warmed(self, task: "asyncio.Task[None]") -> None:
        self._warming = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: no spare could be made: %s", self._name, error)

    async def _warm_up(self, client: Ours) -> None:
        for spare in [spare for spare in self._ready if spare[0] != client]:
            self._ready.remove(spare)
            await spare[1].close("another kind of client", end=True)
        while len(self._ready) < self._count:
            backend_link = self._make(client)
            try:
                await backend_link.start()
            except BaseException:
                await backend_link.close("did not start", end=True)
                raise
            backend_link.keep_as_spare()
            self._ready.append((client, backend_link))

    def stop(self) -> None:
        """Make no more spares."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()

    async def close(self, reason: str) -> None:
        self.stop()
        if self._closing:
            await asyncio.wait(tuple(self._closing), timeout=CLOSE_SECONDS)
        ready, self._ready = self._ready, []
        await close_all(self._name, [backend_link.close(reason, end=True) for _, backend_link in ready])
