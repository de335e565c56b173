"""The gateway itself: backends, sessions and the table that joins them, for as long as the process runs.

It owns what happens beside the calls: health, reaping, news between processes, and the change to another configuration.
It refuses to know HTTP.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.events import Sink
from holdfast.core.exact import plain
from holdfast.core.models import ANONYMOUS, Gap, Record
from holdfast.core.values import JSON, members
from holdfast.errors import ConfigError, Conflict, Ended, HoldfastError, NotFound, SessionExpired
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.caller_lists import CallerLists
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.ownership import PROCESSES, Programs, has_ended, whereabouts
from holdfast.gateway.backends.routing import Offer, Table, build
from holdfast.gateway.config.file import Config, ServerEntry
from holdfast.gateway.config.settings import Settings
from holdfast.gateway.drain import CallsInProgress
from holdfast.gateway.failure_log import FailureLog
from holdfast.gateway.fronts.steering import Steering
from holdfast.gateway.fronts.streams import Room, Stream, Streams
from holdfast.gateway.link_choice import LinkChoice
from holdfast.gateway.orphans import Orphans
from holdfast.gateway.place import check_sealing
from holdfast.gateway.sessions.registry import TOPIC, Sessions
from holdfast.gateway.sessions.session import Session
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

BEAT_SPACING = 0.5  # seconds between two signs of life, however much changes
BEAT_SECONDS = 10.0  # between two signs of life
BEAT_IDLE = 45.0  # seconds without one after which a process counts as gone
DRAIN_LOOK = 0.05  # seconds between two looks at calls under way
CUT_SECONDS = 2.0  # for calls that were cut to answer so
REAP_SECONDS = 30.0  # between two rounds of the reaper, at most
_PUSHES = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}


_Change: TypeAlias = tuple[tuple[str, ...], str | None]


class _News:
    """What a listener has not taken yet, each thing once: it grows with what there is to hear of, not with time."""

    def __init__(self) -> None:
        self._waiting: dict[_Change | None, None] = {}
        self._some = asyncio.Event()

    def put_nowait(self, change: _Change | None) -> None:
        self._waiting[change] = None
        self._some.set()

    async def get(self) -> _Change | None:
        await self._some.wait()
        change = next(iter(self._waiting))
        del self._waiting[change]
        if not self._waiting:
            self._some.clear()
        return change


class Listener:
    """A 2026 subscription: hears which lists have changed, and which of its resources."""

    def __init__(self) -> None:
        self.queue = _News()
        self.uris: set[str] = set()


class Gateway:
    """One gateway in one process. `async with gateway.running():`"""

    def __init__(self, config: Config, store: Store, *, sink: Sink | None = None, clock: Clock = SYSTEM) -> None:
        self.config = config
        self.store = store
        self.address = ""
        self.leaving = False
        self.draining = False
        self.table = Table()
        self.backends: dict[str, Backend] = {}
        self.listeners: set[Listener] = set()
        self._programs = Programs(store)
        self._children = Children(config.settings.sessions.children, config.settings.children_per_caller)
        self._sink = sink
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()
        self._looked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        """A backend went up or down, and no sign of life has said so."""
        self._checks: dict[Backend, asyncio.Task[None]] = {}
        for name, entry in config.entries.items():
            self.backends[name] = self._backend(name, entry)
        self.sessions = Sessions(
            store, config.settings.sessions, self.backends, self._retable, sink, clock, owner=self._programs.owner
        )
        self.room = Room(config.settings.clients.total_bytes)
        self.sessions.new_streams = lambda: Streams(self.settings.clients, self.room)
        self.calls = CallsInProgress()
        self.link_choice = LinkChoice(self.sessions)
        self._steering = Steering()
        self.caller_lists = CallerLists(self)
        self.failures = FailureLog("the gateway")
        self._beat: Record | None = None

    def _backend(self, name: str, entry: ServerEntry) -> Backend:
        backend = Backend(
            name,
            entry,
            self.store,
            self._children,
            self._sink,
            self._offered,
            self.updated,
            self._announce,
            self._clock,
            self._programs,
        )
        backend.lists_last = self.config.settings.health.lists
        backend.on_state = self._changed.set
        backend.on_redeployed = self._redeployed
        return backend

    @property
    def settings(self) -> Settings:
        return self.config.settings

    def answer_stream(self) -> Stream:
        """A stream for one answer that can't be resumed."""
        return Stream(None, self.room, self.settings.clients.stream_bytes)

    @property
    def durable(self) -> bool:
        """Does the store outlive this process?"""
        return not self.store.url.startswith("memory:")

    # Life

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Gateway"]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        await check_sealing(self.store)
        for backend in self.backends.values():
            await backend.recall()
        await self._bury()
        self._rebuild()
        await self._show_life()
        if os.getpid() == 1:
            self._run(Orphans().watch(), "orphans")
        self._run(self._keep_looking(), "health")
        self._run(self._keep_showing(), "signs of life")
        idle = self.settings.sessions.idle
        self._run(self._repeat(self._reap, min(REAP_SECONDS, max(0.2, idle / 10))), "reap")
        self._run(self._hear(), "hear")
        await self._first_look()

    async def _first_look(self) -> None:
        """Clashes must be known before anybody relies on a name, where nobody said who wins."""
        looking = self._run(self._look(), "first look")
        if self.settings.naming.mode == "none":
            await asyncio.wait((looking,), timeout=self.settings.sessions.start)
            # Resources keep their URIs whatever the mode: of two, the first in the file wins.
            clash = next((each for each in self.table.clashes if each.kind in ("tool", "prompt")), None)
            if clash is not None:
                await self.stop()
                raise ConfigError(
                    f"the {clash.kind} {clash.name!r} is offered by {clash.winner!r} and by {clash.loser!r}",
                    remedy="use naming.mode prefix or priority, naming.rename, or a deny list",
                )

    async def _look(self) -> None:
        try:
            await asyncio.gather(*(backend.check() for backend in self.backends.values()))
        finally:
            self._looked.set()

    def _run(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, name=f"gateway {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _repeat(self, work: Any, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await work()
            except HoldfastError as error:
                log.warning("%s: %s", work.__name__.strip("_"), error)
            except Exception:
                log.exception("%s", work.__name__)

    async def _keep_looking(self) -> None:
        """Every backend at its own pace: one that hangs holds up no news of another."""
        while True:
            await asyncio.sleep(self.settings.health.every)
            for backend in self.backends.values():
                if backend not in self._checks:
                    self._checks[backend] = self._run(backend.check(), f"look at {backend.name}")
                    self._checks[backend].add_done_callback(functools.partial(self._checked, backend))

    def _checked(self, backend: Backend, task: "asyncio.Task[None]") -> None:
        self._checks.pop(backend, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("backend %r could not be looked at", backend.name, exc_info=error)

    async def look_anew(self) -> None:
        """Fetch the lists of every backend now, whatever it says of itself."""
        await asyncio.gather(*(backend.check(fetch=True) for backend in self.backends.values()))

    async def _keep_showing(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), BEAT_SECONDS)
            self._changed.clear()
            await self._sign(self._show_life)
            await asyncio.sleep(BEAT_SPACING)

    async def _sign(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HoldfastError as error:
            self.report(error)
        except Exception:
            log.exception("a sign of life")

    async def _reap(self) -> None:
        await self.sessions.reap()

    async def _bury(self) -> None:
        """Signs of life of processes that ran here and have ended without a word; those of others run out."""
        after: str | None = None
        while True:
            page = await self.store.scan(kind=PROCESSES, after=after)
            for record in page.records:
                if has_ended(members(record.data)):
                    await self.store.end(PROCESSES, record.id)
            if page.next is None:
                return
            after = page.next

    async def _show_life(self) -> None:
        """A record that says: this process lives, and how its backends are."""
        data = cast("JSON", self.describe())
        record = Record(PROCESSES, self.sessions.owner, ANONYMOUS, data, idle=BEAT_IDLE)
        try:
            self._beat = await self.store.commit(record, expect=0 if self._beat is None else self._beat.rev)
        except (Conflict, Ended, NotFound, SessionExpired):
            self._beat = None
        self.failures.clear()  # the store answers
        await self.store.reap(kind=PROCESSES)

    def describe(self) -> dict[str, Any]:
        """What `holdfast backends` shows."""
        return {
            **whereabouts(),
            "address": self.address,
            "sessions": len(self.sessions.live),
            "children": self._children.count,
            "backends": {
                name: {
                    "state": backend.state,
                    "since": backend.since,
                    "why": plain(backend.why),
                    "era": backend.era.value if backend.era is not None else None,
                    "tools": len(backend.catalogue.tools) if backend.catalogue is not None else None,
                    "keeps_sessions": backend.keeps_sessions,
                    "left_out": list(backend.catalogue.left_out) if backend.catalogue is not None else [],
                }
                for name, backend in self.backends.items()
            },
        }

    async def _hear(self) -> None:
        """Sessions that other processes have ended."""
        while True:
            try:
                async with self.store.listen(TOPIC) as heard:
                    async for notice in heard:
                        if isinstance(notice, Gap):
                            continue  # each session's next touch finds out
                        key = notice.data.get("ended") if isinstance(notice.data, dict) else None
                        if isinstance(key, str):
                            self.sessions.ended_elsewhere(key)
            except HoldfastError as error:
                log.warning("news of other processes: %s", error)
            await asyncio.sleep(1.0)

    @property
    def looked(self) -> bool:
        """Has every backend been looked at once, since the start or the last change?"""
        return self._looked.is_set()

    async def drain(self) -> None:
        """No new sessions; calls get their time, and those that need longer are told that their outcome is unknown."""
        if self._hurry.is_set():
            return
        listen, sessions = self.settings.listen, self.settings.sessions
        self.leaving = True
        if listen.linger:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), listen.linger)
        self.draining = True
        if not self._hurry.is_set():
            await self.calls.wait(sessions.drain)
        if len(self.calls):
            log.warning("%d calls are cut: they need more than sessions.drain, %g s", len(self.calls), sessions.drain)
        self.hurry()
        await self.calls.wait(CUT_SECONDS)

    def hurry(self) -> None:
        """Wait for no call any longer."""
        self._hurry.set()
        self.calls.cut()

    async def stop(self) -> None:
        """Drain, then let go. With a durable store, sessions at HTTP backends stay for the next process."""
        await self.drain()
        await self.caller_lists.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=5.0)
        end = not self.durable
        await self.sessions.close(end=end)
        await asyncio.gather(*(backend.close("shutdown", end=end) for backend in self.backends.values()))
        for backend in self.backends.values():
            await backend.close_pool()
        try:
            await self.store.end(PROCESSES, self.sessions.owner)
        except HoldfastError as error:
            log.warning("the sign of life is left to expire: %s", error.what)

    def end_streams(self) -> None:
        """Clients that listen are told that it is over here."""
        for session in self.sessions.live.values():
            if session.streams is not None:
                session.streams.end()
        for listener in self.listeners:
            listener.queue.put_nowait(None)

    def report(self, error: HoldfastError) -> None:
        """Log what a caller is not shown of an error, once until the backend has been seen well again."""
        backend = self.backends.get(error.server) if error.server is not None else None
        (self.failures if backend is None else backend.failures).add(error)

    # The table

    def _offered(self, backend: Backend) -> None:
        self._rebuild()

    def updated(self, uri: str) -> None:
        """A backend says that a resource has changed."""
        for listener in self.listeners:
            if uri in listener.uris:
                listener.queue.put_nowait(((), uri))

    def _redeployed(self, backend: Backend) -> None:
        self.caller_lists.forget(backend)
        for session in self.sessions.live.values():
            self.tell_late(session)
        for listener in self.listeners:
            listener.queue.put_nowait((tuple(_PUSHES), None))

    def tell_late(self, session: Session) -> None:
        """Lists of this session's own may be others than those that were shown."""
        self._tell(session, tuple(_PUSHES))

    def _announce(self, kind: str) -> None:
        """A backend says that a list changed, and we see no difference."""
        for session in self.sessions.live.values():
            self._tell(session, (kind,))
        for listener in self.listeners:
            listener.queue.put_nowait(((kind,), None))

    def _rebuild(self) -> None:
        before = self.table
        self.table = self._build(None)
        for clash in set(self.table.clashes) - set(before.clashes):
            log.warning("%s %r of %s is hidden by that of %s", clash.kind, clash.name, clash.loser, clash.winner)
        changed = self.table.changed_from(before)
        if not changed:
            return
        for session in self.sessions.live.values():
            if session.overrides:
                self._retable(session)
            else:
                self._tell(session, changed)
        for listener in self.listeners:
            listener.queue.put_nowait((changed, None))

    def _build(self, session: Session | None) -> Table:
        offers: list[Offer] = []
        for name, backend in self.backends.items():
            known = session.overrides.get(name) if session is not None else None
            catalogue = known or backend.catalogue
            if catalogue is not None:
                offers.append(Offer(name, backend.policy, catalogue))
        return build(self.settings.naming, offers, self.table if session is None else session.table or self.table)

    def _retable(self, session: Session) -> None:
        """A session whose backend showed it other lists than the rest."""
        before = session.table or self.table
        session.table = self._build(session)
        self._tell(session, session.table.changed_from(before))

    def _tell(self, session: Session, changed: tuple[str, ...]) -> None:
        for kind in changed:
            if session.streams is not None and session.streams.own.is_read:
                session.push({"method": _PUSHES[kind]})
            else:
                session.changed.add(_PUSHES[kind])  # told when it listens

    async def settled(self) -> None:
        """Wait until every backend that is still coming up for the first time has shown what it offers."""
        if self._looked.is_set():
            return
        if any(backend.catalogue is None for backend in self.backends.values()):
            try:
                await asyncio.wait_for(self._looked.wait(), timeout=self.settings.sessions.start)
            except TimeoutError:
                return

    def steers(self, info: Mapping[str, Any] | None, requested: str) -> tuple[str, dict[str, Any]] | None:
        """Should this client take 2025, if it speaks both eras? Then message and data of the refusal of its probe."""
        return self._steering.refusal(self.settings.sessions, self.backends.values(), info, requested)

    # Another configuration

    async def reload(self, config: Config) -> None:
        """Take over what changed, without dropping a session: other policy at once, another server with a new link."""
        fresh: dict[str, Backend] = {}
        for name, entry in config.entries.items():  # in the file's order: it decides who wins a name
            backend = self.backends.get(name)
            if backend is None or backend.entry.server != entry.server:
                old, backend = backend, self._backend(name, entry)
                await backend.recall()
                if old is not None:
                    backend.take_over(old)
            fresh[name] = backend
        # From here to the next await nobody sees half of it.
        gone = [backend for name, backend in self.backends.items() if fresh.get(name) is not backend]
        self.config = config
        self.sessions.settings = config.settings.sessions
        self.room.limit = config.settings.clients.total_bytes
        self._children.limit = config.settings.sessions.children
        self._children.per_caller = config.settings.children_per_caller
        for name, backend in fresh.items():
            backend.entry, backend.policy = config.entries[name], config.entries[name].policy
            backend.lists_last = config.settings.health.lists
        self.backends.clear()
        self.backends.update(fresh)
        self.caller_lists.configured()

        def goes_on(backend: Backend) -> bool:
            """Only its settings changed: the new links take up the sessions at the server."""
            after = fresh.get(backend.name)
            return after is not None and after.at == backend.at

        closing: list[Coroutine[Any, Any, None]] = []
        for session in self.sessions.live.values():
            for backend in gone:
                backend_link = session.links.pop(backend.name, None)
                session.overrides.pop(backend.name, None)
                if backend_link is not None:
                    closing.append(self._drained(backend_link, end=not goes_on(backend)))
        self._rebuild()
        self._looked.clear()
        self._run(self._look(), "look again")  # before the old ones have drained
        await asyncio.gather(*closing, *(self._quiet(backend.in_flight) for backend in gone), return_exceptions=True)
        for backend in gone:
            await backend.close("reconfigured", end=not goes_on(backend), leaves_loss=True)
            await backend.close_pool()
        log.info("the configuration was read again")

    async def _drained(self, backend_link: BackendLink, *, end: bool) -> None:
        """Close a link when its calls are over, or when they have had their time."""
        await self._quiet(lambda: backend_link.link.statistics().in_flight)
        await backend_link.close("reconfigured", end=end, leaves_loss=True)

    async def _quiet(self, in_flight: Callable[[], int]) -> None:
        """Calls on links that are no longer configured are over, or have had their time."""
        until = time.monotonic() + self.settings.sessions.drain
        while in_flight() and time.monotonic() < until:
            await asyncio.sleep(DRAIN_LOOK)
