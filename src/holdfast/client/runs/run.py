"""Runs: the links that calls share, as long as the agent's work. Which run a call belongs to is `scope.py`'s to say.

It owns the leases of a run and their release: after success, error, cancellation or an abandoned generator. A nested
`run()` adds callbacks and sinks for as long as it is open.
"""

import asyncio
import atexit
import copy
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.client.callbacks import Callbacks
from holdfast.client.calls import hints
from holdfast.client.runs.durable import RunRecord
from holdfast.client.runs.pool import Lease, Pool
from holdfast.client.server import MemoryFactory, Reuse, Server
from holdfast.core.clock import SYSTEM
from holdfast.core.events import Event, MemoryFailed, SessionWasReplaced, Sink
from holdfast.core.models import ANONYMOUS, Principal, RunId
from holdfast.errors import (
    ConfigError,
    Ended,
    HoldfastError,
    LeaseClosed,
    PoolFull,
    StartTimeout,
)
from holdfast.links.calls.inbound import OnNotification, OnRequest
from holdfast.links.lifecycle.ending import end_saved
from holdfast.links.link import Link
from holdfast.links.memory.store import Memory
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.target import HttpTarget
from holdfast.stores.contract import Store

RELEASE_SECONDS = 60.0  # for all links of a run together: a hanging one must not hold up the end of a program
STORE_SECONDS = 15.0  # for the last words to a durable run's store, as long as a memory has for one answer

log = logging.getLogger("holdfast.client")
pool = Pool()
"""The links of this process."""


@atexit.register
def _tell_leaks() -> None:
    """A run that was never left is a bug of its author, and costs servers their sessions."""
    if leased_still := pool.statistics().leased:
        log.warning(
            "%d links were still leased when the program ended: a run was never left; use `async with holdfast.run():`",
            leased_still,
        )


@dataclass(frozen=True)
class Replaced:
    """A server had forgotten a session of the run; a new one stands, and what the old one kept is gone."""

    server: Server
    old: str | None
    new: str | None


OnReplaced = Callable[[Replaced], None]


@dataclass(frozen=True, eq=False)
class Handlers:
    """What one `run()` brings: who answers servers, and who hears of events."""

    callbacks: Callbacks
    on_replaced: OnReplaced | None = None
    on_event: Sink | None = None


async def close_kept_links() -> None:
    """Close what `reuse="process"` keeps for later runs of this event loop. Call it before the loop ends."""
    await pool.close()


class Hub:
    """Answers for a link on behalf of the runs that hold a lease on it now, the newest first."""

    def __init__(self, server: Server, shared: bool) -> None:
        self.server = server
        self.shared = shared
        self.runs: list[Run] = []
        self._unheard: SessionWasReplaced | None = None
        """What befell a kept link while no run had it."""

    def join(self, run: "Run", link: Link) -> None:
        self.runs.append(run)
        if self.shared:
            link.sharers.add(run)
        if (event := self._unheard) is not None:
            self._unheard = None
            run.heard(self.server, event)

    def leave(self, run: "Run", link: Link) -> None:
        """Of a link that is kept; one of the run's own still has something to say while it closes."""
        if self.shared and run in self.runs:
            self.runs.remove(run)
            link.sharers.remove(run)

    def callbacks(self) -> Callbacks:
        asked = self.server.callbacks or Callbacks()
        for run in reversed(self.runs):
            asked = asked.over(run.callbacks)
        return asked

    async def answer(self, method: str, params: Mapping[str, Any] | None, id: str | int) -> dict[str, Any]:
        return await self.callbacks().answer(method, params, id, server=self.server.name)

    def heard(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.callbacks().heard(method, params)

    def event(self, event: Event) -> None:
        if not self.runs and isinstance(event, SessionWasReplaced):
            self._unheard = event
        for run in tuple(self.runs):
            run.heard(self.server, event)


_hubs: WeakKeyDictionary[Link, Hub] = WeakKeyDictionary()


@dataclass(eq=False)
class Leasing:
    """A lease on its way, and how many calls wait for it."""

    task: asyncio.Task[Lease]
    waiting: int = 0


class Run:
    """One run. Made by `run()`."""

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
        self.durable = store is not None or memory is not None
        self.principal = principal
        self.closed = False
        self.callbacks = handlers.callbacks
        """Of all that are open now: those of nested runs first, the newest of them before the others."""
        self._handlers = [handlers]
        self._named = named
        self._store = store if isinstance(named[1], str) else None
        """A store that was given as a URL is opened and closed here."""
        self._record = None if store is None else RunRecord(store, self.id, principal, idle, max_age)
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._leases: dict[tuple[Server, Reuse], Lease] = {}
        self._names: dict[str, Server] = {}
        self._making: dict[tuple[Server, Reuse], Leasing] = {}
        self._count: dict[str, LinkStatistics] = {}

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Run {self.id} {state} servers={sorted({server.name for server, _ in self._leases})}>"

    @property
    def here(self) -> bool:
        try:
            return self._loop is asyncio.get_running_loop()
        except RuntimeError:
            return False  # a thread without a loop

    @property
    def continued(self) -> bool:
        """True for a durable run that had been begun before and was not ended or expired."""
        return self._record is not None and self._record.continued

    def is_same(self, id: str | None, store: Store | str | None, memory: MemoryFactory | None) -> bool:
        """Does a nested `run()` of these mean this run? Naming none of them, or the very same ones."""
        if id is None:
            return memory is None or memory is self._memory
        name, kept_in = self._named
        same_store = store is kept_in or (isinstance(store, str) and store == kept_in)
        return id == name and same_store and memory is self._memory

    def statistics(self) -> dict[str, LinkStatistics]:
        """What each server's link did so far, by server name."""
        live = {server.name: lease.link.statistics() for (server, _), lease in self._leases.items()}
        return {**self._count, **live}

    def bind(self, server: Server) -> Server:
        """The same server, fixed to this run: its calls use this run's link wherever they are made from. For async
        generators, notebook cells, and tasks or threads that the run's context does not reach."""
        return server.plain.bound(self)

    def at_hand(self, server: Server, reuse: Reuse) -> Link | None:
        lease = self._leases.get((server, reuse))
        return lease.link if lease is not None and lease.fresh() else None

    async def link(self, server: Server, reuse: Reuse | None = None, *, timeout: float | None = None) -> Link:
        """The run's link to a server; fifty first calls lease one, and a caller that is cancelled stops no other. Where
        the number of links is capped, callers wait in turn, for `timeout` seconds or as long as a link may take to
        come up."""
        server = server.plain
        key = (server, reuse or server.reuse)
        lease = self._leases.get(key)
        if lease is None:
            self._check(server)
            lease = await self._leased(key, pool.wait if timeout is None else timeout)
        if not lease.fresh():
            await lease.check()
        return lease.link

    async def _leased(self, key: tuple[Server, Reuse], seconds: float) -> Lease:
        server = key[0]
        making = self._making.get(key)
        if making is None:
            making = Leasing(self._loop.create_task(self._lease(*key), name=f"lease {server.name}"))
            self._making[key] = making
            making.task.add_done_callback(lambda _: self._forget(key, making))
        making.waiting += 1
        try:
            await asyncio.wait((making.task,), timeout=seconds)
        finally:
            making.waiting -= 1
            if not making.waiting and not making.task.done():
                making.task.cancel()  # nobody wants it any more
                self._forget(key, making)
        if not making.task.done() or (making.task.cancelled() and not self.closed):
            raise self._not_leased(server, seconds)
        if making.task.cancelled():
            raise LeaseClosed(f"run {self.id} ended while {server.name!r} was being leased", server=server.name)
        error = making.task.exception()
        if error is not None:
            raise copy.copy(error) if isinstance(error, HoldfastError) else error
        return making.task.result()

    def _forget(self, key: tuple[Server, Reuse], making: Leasing) -> None:
        if self._making.get(key) is making:
            del self._making[key]

    def _not_leased(self, server: Server, seconds: float) -> HoldfastError:
        full = pool.full(server)
        if full is None:
            return StartTimeout(
                f"no link to {server.name!r} was ready within {seconds:g} s",
                server=server.name,
                phase="lease",
                remedy="nothing was executed; try again, or give the call a longer timeout=",
            )
        return PoolFull(
            f"the pool is full: {full.what} are leased, waited {seconds:g} s",
            server=server.name,
            remedy="end runs that are done, give the call a longer timeout=, or raise Server(max_links=…) or the "
            "pool's max_links",
        )

    def _check(self, server: Server) -> None:
        if self.closed:
            raise LeaseClosed(
                f"run {self.id} has ended", server=server.name, remedy="call inside `async with holdfast.run():`"
            )
        if self._ended:
            raise Ended(f"run {self.id} was ended", server=server.name, remedy="begin a new one under another id")
        if server.disabled:
            raise ConfigError(f"server {server.name!r} is disabled", server=server.name, remedy="set disabled=False")
        other = self._names.setdefault(server.name, server)
        if other != server:
            raise ConfigError(
                f"two different servers are named {server.name!r} in one run",
                server=server.name,
                remedy="give them different names, or declare the server once and share it",
            )

    async def _lease(self, server: Server, reuse: Reuse) -> Lease:
        shared = reuse == "process" and not self.durable
        asked = server.callbacks.over(self.callbacks) if server.callbacks is not None else self.callbacks
        # What a link promises and asks for is said once, so runs share one only if theirs is the same.
        scope: object = frozenset((*asked.capabilities, f"log level {asked.asked_level}")) if shared else self

        def make() -> Link:
            hub = Hub(server, shared)
            memory = self._memory_for(server, shared)
            link = link_of(server, self.principal, memory, asked, hub.answer, hub.heard, hub.event)
            _hubs[link] = hub
            return link

        await self._note(server)
        lease = await pool.lease((server, self.principal, scope, id(self._loop)), make)
        _hubs[lease.link].join(self, lease.link)
        self._leases[server, reuse] = lease
        return lease

    def _memory_for(self, server: Server, shared: bool) -> Memory | None:
        if server.memory is not None or self._memory is not None:
            # A link that several runs share belongs to none of them.
            return memory_of(server, self._memory, None if shared else self.id, self.principal, self._sink(server))
        # A program or an object ends with its process, and what is saved of it says that there was one.
        return None if self._record is None else self._record.memory(server.name)

    async def _note(self, server: Server) -> None:
        """Write down, before its first call, that the run uses a program or an object: not every one has a session that
        is saved, and whoever continues the run must know that there was one."""
        own_memory = server.memory is not None or self._memory is not None
        if self._record is None or own_memory or isinstance(server.target, HttpTarget):
            return
        try:
            await self._record.use(server.name)
        except HoldfastError as error:
            log.warning("run %s: that it uses %r could not be written: %s", self.id, server.name, error)
            self.heard(server, MemoryFailed(SYSTEM.now(), server.name, str(error)))

    # What it says

    def add(self, handlers: Handlers) -> None:
        """A nested run's callbacks and sinks, beside those that are there."""
        self._handlers.append(handlers)
        self._merge()

    def remove(self, handlers: Handlers) -> None:
        self._handlers.remove(handlers)
        self._merge()

    def _merge(self) -> None:
        merged = Callbacks()
        for handlers in reversed(self._handlers):
            merged = merged.over(handlers.callbacks)
        self.callbacks = merged

    def heard(self, server: Server, event: Event) -> None:
        """News of a link that the run leases. A sink that raises keeps it from no other."""
        for handlers in tuple(self._handlers):
            try:
                if handlers.on_replaced is not None and isinstance(event, SessionWasReplaced):
                    handlers.on_replaced(Replaced(server, event.old, event.new))
            except Exception:
                log.exception("on_replaced raised for %s", server.name)
            try:
                if handlers.on_event is not None:
                    handlers.on_event(event)
            except Exception:
                log.exception("on_event raised for %s", server.name)

    def _sink(self, server: Server) -> Sink:
        return lambda event: self.heard(server, event)

    def single(self, server: Server) -> Link:
        """A link for one call, that nobody shares."""
        return single_link(server, self.principal, self.callbacks, None, self._sink(server))

    # Durable runs

    async def open(self) -> None:
        """Begin, or continue, a durable run."""
        try:
            if self._store is not None:
                await self._store.__aenter__()
            if self._record is not None:
                await self._record.open()
        except BaseException:
            await self._close_store()
            raise

    async def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.__aexit__(None, None, None)

    async def end(self, *servers: Server) -> None:
        """End a durable run for good: its sessions, and its records. No call follows. A session that an earlier process
        left can only be ended at a server that is known here: one that this run has called, or that is given."""
        self._ended = True
        leases, self._leases = self._leases, {}
        self._leave(leases.values())
        self._count = {server.name: lease.link.statistics() for (server, _), lease in leases.items()}
        await asyncio.gather(*(lease.release(end=True) for lease in leases.values()), return_exceptions=True)
        if self._record is None:
            return
        leased = {server.name for server, _ in leases}
        left = [server.plain for server in servers if server.name not in leased]
        left = [server for server in left if isinstance(server.target, HttpTarget)]
        await end_sessions(left, self._record)
        await self._record.end(leased)

    def _leave(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            if (hub := _hubs.get(lease.link)) is not None:
                hub.leave(self, lease.link)

    async def release(self) -> None:
        """Give everything back. A failing or hanging close keeps no other open."""
        if self.closed:
            return
        self.closed = True
        making = [making.task for making in self._making.values()]
        for task in making:
            task.cancel()
        if making:
            await asyncio.wait(making, timeout=RELEASE_SECONDS)
        if self._record is not None:
            try:
                async with asyncio.timeout(STORE_SECONDS):
                    await self._record.flush()
                    await self._record.touch()
            except Exception as error:  # whatever a store does, the links are released
                log.warning("run %s could not be written down: %s", self.id, _said(error))
        leases, self._leases = self._leases, {}
        self._count |= {server.name: lease.link.statistics() for (server, _), lease in leases.items()}
        self._leave(leases.values())
        # A link with a memory leaves its session alive, one without ends it.
        releasing = [asyncio.ensure_future(lease.release()) for lease in leases.values()]
        done, late = await asyncio.wait(releasing, timeout=RELEASE_SECONDS) if releasing else ((), ())
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("run %s: a link was not released", self.id, exc_info=error)
        for task in late:
            task.cancel()
            log.error("run %s: a link did not close within %g s", self.id, RELEASE_SECONDS)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._close_store()
        except Exception as error:
            log.warning("run %s: its store did not close: %s", self.id, _said(error))


def _said(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    return (
        f"its store did not answer within {STORE_SECONDS:g} s" if isinstance(error, TimeoutError) else repr(error)[:200]
    )


async def end_sessions(servers: Sequence[Server], record: RunRecord) -> None:
    """End what an earlier process left at these servers: adopted by id, without a handshake, then ended."""

    async def end(server: Server) -> None:
        saved = (await record.memory(server.name).load()).saved
        if saved is not None:
            await end_saved(server.target, saved, Options(limits=server.limits), server.name)

    ended = await asyncio.gather(*(end(server) for server in servers), return_exceptions=True)
    for server, failure in zip(servers, ended, strict=True):
        if isinstance(failure, HoldfastError):
            log.warning("the session of run %s at %s is left to expire there: %s", record.id, server.name, failure)
        elif failure is not None:
            raise failure


def memory_of(
    server: Server, factory: MemoryFactory | None, id: str | None, principal: Principal, sink: Sink | None
) -> Memory | None:
    """What a factory makes; one that raises costs its memory, not the call."""
    make = server.memory or factory
    if make is None:
        return None
    try:
        return make(server, id, principal)
    except Exception as error:
        log.exception("memory= of %s raised; its session is not kept", server.name)
        if sink is not None:
            sink(MemoryFailed(SYSTEM.now(), server.name, f"memory= raised {error!r:.200}"))
        return None


def single_link(
    server: Server, principal: Principal, callbacks: Callbacks, memory: Memory | None, sink: Sink | None
) -> Link:
    """A link for one call, that nobody shares."""
    asked = server.callbacks.over(callbacks) if server.callbacks is not None else callbacks
    return link_of(server, principal, memory, asked, partial(asked.answer, server=server.name), asked.heard, sink)


def single_outside(server: Server) -> Link:
    """A link for one call outside any run; a server with a memory of its own goes on with what that has."""
    return single_link(server, ANONYMOUS, Callbacks(), memory_of(server, None, None, ANONYMOUS, None), None)


def hearing(server: Server, principal: Principal, then: OnNotification) -> OnNotification:
    """Takes notifications, and forgets what is known of tools that changed."""

    def heard(method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tools/list_changed":
            hints.forget(server, principal)
        then(method, params)

    return heard


def link_of(
    server: Server,
    principal: Principal,
    memory: Memory | None,
    asked: Callbacks,
    on_request: OnRequest,
    on_notification: OnNotification,
    on_event: Sink | None,
) -> Link:
    options = Options(
        era=server.era,
        stateful=server.stateful,
        capabilities=asked.capabilities,
        log_level=asked.asked_level,
        principal=principal,
        memory=memory,
        limits=server.limits,
        verdict_rules=server.verdict_rules,
        on_request=on_request,
        on_notification=hearing(server, principal, on_notification),
        on_event=on_event,
    )
    return Link(server.target, options, name=server.name)
