"""A run: the links that an agent's calls share during its work. `scope.py` decides which run a call belongs to.

Everything is released in bounded time after success, error, cancellation or an abandoned generator.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import MemoryFactory, Reuse, ServerDeclaration, check_enabled
from holdfast.client.runs.durable import RunRecord
from holdfast.client.runs.handlers import Handlers, RunHandlers
from holdfast.client.runs.kept_sessions import KeptSessions
from holdfast.client.runs.leases import RunLeases
from holdfast.client.runs.link_factory import make_link, make_single_link
from holdfast.client.runs.link_users import LinkUsers
from holdfast.client.runs.pool import Lease, pool
from holdfast.client.tracebacks import shortened
from holdfast.core.clock import SYSTEM
from holdfast.core.models import Principal, RunId
from holdfast.errors import Ended, LeaseClosed
from holdfast.events import Event, RunBegan, RunEnded
from holdfast.links.link import Link
from holdfast.links.options import LinkStatistics
from holdfast.stores.contract import Store

RELEASE_SECONDS = 60.0  # for all links of a run together: a hanging one must not delay the end of a program

log = logging.getLogger("holdfast.client")
S = TypeVar("S", bound=ServerDeclaration)


class Run:
    """One run, created by `run()`."""

    def __init__(
        self,
        id: RunId | None,
        store: Store | None,
        memory: MemoryFactory | None,
        principal: Principal,
        handlers: Handlers,
        idle: float | None = None,
        max_age: float | None = None,
        *,
        named: tuple[str | None, Store | str | None] = (None, None),
    ) -> None:
        self.id = id if id is not None else RunId(f"run-{secrets.token_hex(8)}")
        self.principal = principal
        self.handlers = RunHandlers(handlers)
        self.leases = RunLeases(self.id, self._lease)
        self._named = named
        record = None if store is None else RunRecord(store, self.id, principal, idle, max_age)
        own_store = store if isinstance(named[1], str) else None  # one that was given as a URL
        self._sessions = KeptSessions(self.id, principal, record, memory, own_store, self.on_event)
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._ended = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Run {self.id} {state} servers={sorted(self.leases.names)}>"

    @property
    def closed(self) -> bool:
        """Whether the run was left. A closed run accepts no more calls."""
        return self.leases.closed

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks of the run and of all open nested runs, the newest first."""
        return self.handlers.callbacks

    @property
    def here(self) -> bool:
        """Whether it belongs to the event loop that runs in this thread."""
        try:
            return self._loop is asyncio.get_running_loop()
        except RuntimeError:
            return False  # a thread without a loop

    @property
    def continued(self) -> bool:
        """Whether it is a durable run that was begun before and had not ended or expired."""
        return self._sessions.continued

    def is_same(self, id: str | None, store: Store | str | None, memory: MemoryFactory | None) -> bool:
        """Whether a nested `run()` with these arguments joins this run: if it gives none of them, or the same ones."""
        if id is None:
            return memory is None or memory is self._sessions.factory
        name, kept_in = self._named
        same_store = store is kept_in or (isinstance(store, str) and store == kept_in)
        return id == name and same_store and memory is self._sessions.factory

    def statistics(self) -> dict[str, LinkStatistics]:
        """The statistics of each server's link, by server name."""
        return self.leases.statistics()

    def bind(self, server: S) -> S:
        """The same server, bound to this run:
        its calls use this run's link wherever they are made. For async generators, notebook cells, and tasks or threads
        without the run's context.
        """
        return server.plain.bound(self)

    @property
    def wants_requests(self) -> bool:
        """Does one of the run's sinks get an event for each request?"""
        return self.handlers.has_sinks

    def on_event(self, server: ServerDeclaration, event: Event) -> None:
        """Pass an event of a link that the run leases to the run's sinks."""
        self.handlers.on_event(server, event)

    @shortened
    async def link(
        self, server: ServerDeclaration, reuse: Reuse | None = None, *, timeout: float | None = None
    ) -> Link:
        """The run's link to a server.
        Concurrent first calls lease one link together, and cancelling one caller does not affect others. Where the
        number of links is limited, callers wait in order of arrival, for `timeout` seconds or as long as a link may
        take to start.
        """
        server, wanted = server.plain, reuse or server.reuse
        lease = self.leases.get(server, wanted)
        if lease is None:
            self._check(server)
            lease = await self.leases.take(server, wanted, pool.wait if timeout is None else timeout)
        if not lease.fresh():
            await lease.check()
        return lease.link

    def _check(self, server: ServerDeclaration) -> None:
        if self.closed:
            raise LeaseClosed(
                f"run {self.id} has ended", server=server.name, remedy="call inside `async with holdfast.run():`"
            )
        if self._ended:
            raise Ended(f"run {self.id} was ended", server=server.name, remedy="begin a new one under another id")
        check_enabled(server)

    async def _lease(self, server: ServerDeclaration, reuse: Reuse) -> Lease:
        kept = reuse == "process" and not self._sessions.is_durable
        callbacks = server.callbacks.over(self.callbacks) if server.callbacks is not None else self.callbacks
        # A link declares its capabilities once, at the handshake, so only runs with the same ones share it.
        shared_by = frozenset((*callbacks.capabilities, f"log level {callbacks.wanted_level}"))

        def make() -> tuple[Link, LinkUsers]:
            users, memory = LinkUsers(server, kept), self._sessions.memory(server, shared=kept)
            link = make_link(
                server,
                self.principal,
                memory,
                callbacks,
                users.answer,
                users.on_notification,
                users.on_event,
                users.want_requests,
            )
            return link, users

        await self._sessions.note_use(server)
        lease = await pool.lease((server, self.principal, shared_by if kept else self, id(self._loop)), make)
        lease.join(self)
        return lease

    def single(self, server: ServerDeclaration) -> Link:
        """A link for one call only."""
        return make_single_link(
            server,
            self.principal,
            self.callbacks,
            None,
            partial(self.on_event, server),
            lambda: self.wants_requests,
        )

    async def open(self) -> None:
        """Begin or continue a durable run."""
        await self._sessions.open()
        self.handlers.report(RunBegan(SYSTEM.now(), self.id, self.principal, self._sessions.is_durable))

    @shortened
    async def end(self, *servers: ServerDeclaration) -> None:
        """End a durable run permanently, with its sessions and records.
        No call may follow. A session that an earlier process left can only be ended at a known server: one that this
        run has called, or one in `servers`.
        """
        self._ended = True
        leased, leases = self.leases.names, self._give_up()
        await asyncio.gather(*(lease.release(end=True) for lease in leases), return_exceptions=True)
        await self._sessions.end(leased, servers)

    def _give_up(self) -> list[Lease]:
        leases = self.leases.give_up()
        for lease in leases:
            lease.leave(self)
        return leases

    async def release(self) -> None:
        """Release everything. A close that fails or hangs does not prevent the others."""
        if self.closed:
            return
        await self.leases.close(RELEASE_SECONDS)
        await self._sessions.flush()
        await self._release_all(self._give_up())
        await self._sessions.close()
        ended = self._ended or not self._sessions.is_durable
        seconds = self._loop.time() - self._began
        self.handlers.report(RunEnded(SYSTEM.now(), self.id, self.principal, seconds, ended))

    async def _release_all(self, leases: Iterable[Lease]) -> None:
        # A link with a memory leaves its session alive, one without ends it.
        releasing = [asyncio.ensure_future(lease.release()) for lease in leases]
        done, late = await asyncio.wait(releasing, timeout=RELEASE_SECONDS) if releasing else ((), ())
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("run %s: a link was not released", self.id, exc_info=error)
        for task in late:
            task.cancel()
            log.error("run %s: a link did not close within %g s", self.id, RELEASE_SECONDS)
