"""Runs: the scope in which calls share sessions, as long as the agent's work. Children inherit it, the root ends it.

It owns the one context variable of Holdfast, the leases of a run, and their release: after success, error, cancellation
or an abandoned generator. It refuses to close in a child's task, and to let a task outlive its run unnoticed.
"""

import asyncio
import atexit
import copy
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.client import hints
from holdfast.client.callbacks import Callbacks
from holdfast.client.durable import RunRecord
from holdfast.client.pool import Lease, Pool
from holdfast.client.server import MemoryFactory, Reuse, Server
from holdfast.core.events import Event, SessionWasReplaced, Sink
from holdfast.core.models import ANONYMOUS, Principal, RunId, check_name, check_seconds
from holdfast.errors import ConfigError, Ended, HoldfastError, LeaseClosed, UsageError
from holdfast.links.ending import end_saved
from holdfast.links.inbound import OnNotification, OnRequest
from holdfast.links.link import Link
from holdfast.links.memory import Memory
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.target import HttpTarget
from holdfast.stores.base import Store

RELEASE_SECONDS = 60.0  # for all links of a run together: a hanging one must not hold up the end of a program

log = logging.getLogger("holdfast.client")
_current: ContextVar["Run | None"] = ContextVar("holdfast_run", default=None)
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


async def close_kept_links() -> None:
    """Close what `reuse="process"` keeps for later runs of this event loop. Call it before the loop ends."""
    await pool.close()


def current_run() -> "Run | None":
    """The run that this task belongs to; a closed one counts as none, and so does one of another event loop."""
    run = _current.get()
    return run if run is not None and not run.closed and run.here else None


class Hub:
    """Who answers for a link that several runs share: the runs that hold a lease on it now, the newest first."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.runs: list[Run] = []

    def _callbacks(self) -> Callbacks:
        asked = self.server.callbacks or Callbacks()
        for run in reversed(self.runs):
            asked = asked.over(run.callbacks)
        return asked

    async def answer(self, method: str, params: Mapping[str, Any] | None, id: str | int) -> dict[str, Any]:
        return await self._callbacks().answer(method, params, id, server=self.server.name)

    def heard(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._callbacks().heard(method, params)

    def event(self, event: Event) -> None:
        for run in self.runs:
            run.heard(self.server, event)


_hubs: WeakKeyDictionary[Link, Hub] = WeakKeyDictionary()


class Run:
    """One run. Made by `run()`."""

    def __init__(
        self,
        id: RunId | None,
        store: Store | None,
        memory: MemoryFactory | None,
        principal: Principal,
        callbacks: Callbacks,
        on_replaced: OnReplaced | None,
        on_event: Sink | None,
        idle: float | None = None,
        max_age: float | None = None,
    ) -> None:
        self.id = id if id is not None else RunId(f"run-{secrets.token_hex(8)}")
        self.durable = store is not None or memory is not None
        self.principal = principal
        self.callbacks = callbacks
        self.closed = False
        self._record = None if store is None else RunRecord(store, self.id, principal, idle, max_age)
        self._memory = memory
        self._on_replaced = on_replaced
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self.entered_by = asyncio.current_task()
        self.joins = 0
        self._ended = False
        self._leases: dict[tuple[Server, Reuse], Lease] = {}
        self._names: dict[str, Server] = {}
        self._making: dict[tuple[Server, Reuse], asyncio.Task[Lease]] = {}
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

    def statistics(self) -> dict[str, LinkStatistics]:
        """What each server's link did so far, by server name."""
        live = {server.name: lease.link.statistics() for (server, _), lease in self._leases.items()}
        return {**self._count, **live}

    def at_hand(self, server: Server, reuse: Reuse) -> Link | None:
        lease = self._leases.get((server, reuse))
        return lease.link if lease is not None and lease.fresh() else None

    async def link(self, server: Server, reuse: Reuse | None = None) -> Link:
        """The run's link to a server; fifty first calls lease one, and a caller that is cancelled stops no other."""
        key = (server, reuse or server.reuse)
        lease = self._leases.get(key)
        if lease is None:
            self._check(server)
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = self._loop.create_task(self._lease(*key), name=f"lease {server.name}")
                making.add_done_callback(lambda _: self._making.pop(key, None))
            await asyncio.wait((making,))
            if making.cancelled():
                raise LeaseClosed(f"run {self.id} ended while {server.name!r} was being leased", server=server.name)
            error = making.exception()
            if error is not None:
                raise copy.copy(error) if isinstance(error, HoldfastError) else error
            lease = making.result()
        if not lease.fresh():
            await lease.check()
        return lease.link

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
        memory = self._memory_for(server)

        def make() -> Link:
            if not shared:
                return make_link(
                    server, self.principal, self.callbacks, memory, lambda event: self.heard(server, event)
                )
            hub = Hub(server)
            link = link_of(server, self.principal, memory, asked, hub.answer, hub.heard, hub.event)
            _hubs[link] = hub
            return link

        lease = await pool.lease((server, self.principal, scope, id(self._loop)), make)
        hub = _hubs.get(lease.link)
        if hub is not None:
            hub.runs.append(self)
        self._leases[server, reuse] = lease
        return lease

    def _memory_for(self, server: Server) -> Memory | None:
        factory = server.memory or self._memory
        if factory is not None:
            return factory(server, self.id, self.principal)
        if self._record is None:
            return None
        if isinstance(server.target, HttpTarget):
            return self._record.memory(server.name)
        # A child or an object ends with its process: whoever continues the run must know.
        if server.name in self._record.servers:
            self._tell_replaced(server, None, None)
        return None

    def heard(self, server: Server, event: Event) -> None:
        """News of a link that the run leases."""
        if isinstance(event, SessionWasReplaced):
            self._tell_replaced(server, event.old, event.new)
        if self._on_event is not None:
            self._on_event(event)

    def _tell_replaced(self, server: Server, old: str | None, new: str | None) -> None:
        if self._on_replaced is not None:
            try:
                self._on_replaced(Replaced(server, old, new))
            except Exception:
                log.exception("on_replaced raised for %s", server.name)

    # Durable runs

    async def open(self) -> None:
        """Begin, or continue, a durable run."""
        if self._record is not None:
            await self._record.open()

    async def end(self, *servers: Server) -> None:
        """End a durable run for good: its sessions, and its records. No call follows. A session that an earlier process
        left can only be ended at a server that is known here: one that this run has called, or that is given."""
        self._ended = True
        leases, self._leases = self._leases, {}
        self._count = {server.name: lease.link.statistics() for (server, _), lease in leases.items()}
        await asyncio.gather(*(lease.release(end=True) for lease in leases.values()), return_exceptions=True)
        if self._record is None:
            return
        leased = {server.name for server, _ in leases}
        left = [server for server in servers if server.name not in leased and isinstance(server.target, HttpTarget)]
        await end_sessions(left, self._record)
        await self._record.end(leased)

    async def release(self) -> None:
        """Give everything back. A failing or hanging close keeps no other open."""
        if self.closed:
            return
        self.closed = True
        for making in tuple(self._making.values()):
            making.cancel()
        if self._making:
            await asyncio.wait(tuple(self._making.values()), timeout=RELEASE_SECONDS)
        if self._record is not None:
            try:
                await self._record.used({server.name for server, _ in self._leases})
                await self._record.touch()
            except HoldfastError as error:
                log.warning("run %s could not be written down: %s", self.id, error)
        leases, self._leases = self._leases, {}
        self._count |= {server.name: lease.link.statistics() for (server, _), lease in leases.items()}
        for lease in leases.values():
            if (hub := _hubs.get(lease.link)) is not None and self in hub.runs:
                hub.runs.remove(self)
        if not leases:
            return
        end = False if self.durable else None
        releasing = [asyncio.ensure_future(lease.release(end=end)) for lease in leases.values()]
        done, late = await asyncio.wait(releasing, timeout=RELEASE_SECONDS)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("run %s: a link was not released", self.id, exc_info=error)
        for task in late:
            task.cancel()
            log.error("run %s: a link did not close within %g s", self.id, RELEASE_SECONDS)


class run:  # noqa: N801 - it reads as a verb: `async with holdfast.run():`
    """The scope of an agent's work. Nested in another it joins that one, unless it names an id of its own."""

    def __init__(
        self,
        id: str | None = None,
        *,
        store: Store | None = None,
        memory: MemoryFactory | None = None,
        principal: str | None = None,
        callbacks: Callbacks | None = None,
        on_replaced: OnReplaced | None = None,
        on_event: Sink | None = None,
        eager: Iterable[Server] = (),
        idle: float | None = None,
        max_age: float | None = None,
    ) -> None:
        if id is not None:
            check_name(id, "run id")
        for span, value in (("idle", idle), ("max_age", max_age)):
            if value is not None:
                check_seconds(value, f"run: {span}")
                if store is None:
                    raise UsageError(f"{span}= is about durable runs", remedy="give store= as well, or leave it out")
        if store is not None and id is None:
            raise UsageError(
                "a durable run needs an id to be continued by", remedy="run('conversation-7', store=store)"
            )
        self._arguments: dict[str, Any] = {
            "id": id,
            "store": store,
            "memory": memory,
            "principal": principal,
            "callbacks": callbacks,
            "on_replaced": on_replaced,
            "on_event": on_event,
            "idle": idle,
            "max_age": max_age,
        }
        self._eager = tuple(eager)
        self._run: Run | None = None
        self._token: Token[Run | None] | None = None
        self._joined = False

    async def __aenter__(self) -> Run:
        if self._run is not None:
            raise UsageError("this run() was entered already", remedy="make a new one for each `async with`")
        outer, given = current_run(), self._arguments
        if outer is not None and not any(value is not None for value in given.values()):
            self._run = outer
            outer.joins += 1
            self._joined = True
            await self._start_eager(outer)
            return outer
        id, principal = given["id"], given["principal"]
        run = Run(
            RunId(id) if id is not None else None,
            given["store"],
            given["memory"],
            Principal(principal) if principal is not None else ANONYMOUS,
            given["callbacks"] or Callbacks(),
            given["on_replaced"],
            given["on_event"],
            given["idle"],
            given["max_age"],
        )
        await run.open()
        self._run = run
        self._token = _current.set(run)
        try:
            await self._start_eager(run)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return run

    async def _start_eager(self, run: Run) -> None:
        links = await asyncio.gather(*(run.link(server) for server in self._eager))
        await asyncio.gather(*(link.open() for link in links))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        run, token, self._token = self._run, self._token, None
        if run is None or token is None:
            if run is not None and self._joined:
                self._joined = False
                run.joins -= 1
            return  # joined: the root releases
        with suppress(ValueError):  # an abandoned generator is closed in a context where the variable was never set
            _current.reset(token)
        releasing = asyncio.get_running_loop().create_task(run.release(), name=f"release {run.id}")
        cancelled: asyncio.CancelledError | None = None
        while not releasing.done():
            try:
                await asyncio.shield(releasing)
            except asyncio.CancelledError as error:
                # A timeout scope says it again at every await. What we opened is released first, in bounded time.
                cancelled = error
        if cancelled is not None:
            raise cancelled


async def end_sessions(servers: Sequence[Server], record: RunRecord) -> None:
    """End what an earlier process left at these servers: adopted by id, without a greeting, then ended."""

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


def make_link(
    server: Server, principal: Principal, callbacks: Callbacks, memory: Memory | None, sink: Sink | None
) -> Link:
    """A link as a server's declaration has it, for one run."""
    asked = server.callbacks.over(callbacks) if server.callbacks is not None else callbacks
    return link_of(server, principal, memory, asked, partial(asked.answer, server=server.name), asked.heard, sink)


def link_of(
    server: Server,
    principal: Principal,
    memory: Memory | None,
    asked: Callbacks,
    on_request: OnRequest,
    on_notification: OnNotification,
    on_event: Sink | None,
) -> Link:
    def heard(method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tools/list_changed":
            hints.forget(server, principal)
        on_notification(method, params)

    options = Options(
        era=server.era,
        stateful=server.stateful,
        capabilities=asked.capabilities,
        log_level=asked.asked_level,
        principal=principal,
        memory=memory,
        limits=server.limits,
        rows=server.rows,
        on_request=on_request,
        on_notification=heard,
        on_event=on_event,
    )
    return Link(server.target, options, name=server.name)


def link_at_hand(server: Server, reuse: Reuse | None) -> Link | None:
    """The run's link, if it is there already: what nearly every call finds."""
    run, wanted = _current.get(), reuse or server.reuse
    if run is None or run.closed or wanted == "call" or not run.here:
        return None
    return run.at_hand(server, wanted)


class leased:  # noqa: N801 - `async with leased(server) as (link, …)`
    """A link for one call: the run's, or an ephemeral one."""

    def __init__(self, server: Server, reuse: Reuse | None) -> None:
        self._server = server
        self._reuse: Reuse = reuse or server.reuse
        self._ephemeral: Link | None = None

    async def __aenter__(self) -> Link:
        server, run = self._server, _current.get()
        if run is not None and run.here:
            # A generator that was abandoned leaves its closed run behind in the task that it ran in: that is no run.
            mine = run.entered_by is asyncio.current_task() and not run.joins
            if run.closed and not mine:
                raise LeaseClosed(
                    f"{server.name!r} was called in a task that outlived its run {run.id}",
                    server=server.name,
                    remedy="end such tasks before the run ends, or open a run of their own",
                )
            if self._reuse != "call" and not run.closed:
                return await run.link(server, self._reuse)
        if server.disabled:
            raise ConfigError(f"server {server.name!r} is disabled", server=server.name, remedy="set disabled=False")
        if self._reuse != "call":
            _warn_once(server)
        callbacks = run.callbacks if run is not None else Callbacks()
        self._ephemeral = make_link(server, ANONYMOUS, callbacks, None, None)
        return self._ephemeral

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._ephemeral is not None:
            await self._ephemeral.close()


_warned: set[str] = set()


def _warn_once(server: Server) -> None:
    if server.name not in _warned:
        _warned.add(server.name)
        log.warning(
            "%s is used outside a run: a session is opened for this one call, and its state is lost; "
            "put the work inside `async with holdfast.run():`",
            server.name,
        )
