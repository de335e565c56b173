"""One backend: its links, what it offers, whether it is up. It owns the common link, spares, and principals' links.

A session's own link is made here and owned by the session. It refuses to start more children than the gateway may have,
and to let one backend's trouble reach another.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.events import (
    BackendChanged,
    BackendFailed,
    BackendItemLeftOut,
    BackendReplaced,
    Event,
    HandshakeDone,
    SessionWasReplaced,
    Sink,
)
from holdfast.core.handshake import Handshake
from holdfast.core.models import ANONYMOUS, Principal, Record
from holdfast.core.retry import backoff
from holdfast.core.values import members
from holdfast.errors import Conflict, ErrorAnswer, HoldfastError, NoBackend, RunsElsewhere
from holdfast.gateway.backends.catalogue import Catalogue, fetch, told_in
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.ownership import Programs
from holdfast.gateway.backends.passed_headers import HasHeaders, passed, with_passed
from holdfast.gateway.backends.refetch import Refetch
from holdfast.gateway.backends.stateless import Stateless
from holdfast.gateway.backends.subscriptions import Subscriptions
from holdfast.gateway.config.file import ServerEntry
from holdfast.gateway.config.settings import Health
from holdfast.gateway.failure_log import FailureLog
from holdfast.gateway.sessions.memories import SessionMemory, SharedMemory, principal_link
from holdfast.links.calls.inbound import OnNotification, OnRequest
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link
from holdfast.links.options import CLIENT_INFO, EraChoice, Options
from holdfast.links.target import CommandTarget, HttpTarget
from holdfast.links.wires.http.pool import SharedPool
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

CATALOGUES = "catalogue"  # the kind of the record that keeps what a backend offered last
FETCH_SECONDS = 30.0  # for each page of a list
PING_SECONDS = 10.0  # for a server to show that it lives
LONGEST_PAUSE = 60.0  # seconds between two tries to reach a backend that is down
LISTS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}


class Backend:
    """One server behind the gateway."""

    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        store: Store,
        children: Children,
        sink: Sink | None,
        changed: Callable[["Backend"], None],
        updated: Callable[[str], None] = lambda _: None,
        announced: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM,
        programs: Programs | None = None,
    ) -> None:
        self.programs = programs or Programs(store)
        self.name = name
        self.entry = entry
        self.policy = entry.policy
        self.children = children
        self.state = "unknown"
        self.since = clock.now()
        self.why: str | None = None
        self.tries = 0
        self.next_try = 0.0
        self.failures = FailureLog(f"backend {name!r}")
        self.catalogue: Catalogue | None = None
        self.fetched = float("-inf")
        self.lists_last = Health().lists
        self._borrowed = False
        """The catalogue is that of the server which had this name before; this one's is not known yet."""
        self._refetch = Refetch(name, self._fetch_anew, lambda: self.fetched)
        self._news = Refetch(name, self._fetch_changed)
        self._store = store
        self._sink = sink
        self._changed = changed
        self._updated = updated
        self._announced = announced
        self._watching: Watch | None = None
        self._subscriptions: Subscriptions | None = None
        self._clock = clock
        self._common: BackendLink | None = None
        self._stateless = Stateless(lambda: self.new(era="2026"))
        self._spares: list[tuple[Mapping[str, Any], BackendLink]] = []
        self._warming: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._principals: dict[Principal, BackendLink] = {}
        self._fetching: asyncio.Task[Catalogue] | None = None
        target = entry.server.target
        self.is_child = isinstance(target, CommandTarget)
        self.at = hashlib.sha256(repr(entry.server.url or entry.server.command).encode()).hexdigest()[:12]
        """Which server this is: what was kept of another one under the same name is nothing worth."""
        limits = self._limits = replace(entry.server.limits, circuit=entry.policy.circuit)
        self._pool = SharedPool(target, name, limits.connect) if isinstance(target, HttpTarget) else None
        self.closed = False
        self._told: str | None = None
        self.on_redeployed: Callable[[Backend], None] = lambda _: None
        """Called when a server whose lists depend on the caller may offer other things."""
        self.on_state: Callable[[], None] = lambda: None
        """Called when it goes up or down."""

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.state} children={self.is_child}>"

    def tell(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)

    # What is known

    @property
    def keeps_sessions(self) -> bool:
        """Must a client's calls meet the same session here? Unknown counts as yes."""
        if not self.policy.stateful or self.policy.reuse in ("shared", "call"):
            return False
        return self.catalogue is None or self.catalogue.keeps_sessions

    @property
    def era(self) -> Era | None:
        known = self.catalogue.era if self.catalogue is not None else None
        return Era(known) if known is not None else None

    @property
    def resting(self) -> bool:
        """Down, and not worth another try before its pause is over: a new session skips it."""
        return self.state == "down" and time.monotonic() < self.next_try

    def noted(self, error: HoldfastError | None, session: str | None = None) -> None:
        """News of whether it is up."""
        before = self.state
        if error is None:
            self.tries, self.why, self.state = 0, None, "up"
            self.failures.clear()
        else:
            self.tries += 1
            self.failures.add(error)
            self.why, self.state = error.what, "down"
            self.next_try = time.monotonic() + backoff(self.tries, 0.5, base=0.5, cap=LONGEST_PAUSE)
            self.tell(BackendFailed(time.time(), self.name, session, error.what))
        if self.state != before:
            self.since = self._clock.now()
            self.on_state()
            if before == "down":
                log.warning("backend %r is up again", self.name)
            self.tell(BackendChanged(time.time(), self.name, self.state, self.why))

    def unavailable(self, error: HoldfastError | None = None) -> NoBackend:
        """What a caller is told when it is not there."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        why = error.what if error is not None else self.why
        left = max(0.0, self.next_try - time.monotonic())
        return NoBackend(
            f"backend {self.name!r} is {self.state} since {since}" + (f": {why}" if why else ""),
            server=self.name,
            phase="call",
            retry_after=round(left, 1),
            remedy="nothing was executed; try again later",
        )

    # Links

    def new(
        self,
        *,
        session: str | None = None,
        memory: SessionMemory | SharedMemory | None = None,
        principal: Principal = ANONYMOUS,
        program: str | None = None,
        caller: Principal | None = None,
        info: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        on_request: OnRequest | None = None,
        on_notification: OnNotification | None = None,
        stream: bool = False,
        passed: Mapping[str, str] | None = None,
        era: EraChoice | None = None,
        session_wanted: bool = True,
    ) -> BackendLink:
        """A link that its caller owns. `program`: the name under which one gateway process at a time may run it.
        `passed` goes with every request of it, the handshake included. A server that offers both eras is taken in 2025
        where a session is wanted."""
        server = self.entry.server
        backend_link: BackendLink | None = None

        def on_event(event: Event) -> None:
            if backend_link is not None:
                self._heard(event, backend_link)

        options = Options(
            era=era or server.era,
            prefer="2025" if session_wanted and self.policy.stateful else "2026",
            stateful=self.policy.stateful and self.policy.on_replaced == "tell",
            capabilities=capabilities or {},
            client_info=info or CLIENT_INFO,
            principal=principal,
            memory=memory,
            limits=self._limits,
            verdict_rules=server.verdict_rules,
            confirm_losses=True,
            stream=stream,
            pool=self._pool,
            known_json=True,
            on_request=on_request,
            on_notification=on_notification,
            on_event=on_event,
        )
        target = server.target
        if isinstance(target, HttpTarget) and self.is_per_caller:
            target = with_passed(target, lambda: backend_link.passed if backend_link is not None else {})
        owns = self.programs.claim(program, self.name) if program is not None and self.is_child else None
        link = Link(target, options, name=self.name)
        backend_link = BackendLink(self, link, session, self.is_child, memory, owns, caller)
        backend_link.passed = passed or {}
        if on_request is None:
            backend_link.link.handle(backend_link.refuse, on_notification)
        return backend_link

    @property
    def is_per_caller(self) -> bool:
        """Does the server want headers of the caller's requests, so that only with them it says what it offers?"""
        return bool(self.policy.pass_headers) and not self.is_child and self.policy.reuse != "shared"

    def passed(self, headers: HasHeaders | None) -> dict[str, str]:
        """Those of a request's headers that go on to this server."""
        return passed(headers, self.policy.pass_headers)

    def _heard(self, event: Event, backend_link: BackendLink) -> None:
        if isinstance(event, SessionWasReplaced):
            self.tell(BackendReplaced(event.at, self.name, backend_link.session, event.kept_state))
        elif isinstance(event, HandshakeDone) and event.generation > 1 and not event.adopted and not self.is_child:
            self._fetch_soon()  # it came back, maybe as another version
        self.tell(event)

    # A server that was deployed anew

    async def met(self, link: Link, handshake: Handshake) -> None:
        """A first handshake: is this still the server whose lists we show?"""
        known = self.catalogue
        if self.is_per_caller:
            told, self._told = self._told, told_in(handshake)
            if told not in (None, self._told):
                self.on_redeployed(self)
            return
        if known is None or known.told == told_in(handshake) or link.statistics().adoptions:
            return  # whoever needs lists fetches them; an adopted session says nothing new
        if not self.is_child:
            self._fetch_soon()
            return
        try:
            await self.refresh(
                link, anew=True
            )  # now, while nobody has used this program: a session may see lists of its own
        except HoldfastError as error:
            log.warning("%s: its lists could not be fetched: %s", self.name, error.what)

    def _fetch_soon(self) -> None:
        if self.is_per_caller:
            self.on_redeployed(self)
        else:
            self._refetch.soon()

    async def _fetch_anew(self, _: frozenset[str] = frozenset()) -> None:
        if self._fetching is not None:  # the link of that fetch may be closed at its end
            await asyncio.wait((self._fetching,))
        await self.refresh(self.common().link, anew=True)

    def take_over(self, other: "Backend") -> None:
        """Another server has this name now: until it says what it offers, the names of the old one stay."""
        if self.catalogue is None and other.catalogue is not None:
            self.catalogue, self._borrowed = other.catalogue, True

    def common(self) -> BackendLink:
        """Everybody's link: for backends that keep nothing, for lists and for health."""
        if self._common is None:
            id = f"gateway/{self.name}/shared" if self.policy.reuse == "shared" else None
            memory = None if id is None else SharedMemory(self._store, id, self.at, principal=ANONYMOUS)
            self._common = self.new(memory=memory, program=id, on_notification=self.heard, stream=True)
        self._common.used = time.monotonic()
        return self._common

    def subscriptions(self) -> Subscriptions:
        """What clients without a session of their own want to hear of its resources."""
        link = self.common().link
        if self._subscriptions is None or self._subscriptions.link is not link:
            self._subscriptions = Subscriptions(link)
        return self._subscriptions

    async def stateless(self) -> BackendLink | None:
        """The link that 2026 clients without a session share. None where the backend does not offer that, wants each
        caller's own headers, or is a program: what its process keeps would be everybody's."""
        if self.is_child or self.is_per_caller or self.entry.server.era == "2025":
            return None
        return await self._stateless.get()

    def of_principal(self, principal: Principal, idle: float, passed: Mapping[str, str] | None = None) -> BackendLink:
        """The link that a principal's clients share."""
        backend_link = self._principals.get(principal)
        if backend_link is None:
            id = principal_link(self.name, principal)
            memory = self.memory_of(principal, idle)
            backend_link = self._principals[principal] = self.new(
                memory=memory,
                principal=principal,
                program=id,
                caller=principal,
                on_notification=self.heard,
                stream=True,
                passed=passed,
            )
        backend_link.used = time.monotonic()
        return backend_link

    def memory_of(self, principal: Principal, idle: float) -> SharedMemory:
        """Where a principal's session is kept."""
        return SharedMemory(
            self._store,
            principal_link(self.name, principal),
            self.at,
            principal=principal,
            idle=idle + GRACE,
            touch_every=idle / 10,
            remember=max(idle + GRACE, REMEMBERED),
        )

    def in_flight(self) -> int:
        """Calls on links that are no session's."""
        own = (*self._principals.values(), self._common, self._stateless.backend_link)
        return sum(backend_link.link.statistics().in_flight for backend_link in own if backend_link is not None)

    def has_principal(self, principal: str) -> bool:
        """Does a principal have a link here and now?"""
        return principal in self._principals

    def heard(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Its word on a link that is nobody's own."""
        if method == "notifications/resources/updated" and params is not None and isinstance(params.get("uri"), str):
            self._updated(params["uri"])
        elif method in LISTS and self._common is not None:
            self._news.soon(LISTS[method])

    async def _fetch_changed(self, kinds: frozenset[str]) -> None:
        """It says that lists have changed. If we see no difference, its word is passed on all the same."""
        before = self.catalogue
        if self._common is not None:
            try:
                await self._fetch_anew()
            finally:
                await self._drop_unneeded()
            if self.catalogue == before:
                for kind in sorted(kinds):
                    self._announced(kind)

    async def _watch_lists(self, link: Link) -> None:
        """A 2026 server tells of changes only whoever asks to hear of them."""
        handshake = link.handshake
        if self._watching is not None or handshake is None or handshake.era is not Era.Y2026:
            return
        told = {kind: members(handshake.capabilities.get(kind)).get("listChanged") is True for kind in LISTS.values()}
        if not any(told.values()):
            return
        try:
            tools, prompts, resources = (told[kind] for kind in ("tools", "prompts", "resources"))
            self._watching = await link.watch(tools=tools, prompts=prompts, resources=resources)
        except HoldfastError as error:
            log.info("%s: changes of its lists are not told: %s", self.name, error.what)

    # Spares

    def take_spare(self, capabilities: Mapping[str, Any]) -> BackendLink | None:
        """A link after its handshake that nobody has used, if one offered these capabilities."""
        if not self.policy.warm:
            return None
        self._spares = [spare for spare in self._spares if not self._is_dead(spare[1])]
        for number, (said, backend_link) in enumerate(self._spares):
            if said == capabilities:
                del self._spares[number]
                backend_link.begun = time.monotonic()
                return backend_link
        return None

    def _is_dead(self, backend_link: BackendLink) -> bool:
        """A spare whose program has ended meanwhile; it is let go."""
        if backend_link.link.handshake is not None:
            return False
        closing = asyncio.get_running_loop().create_task(
            backend_link.close("its program ended", end=True), name="close spare"
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return True

    async def spare_comes(self) -> None:
        """Where children are short, wait for the spare that is being made rather than refuse."""
        if self._warming is not None and not self._spares and self.children.count >= self.children.limit:
            await asyncio.wait((self._warming,))

    def warm_up(self, capabilities: Mapping[str, Any]) -> None:
        """Fill up the spares, as the last client introduced itself."""
        if self.policy.warm and self._warming is None and not self.closed:
            self._warming = asyncio.get_running_loop().create_task(
                self._warm_up(capabilities), name=f"warm {self.name}"
            )
            self._warming.add_done_callback(self._warmed)

    def _warmed(self, task: "asyncio.Task[None]") -> None:
        self._warming = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: no spare: %s", self.name, error)

    async def _warm_up(self, capabilities: Mapping[str, Any]) -> None:
        for said, backend_link in [spare for spare in self._spares if spare[0] != capabilities]:
            self._spares.remove((said, backend_link))
            await backend_link.close("another kind of client", end=True)
        while len(self._spares) < self.policy.warm:
            backend_link = self.new(capabilities=capabilities)
            try:
                await backend_link.start()
            except BaseException:
                await backend_link.close("did not start", end=True)
                raise
            backend_link.is_spare = True
            self._spares.append((capabilities, backend_link))

    # Catalogue and health

    async def recall(self) -> None:
        """What it offered last, as the store has it."""
        record = await self._store.get(CATALOGUES, self.name)
        if record is not None and self.catalogue is None and members(record.data).get("at") == self.at:
            self.catalogue = Catalogue.from_json(record.data)

    async def refresh(self, link: Link, *, anew: bool = False) -> Catalogue:
        """Fetch what it offers; one fetch at a time, for all who ask. `anew`: with a fetch that has not begun yet."""
        if anew and self._fetching is not None:  # what it reads may be from before the change
            await asyncio.wait((self._fetching,))
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._refresh(link), name=f"lists {self.name}")
            self._fetching.add_done_callback(lambda _: setattr(self, "_fetching", None))
        return await asyncio.shield(self._fetching)

    async def _refresh(self, link: Link) -> Catalogue:
        found = await fetch(link, timeout=FETCH_SECONDS, known=None if self._borrowed else self.catalogue)
        self.fetched = time.monotonic()
        self._borrowed = False
        self.noted(None)
        if found != self.catalogue:
            self._note_left_out(found)
            self.catalogue = found
            self._changed(self)
            try:
                await self._keep(found)
            except HoldfastError as error:
                log.warning("%s: its lists are not kept: %s", self.name, error.what)
        return found

    def _note_left_out(self, found: Catalogue) -> None:
        known = self.catalogue.left_out if self.catalogue is not None else ()
        for what in found.left_out:
            if what not in known:
                log.warning("backend %r: left out of its lists: %s", self.name, what)
                self.tell(BackendItemLeftOut(time.time(), self.name, what))

    async def _keep(self, found: Catalogue) -> None:
        for _ in range(3):
            record = await self._store.get(CATALOGUES, self.name)
            fresh = Record(CATALOGUES, self.name, ANONYMOUS, {**members(found.to_json()), "at": self.at})
            try:
                await self._store.commit(fresh, expect=0 if record is None else record.rev)
                return
            except Conflict:
                continue

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self.fetched > self.lists_last

    @property
    def _must_fetch(self) -> bool:
        """Is what we know of its lists too old, another server's, or without one that could not be read?"""
        return self._borrowed or self.is_stale or (self.catalogue is not None and self.catalogue.incomplete)

    async def check(self, *, fetch: bool = False) -> None:
        """One look at its health; a program is started for it only while nothing is known of it, or it was down.
        `fetch`: fetch its lists in any case."""
        if self.is_per_caller:  # without a caller's headers it would refuse us: calls say how it is
            return
        if self.closed or (self.state == "down" and time.monotonic() < self.next_try and not fetch):
            return
        if self.is_child and self.state != "down" and self.catalogue is not None and not (self._borrowed or fetch):
            return
        try:
            backend_link = self.common()
            await backend_link.start()
            if fetch or self.catalogue is None or self._must_fetch or self.state != "up":
                await self.refresh(backend_link.link, anew=fetch)
            elif not self.is_child:
                await self._ping(backend_link.link, self.catalogue)
            self.noted(None)
            await self._watch_lists(backend_link.link)
        except RunsElsewhere:
            if self.catalogue is None:
                await self.recall()  # whoever runs it keeps what it offers
                if self.catalogue is not None:
                    self._changed(self)
            self.noted(None)
        except HoldfastError as error:
            self.noted(error)
        finally:
            await self._drop_unneeded()

    async def _drop_unneeded(self) -> None:
        """A program that was started for a look only ends with it."""
        common = self._common
        wanted = self.is_shared or self._subscriptions or self._fetching is not None
        if self.is_child and not wanted and common is not None and not common.link.statistics().in_flight:
            await self._drop_common("looked at")

    async def _ping(self, link: Link, known: Catalogue) -> None:
        """Is it there, and is it the one that we know? A server without sessions is asked for its lists: no handshake
        would ever tell that it was deployed anew."""
        if link.era is Era.Y2026:
            result = await link.request("server/discover", timeout=PING_SECONDS)
            if told_in(Handshake(Era.Y2026, "", result)) != known.told:
                await self.refresh(link, anew=True)
        elif link.session_id is None and not link.keeps_child:
            await self.refresh(link)
        else:
            with contextlib.suppress(ErrorAnswer):  # whoever says that it knows no ping is there
                await link.request("ping", timeout=PING_SECONDS)

    @property
    def is_shared(self) -> bool:
        return self.policy.reuse == "shared" or (self.era is Era.Y2026)

    async def _drop_common(self, reason: str) -> None:
        backend_link, self._common, self._watching, self._subscriptions = self._common, None, None, None
        if backend_link is not None:
            await backend_link.close(reason, end=True)

    async def close_idle(self, idle: float, works: Callable[[Principal], Awaitable[bool]]) -> None:
        """Links that principals have not used for so long, unless they have sessions: then they are at work, and come
        back to it. A session at a server may be in use by another process, so it is left to the reaper of records."""
        for principal, backend_link in list(self._principals.items()):
            if time.monotonic() - backend_link.used <= idle / 2 or backend_link.link.statistics().in_flight:
                continue
            if await works(principal):
                await backend_link.link.touch()
                continue
            if time.monotonic() - backend_link.used > idle and not backend_link.link.statistics().in_flight:
                self._principals.pop(principal, None)
                await backend_link.close("idle", end=self.is_child, leaves_loss=True)
        await self._stateless.close_idle(idle)

    async def close(self, reason: str, *, end: bool, leaves_loss: bool = False) -> None:
        """Everything that is the backend's own. `end=False` leaves what the store remembers for the next process."""
        self.closed = True
        self._refetch.close()
        self._news.close()
        for task in (self._warming, self._fetching):
            if task is not None:
                task.cancel()
        if self._closing:
            await asyncio.wait(tuple(self._closing), timeout=10.0)
        spares, self._spares = self._spares, []
        principals, self._principals = self._principals, {}
        common, self._common = self._common, None
        closing = [backend_link.close(reason, end=True) for _, backend_link in spares]
        closing += [link.close(reason, end=end, leaves_loss=leaves_loss) for link in principals.values()]
        closing.append(self._stateless.close(reason))
        if common is not None:
            closing.append(common.close(reason, end=end or self.policy.reuse != "shared", leaves_loss=leaves_loss))
        for failed in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failed, BaseException):
                log.error("%s: a link was not closed", self.name, exc_info=failed)

    async def close_pool(self) -> None:  # after every link
        if self._pool is not None:
            await self._pool.close()


REMEMBERED = 86_400.0  # seconds that a caller is still told of a session which expired: it comes back the next day
GRACE = 3_600.0  # seconds that a record outlives its session's end, for whoever must end it at the server
