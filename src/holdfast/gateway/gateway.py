"""The gateway itself: backends, sessions and the table that joins them, for as long as the process runs.

It wires the parts, starts and stops them, and takes over another configuration. It has no part in HTTP.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.models import Principal
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import GatewayStarted, GatewayStopped, Sink
from holdfast.gateway.admin.server import AdminSocket
from holdfast.gateway.admin.snapshot import Snapshots
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.checks import HealthChecks
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.lists.caller_lists import CallerLists
from holdfast.gateway.backends.ownership import Programs, whereabouts
from holdfast.gateway.calls.link_choice import LinkChoice
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.config.file import Config, ServerEntry
from holdfast.gateway.config.settings import Settings
from holdfast.gateway.failure_log import FailureLog
from holdfast.gateway.fronts.http.streams import Room, Stream, Streams
from holdfast.gateway.fronts.steering import Steering
from holdfast.gateway.lists.announcements import Announcements
from holdfast.gateway.lists.listeners import Listeners
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.names.routing import Table
from holdfast.gateway.names.seen_uris import SeenByCallers, SeenUris
from holdfast.gateway.parking.parked_calls import ParkedCalls
from holdfast.gateway.process.lifecycle import GatewayLifecycle
from holdfast.gateway.process.orphans import Orphans
from holdfast.gateway.process.place import check_sealing
from holdfast.gateway.process.record import ProcessRecord, described
from holdfast.gateway.process.reload import OutdatedBackends, goes_on
from holdfast.gateway.sessions.ending.reaper import Reaper
from holdfast.gateway.sessions.registry import Sessions
from holdfast.observers import deliver
from holdfast.stores.contract import Store
from holdfast.version import __version__

STOP_SECONDS = 5.0  # for background tasks to take their cancellation


class Gateway:
    """One gateway in one process. `async with gateway.running():`"""

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        address: str = "",
        sink: Sink | None = None,
        audit_room: Callable[[], Awaitable[None]] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`audit_room` is awaited before each call, where the audit trail must have a line of each."""
        settings = config.settings
        self.config = config
        self.store = store
        self._address = address
        self.sink = sink
        self.audit_room = audit_room
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()
        self._began: float | None = None
        self._programs = Programs(store)
        self._children = Children(settings.sessions.children, settings.children_per_caller)
        self.backends: dict[str, Backend] = {}
        self.room = Room(settings.clients.total_bytes)
        self.offers = Offers(self.backends, settings.naming)
        self.listeners = Listeners()
        self.sessions = Sessions(
            store,
            settings.sessions,
            self.backends,
            self.offers,
            owner=self._programs.owner,
            new_streams=lambda: Streams(self.settings.clients, self.room),
            listeners=self.listeners,
            sink=sink,
            clock=clock,
        )
        self.reaper = Reaper(self.sessions, self.backends)
        self.link_choice = LinkChoice(self.sessions)
        self.caller_lists = CallerLists(self.backends, self.offers, self.link_choice, settings.sessions)
        self.announcements = Announcements(self.offers, self.sessions.live, self.caller_lists, self.listeners)
        self.checks = HealthChecks(self.backends)
        self.lifecycle = GatewayLifecycle()
        self.parked = ParkedCalls(store, self._programs.owner, settings.sessions, self.lifecycle)
        self._seen = SeenByCallers()
        self.failures = FailureLog("the gateway")
        self.admin = AdminSocket(
            self._programs.owner,
            Snapshots(self.sessions, self.backends, self._children, self.lifecycle, address),
        )
        self._process = ProcessRecord(store, self._programs.owner, self.failures, self.describe)
        self._steering = Steering()
        for name, entry in config.entries.items():
            self.backends[name] = self._new_backend(name, entry)
        self._configure(config)

    def _new_backend(self, name: str, entry: ServerEntry) -> Backend:
        return Backend(
            name,
            entry,
            self.store,
            self._children,
            self._programs,
            self.announcements,
            self.sink,
            self._clock,
        )

    def _configure(self, config: Config) -> None:
        """Hand the settings, and the entries of the backends, to the parts."""
        settings = config.settings
        self.config = config
        self.sessions.configure(settings.sessions)
        self.parked.configure(settings.sessions)
        self.offers.configure(settings.naming)
        self.room.resize(settings.clients.total_bytes)
        self._children.resize(settings.sessions.children, settings.children_per_caller)
        for name, backend in self.backends.items():
            backend.configure(config.entries[name], settings.health.lists)
        self.caller_lists.configure(settings.sessions)

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def table(self) -> Table:
        """What is offered to all sessions."""
        return self.offers.table

    @property
    def children(self) -> int:
        """Programs that run for it."""
        return self._children.count

    @property
    def durable(self) -> bool:
        """Does the store outlive this process?"""
        return not self.store.url.startswith("memory:")

    def seen_by(self, context: RequestContext) -> SeenUris:
        """The URIs that servers have shown to a session, or to a caller who has none."""
        return context.session.seen if context.session is not None else self._seen.for_caller(context.principal)

    def answer_stream(self) -> Stream:
        """A stream for one answer that can't be resumed."""
        return Stream(None, self.room, self.settings.clients.stream_bytes)

    def steers(self, info: Mapping[str, Any] | None, requested: str) -> tuple[str, dict[str, Any]] | None:
        """Should this client take 2025, if it speaks both eras? Then message and data of the refusal of its probe."""
        return self._steering.refusal(self.settings.sessions, self.backends.values(), info, requested)

    def describe(self) -> dict[str, Any]:
        """What `holdfast backends` shows."""
        return {
            **whereabouts(),
            "address": self._address,
            "admin": self.admin.path,
            "sessions": len(self.sessions.live),
            "children": self.children,
            "backends": {
                name: described(backend, self.caller_lists.left_out(name)) for name, backend in self.backends.items()
            },
        }

    def report(self, error: HoldfastError, caller: Principal | None = None) -> None:
        """Log what a caller is not shown of an error, once until the backend, or the store, has answered again."""
        backend = self.backends.get(error.server) if error.server is not None else None
        (self.failures if backend is None else backend.health.failures).add(error, caller)

    async def settled(self) -> None:
        """Wait until every backend that is still coming up for the first time has shown what it offers."""
        await self.checks.wait_first(self.settings.sessions.start)

    # Start

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Gateway"]:
        try:
            await self.start()
        except BaseException:
            self.lifecycle.cut()  # nobody was served: there is no load balancer to wait for
            with contextlib.suppress(HoldfastError):  # of a store that was not there at the start either
                await self.stop()
            raise
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        await check_sealing(self.store)
        for backend in self.backends.values():
            await backend.known_lists.recall()
        await self.sessions.task_ids.recall()
        await self._process.end_dead()
        self.announcements.lists_changed()
        await self.admin.open()
        await self._process.write()
        if os.getpid() == 1:
            self._run(Orphans().watch(), "orphans")
        self._run(self.checks.keep_checking(lambda: self.settings.health.every), "health")
        self._run(self._process.keep_writing(self.announcements.states), "process record")
        self._run(self.reaper.keep_reaping(), "reap")
        self._run(self.sessions.endings.follow_other_processes(), "endings")
        self._began = time.monotonic()
        deliver(GatewayStarted(self._clock.now(), self._programs.owner, self._address, __version__), self.sink)
        await self._first_check()

    async def _first_check(self) -> None:
        """Where no setting says which server wins a name, clashes must be known before a client relies on one."""
        checking = self.checks.check_all()
        if self.settings.naming.mode == "none":
            await asyncio.wait((checking,), timeout=self.settings.sessions.start)
            # Resources keep their URIs whatever the mode: of two, the first in the file wins.
            clash = next((each for each in self.table.clashes if each.kind in ("tool", "prompt")), None)
            if clash is not None:
                one, other = (name for name in self.backends if name in (clash.winner, clash.loser))
                raise ConfigError(
                    f"the {clash.kind} {clash.name!r} is offered by {one!r} and by {other!r}",
                    remedy="use naming.mode prefix or priority, naming.rename, or a deny list",
                )

    def _run(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"gateway {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Stop

    async def drain(self) -> None:
        """No new sessions; calls get their time, and those that need longer are answered as of unknown outcome."""
        await self.lifecycle.drain(self.settings.listen.linger, self.settings.sessions.drain)

    def end_streams(self) -> None:
        """End the streams of clients that listen: this process serves them no longer."""
        self.sessions.live.end_streams()
        self.listeners.end()

    async def stop(self) -> None:
        """Drain, then close everything. With a durable store, sessions at HTTP backends stay for the next process."""
        await self.drain()
        await self.parked.close()
        await self.caller_lists.close()
        await self.checks.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=STOP_SECONDS)
        end = not self.durable
        await self.sessions.close(end=end)
        await asyncio.gather(*(backend.close("shutdown", end=end) for backend in self.backends.values()))
        for backend in self.backends.values():
            await backend.close_pool()
        await self.admin.close()
        await self._process.end()
        if self._began is not None:
            seconds = time.monotonic() - self._began
            deliver(GatewayStopped(self._clock.now(), self._programs.owner, seconds), self.sink)

    # Another configuration

    async def reload(self, config: Config) -> None:
        """Take over what changed, without dropping a session: other policy at once, another server with a new link."""
        fresh: dict[str, Backend] = {}
        for name, entry in config.entries.items():  # in the file's order: it decides which server wins a name
            backend = self.backends.get(name)
            if backend is None or not goes_on(backend, entry):
                old, backend = backend, self._new_backend(name, entry)
                await backend.known_lists.recall()
                if old is not None:
                    backend.known_lists.take_over(old.known_lists)
            fresh[name] = backend
        # No await until the table is made: calls must not see half of the change.
        outdated = OutdatedBackends(self.backends, fresh)
        self.backends.clear()
        self.backends.update(fresh)
        self._configure(config)
        outdated.take_links(self.sessions.live.values())
        self.announcements.lists_changed()
        self.checks.check_all()  # before the old ones have drained
        await outdated.close(self.settings.sessions.drain)
