"""One backend: a server as the gateway sees it, with its health, its lists, its shared links and its spares.

It makes links, for sessions too, and keeps the faults of one backend away from the others.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era, without_subscription
from holdfast.core.handshake import Handshake, Ours
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import ConnectFailed, HoldfastError, NoBackend, OutcomeUnknown, Rejected, RunsElsewhere
from holdfast.events import BackendItemLeftOut, BackendSessionReplaced, Event, HandshakeDone, LinkSessionReplaced, Sink
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.health import BackendHealth
from holdfast.gateway.backends.links.counts import LinkCounts
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.links.memories import SessionMemory, SharedMemory
from holdfast.gateway.backends.links.passed_headers import HasHeaders, passed, with_passed
from holdfast.gateway.backends.links.shared_links import SharedLinks
from holdfast.gateway.backends.links.spares import Spares
from holdfast.gateway.backends.listener import BackendListener
from holdfast.gateway.backends.lists.catalogue import Catalogue, server_digest
from holdfast.gateway.backends.lists.fetching import BackendLists
from holdfast.gateway.backends.lists.known_lists import KnownLists
from holdfast.gateway.backends.lists.looks import LISTS
from holdfast.gateway.backends.lists.watches import ListWatches
from holdfast.gateway.backends.ownership import Programs
from holdfast.gateway.config.file import ServerEntry
from holdfast.links.calls.handlers import OnNotification, OnRequest
from holdfast.links.link import Link
from holdfast.links.options import CLIENT_INFO, EraChoice, Options
from holdfast.links.target import CommandTarget, HttpTarget
from holdfast.links.wires.http.pool import SharedPool
from holdfast.observers import deliver, pass_on
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")


class Backend:
    """One server behind the gateway."""

    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        store: Store,
        children: Children,
        programs: Programs,
        listener: BackendListener,
        sink: Sink | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.name = name
        self.entry = entry
        self.policy = entry.policy
        self.children = children
        self.programs = programs
        self._listener = listener
        self._sink = sink
        target = entry.server.target
        self.is_child = isinstance(target, CommandTarget)
        self.at = hashlib.sha256(repr(entry.server.url or entry.server.command).encode()).hexdigest()[:12]
        """Which server this is: nothing is taken over that was kept of another one under the same name."""
        connect = entry.server.limits.connect
        self._pool = SharedPool(target, name, connect) if isinstance(target, HttpTarget) else None
        self.health = BackendHealth(name, clock, emit=self.emit, on_change=listener.state_changed)
        self.links = SharedLinks(self, store)
        self.known_lists = KnownLists(name, self.at, store, listener, self.note_left_out)
        self.lists = BackendLists(self, self.known_lists, self.links, listener)
        self.watches = ListWatches(self, self.known_lists, self.links)
        self.spares = Spares(name, self.policy.warm, children, self._new_spare)
        self.counts = LinkCounts()
        self._server: str | None = None
        """The server's identity in the latest handshake, where its lists depend on the caller."""
        self._fetch_due = False
        """Its lists are to be fetched in any case, as soon as there is a place for its program."""

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.health.state} child={self.is_child}>"

    def configure(self, entry: ServerEntry, lists_max_age: float) -> None:
        """Another policy for the same server."""
        self.entry, self.policy = entry, entry.policy
        self.known_lists.configure(lists_max_age)
        self.spares.resize(entry.policy.warm)

    def emit(self, event: Event) -> None:
        deliver(event, self._sink)

    # What is known

    @property
    def catalogue(self) -> Catalogue | None:
        """What it offers, as far as it is known."""
        return self.known_lists.catalogue

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
    def is_per_caller(self) -> bool:
        """Does the server want headers of the caller's requests, so that it lists what it offers only with them?"""
        return bool(self.policy.pass_headers) and not self.is_child and self.policy.reuse != "shared"

    def passed(self, headers: HasHeaders | None) -> dict[str, str]:
        """Those of a request's headers that go on to this server."""
        return passed(headers, self.policy.pass_headers)

    def note_left_out(self, catalogue: Catalogue, known: Collection[str]) -> None:
        """Report what can't be offered of these lists. `known` was reported before."""
        for what in catalogue.left_out:
            if what not in known:
                log.warning("backend %r: left out of its lists: %s", self.name, what, extra={"backend": self.name})
                self.emit(BackendItemLeftOut(time.time(), self.name, what))

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
                self._on_event(event, backend_link)

        options = Options(
            era=era or server.era,
            prefer="2025" if session_wanted and self.policy.stateful else "2026",
            stateful=self.policy.stateful and self.policy.on_replaced == "report",
            capabilities=capabilities or {},
            client_info=info or CLIENT_INFO,
            principal=principal,
            own_circuit=self.is_per_caller,
            memory=memory,
            limits=replace(server.limits, circuit=self.policy.circuit),  # since a reload, the policy may be another
            verdict_rules=server.verdict_rules,
            confirm_losses=True,
            stream=stream,
            pool=self._pool,
            known_json=True,
            on_request=on_request,
            on_notification=on_notification,
            on_event=on_event,
            wants_requests=self._has_sink,
        )
        target = server.target
        if isinstance(target, HttpTarget) and self.is_per_caller:
            target = with_passed(target, lambda: backend_link.passed if backend_link is not None else {})
        link = Link(target, options, name=self.name)
        self.counts.add(link)
        backend_link = BackendLink(self, link, session, memory, program, caller, passed)
        if on_request is None:
            link.inbound.handle(backend_link.on_question, _logs_first(backend_link, on_notification))
        return backend_link

    def _new_spare(self, client: Ours) -> BackendLink:
        return self.new(info=client.info or None, capabilities=client.capabilities)

    def _on_event(self, event: Event, backend_link: BackendLink) -> None:
        if isinstance(event, LinkSessionReplaced):
            self.emit(BackendSessionReplaced(event.at, self.name, backend_link.session, event.kept_state))
        elif isinstance(event, HandshakeDone) and event.generation > 1 and not event.adopted and not self.is_child:
            if self.is_per_caller:
                self._listener.server_replaced(self.name)
            else:
                self.lists.fetch_soon()
        if self._sink is not None:
            pass_on(event, self._sink)  # the link has delivered it to the observers of the process

    def _has_sink(self) -> bool:
        return self._sink is not None

    def on_notification(
        self, method: str, params: Mapping[str, Any] | None, principal: Principal | None = None
    ) -> None:
        """A notification on a link of no session; `principal`: of that caller."""
        if method == "notifications/resources/updated" and params is not None and isinstance(params.get("uri"), str):
            self._listener.resource_updated(params["uri"], without_subscription(params), principal)
        elif method in LISTS:
            self.lists.announced(method)

    async def link_came_up(self, link: Link, handshake: Handshake) -> None:
        """The first handshake of a link: is this still the server whose lists are known?"""
        if not self.is_per_caller:
            await self.lists.check_handshake(link, handshake)
            return
        before, self._server = self._server, server_digest(handshake)
        if before not in (None, self._server):
            self._listener.server_replaced(self.name)

    def link_failed(self, error: HoldfastError, session: str | None, caller: Principal | None) -> None:
        """A link did not come up. What a server answers to one caller's handshake shows that it is there, and nothing
        of other callers. Where a caller's headers are passed, they may be why no answer came: only a server that can't
        be connected to is down for all."""
        answered = isinstance(error, Rejected) or (self.is_per_caller and _is_answer(error.status))
        if caller is None or not (answered or (self.is_per_caller and not _could_not_connect(error))):
            self.health.note(error, session)
        else:
            self.health.note_refusal(error, session, caller, shows_up=answered and self.is_per_caller)

    def link_closed(self, link: Link) -> None:
        self.counts.close(link)

    def answered(self, caller: Principal | None) -> None:
        """A call was answered. That does not show that a server which is checked is up: it may still answer in old
        sessions and begin no new ones."""
        if self.is_per_caller or self.is_child:
            self.health.note(None, caller=caller)

    # Checks

    def _is_due(self, fetch: bool) -> bool:
        """A program is started for a check only while nothing is known of it, or while it is down, and then after a
        pause; a look at a server costs so little that none is left out."""
        if self.lists.is_closed or (self.health.resting and self.is_child and not fetch):
            return False
        known = self.catalogue is not None and not self.known_lists.borrowed
        return fetch or self._fetch_due or not self.is_child or not known or self.health.state == "down"

    async def check(self, *, fetch: bool = False) -> None:
        """Check its health once, and fetch its lists if they are too old. `fetch`: fetch them in any case."""
        if self.is_per_caller:  # it would refuse a check, which has no caller's headers: calls show how it is
            self.health.end_pause()
            return
        if not self._is_due(fetch):
            return
        fetch = fetch or self._fetch_due
        try:
            backend_link = self.links.common()
            await backend_link.start(for_first_look=self.catalogue is None)
            self._fetch_due = False
            known = self.catalogue
            if known is None or fetch or self.known_lists.must_fetch or self.health.state != "up":
                await self.lists.refresh(backend_link.link, anew=fetch)
            elif not self.is_child:
                await self.lists.ping(backend_link.link, known)
            self.health.note(None)
            await self.watches.watch(backend_link.link)
        except RunsElsewhere:
            await self.known_lists.recall_from_owner()
            self.health.note(None)
        except NoBackend as error:  # every place for programs is taken: this one may be up
            self.health.failures.add(error)
            self.health.end_pause()
            self._fetch_due = fetch
        except HoldfastError as error:
            self.health.note(error)
        finally:
            await self.lists.end_look()

    async def close(self, reason: str, *, end: bool, leaves_loss: bool = False) -> None:
        """Close all links that belong to no session. `end=False` leaves what the store remembers for the next
        process."""
        self.lists.close()
        self.watches.close()
        self.spares.stop()
        await asyncio.gather(self.spares.close(reason), self.links.close(reason, end=end, leaves_loss=leaves_loss))

    async def close_pool(self) -> None:
        """Close the connections, after every link."""
        if self._pool is not None:
            await self._pool.close()


def _logs_first(backend_link: BackendLink, on_notification: OnNotification | None) -> OnNotification:
    def notified(method: str, params: Mapping[str, Any] | None) -> None:
        if not backend_link.take_log(method, params) and on_notification is not None:
            on_notification(method, params)

    return notified


def _could_not_connect(error: HoldfastError) -> bool:
    """Was the connection refused, so that nothing of the caller's request reached the server?"""
    if not isinstance(error, ConnectFailed) or error.phase not in ("handshake", "call") or error.status is not None:
        return False
    return not isinstance(error.__cause__, OutcomeUnknown)  # else it was sent, and the answer did not come


def _is_answer(status: int | None) -> bool:
    """Does this HTTP status come from a server that works, rather than from a proxy before one that is away?"""
    return status is not None and status not in (502, 503, 504)
