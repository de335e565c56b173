"""The leases of one run: one for each server and reuse, shared by concurrent calls.

It also keeps the statistics of released links. Links are created elsewhere.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.client.declaration import Reuse, ServerDeclaration
from holdfast.client.runs.pool import Lease, pool
from holdfast.core.models import RunId
from holdfast.errors import ConfigError, HoldfastError, LeaseClosed, PoolFull, StartTimeout
from holdfast.links.link import Link
from holdfast.links.options import LinkStatistics

Key: TypeAlias = tuple[ServerDeclaration, Reuse]


@dataclass(eq=False)
class _Leasing:
    """A pending lease, and the number of calls that wait for it."""

    task: asyncio.Task[Lease]
    waiting: int = 0


class RunLeases:
    """The leases of one run."""

    def __init__(self, run: RunId, take: Callable[[ServerDeclaration, Reuse], Awaitable[Lease]]) -> None:
        self._run = run
        self._take = take
        self._leases: dict[Key, Lease] = {}
        self._leasing: dict[Key, _Leasing] = {}
        self._names: dict[str, ServerDeclaration] = {}
        self._given_back: dict[str, LinkStatistics] = {}
        self.closed = False

    @property
    def names(self) -> set[str]:
        """The names of the servers that are leased now."""
        return {server.name for server, _ in self._leases}

    def statistics(self) -> dict[str, LinkStatistics]:
        return {**self._given_back, **_statistics(self._leases)}

    def at_hand(self, server: ServerDeclaration, reuse: Reuse) -> Link | None:
        """The leased link, if it was used recently."""
        lease = self._leases.get((server, reuse))
        return lease.link if lease is not None and lease.fresh() else None

    def get(self, server: ServerDeclaration, reuse: Reuse) -> Lease | None:
        return self._leases.get((server, reuse))

    async def take(self, server: ServerDeclaration, reuse: Reuse, seconds: float) -> Lease:
        """Lease the link, or wait for the lease that another call began.
        Cancelling one caller does not affect others.
        """
        leasing = self._join(server, reuse)
        try:
            await asyncio.wait((leasing.task,), timeout=seconds)
        finally:
            self._leave((server, reuse), leasing)
        task = leasing.task
        if task.done() and task.cancelled() and self.closed:
            raise LeaseClosed(
                f"run {self._run} ended while {server.name!r} was being leased",
                server=server.name,
                remedy="nothing was executed; end such calls before the run ends",
            )
        if not task.done() or task.cancelled():
            raise _not_leased(server, seconds)
        if (error := task.exception()) is not None:
            raise copy.copy(error) if isinstance(error, HoldfastError) else error
        return task.result()

    def _join(self, server: ServerDeclaration, reuse: Reuse) -> _Leasing:
        other = self._names.setdefault(server.name, server)
        if other != server:
            raise ConfigError(
                f"two different servers are named {server.name!r} in one run",
                server=server.name,
                remedy="give them different names, or declare the server once and share it",
            )
        key = (server, reuse)
        leasing = self._leasing.get(key)
        if leasing is None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._lease(key), name=f"lease {server.name}")
            leasing = self._leasing[key] = _Leasing(task)
            task.add_done_callback(lambda _: self._forget(key, leasing))
        leasing.waiting += 1
        return leasing

    def _leave(self, key: Key, leasing: _Leasing) -> None:
        leasing.waiting -= 1
        if not leasing.waiting and not leasing.task.done():
            leasing.task.cancel()  # no call waits for it any longer
            self._forget(key, leasing)

    def _forget(self, key: Key, leasing: _Leasing) -> None:
        if self._leasing.get(key) is leasing:
            del self._leasing[key]

    async def _lease(self, key: Key) -> Lease:
        lease = self._leases[key] = await self._take(*key)
        return lease

    async def close(self, seconds: float) -> None:
        """Refuse new leases and cancel pending ones. Leased links stay leased until `give_up`."""
        self.closed = True
        tasks = [leasing.task for leasing in self._leasing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def give_up(self) -> list[Lease]:
        """Return all leases for the caller to release; the statistics of their links are kept."""
        leases, self._leases = self._leases, {}
        self._given_back |= _statistics(leases)
        return list(leases.values())


def _statistics(leases: Mapping[Key, Lease]) -> dict[str, LinkStatistics]:
    return {server.name: lease.link.statistics() for (server, _), lease in leases.items()}


def _not_leased(server: ServerDeclaration, seconds: float) -> HoldfastError:
    full = pool.slots.full(server, pool.max_links)
    if full is None:
        return StartTimeout(
            f"no link to {server.name!r} was ready within {seconds:g} s",
            server=server.name,
            phase="lease",
            remedy="nothing was executed; try again, or give the call, or the Server, a longer timeout=",
        )
    raise_cap = "leave fewer programs running at once" if full.of_process else "raise max_links= of its Server(…)"
    return PoolFull(
        f"the pool is full: {full.what} are leased, waited {seconds:g} s",
        server=server.name,
        remedy=f"end runs that are done, give the call, or the Server, a longer timeout=, or {raise_cap}",
    )
