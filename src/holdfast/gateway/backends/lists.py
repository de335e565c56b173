"""The lists of one backend: fetched, kept in the store, and fetched again when the server changed or may have.

It owns the catalogue and the decision when it is too old. A fetch is shared by all callers that wait for it.
"""

import asyncio
import contextlib
import logging
import time

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake
from holdfast.core.models import ANONYMOUS, Record
from holdfast.core.values import members
from holdfast.errors import Conflict, ErrorAnswer, HoldfastError
from holdfast.gateway.backends.catalogue import Catalogue, fetch, fetch_list, told_in
from holdfast.gateway.backends.link import LinkOwner
from holdfast.gateway.backends.listener import BackendListener
from holdfast.gateway.backends.looks import METHODS, Looks
from holdfast.gateway.backends.refetch import Refetch
from holdfast.gateway.backends.shared_links import SharedLinks
from holdfast.gateway.config.settings import Health
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

CATALOGUES = "catalogue"  # the kind of the record that keeps what a backend offered last
FETCH_SECONDS = 30.0  # for each page of a list
PING_SECONDS = 10.0  # for a server to answer a ping
TRIES = 3  # to keep the lists in the store, where other processes keep them too
LISTS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}
NOTIFICATIONS = {kind: method for method, kind in LISTS.items()}


class BackendLists:
    """The lists of one backend. `at` names the server, so that nothing of another server is taken from the store."""

    def __init__(
        self, backend: LinkOwner, at: str, store: Store, links: SharedLinks, listener: BackendListener
    ) -> None:
        self._backend = backend
        self._name = backend.name
        self._at = at
        self._store = store
        self._links = links
        self._listener = listener
        self.catalogue: Catalogue | None = None
        self.max_age = Health().lists
        self.borrowed = False
        """The catalogue is that of the server which had this name before; this server's is not known yet."""
        self._fetched = float("-inf")
        self._fetching: asyncio.Task[Catalogue] | None = None
        self._redeployed = Refetch(self._name, self._fetch_again, lambda: self._fetched)
        self._announced = Refetch(self._name, self._fetch_announced)
        self._watching: tuple[Link, Watch] | None = None
        self.looks = Looks(self._name, self._look, self.ttl)
        self._closed = False

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self._fetched > self.max_age

    @property
    def must_fetch(self) -> bool:
        """Are the lists unknown, too old, another server's, or without one that could not be read?"""
        known = self.catalogue
        return known is None or self.borrowed or self.is_stale or known.incomplete

    def configure(self, max_age: float) -> None:
        """The seconds after which lists are fetched again."""
        self.max_age = max_age

    async def recall(self) -> None:
        """Take the lists from the store, if none are known."""
        record = await self._store.get(CATALOGUES, self._name)
        if record is not None and self.catalogue is None and members(record.data).get("at") == self._at:
            self.catalogue = Catalogue.from_json(record.data)

    async def recall_from_owner(self) -> None:
        """Take the lists that another process keeps, which runs the program."""
        if self.catalogue is None:
            await self.recall()
            if self.catalogue is not None:
                self._listener.lists_changed()

    def take_over(self, other: "BackendLists") -> None:
        """Another server has this name now: until its lists are known, the names of the old one stay."""
        if self.catalogue is None and other.catalogue is not None:
            self.catalogue, self.borrowed = other.catalogue, True

    async def refresh(self, link: Link, *, anew: bool = False) -> Catalogue:
        """Fetch the lists; one fetch at a time, for all callers. `anew`: do not join a fetch that has begun."""
        if anew and self._fetching is not None:  # what it reads may be from before the change
            await asyncio.wait((self._fetching,))
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._refresh(link), name=f"lists {self._name}")
            self._fetching.add_done_callback(self._fetch_done)
        return await asyncio.shield(self._fetching)

    def _fetch_done(self, task: "asyncio.Task[Catalogue]") -> None:
        self._fetching = None

    async def _refresh(self, link: Link) -> Catalogue:
        began = self.looks.began()
        found = await fetch(link, timeout=FETCH_SECONDS, known=None if self.borrowed else self.catalogue)
        self._fetched = time.monotonic()
        self.borrowed = False
        for name in METHODS:
            self.looks.done(name, began)
        self._backend.health.note(None)
        return await self._take(found)

    async def _take(self, found: Catalogue) -> Catalogue:
        if found == self.catalogue:
            self.catalogue = found  # what is not compared may be another
        else:
            self._backend.note_left_out(found, self.catalogue.left_out if self.catalogue is not None else ())
            self.catalogue = found
            self._listener.lists_changed()
            try:
                await self._keep(found)
            except HoldfastError as error:
                log.warning("%s: its lists are not kept: %s", self._name, error.what)
        return found

    async def _keep(self, found: Catalogue) -> None:
        for _ in range(TRIES):
            record = await self._store.get(CATALOGUES, self._name)
            fresh = Record(CATALOGUES, self._name, ANONYMOUS, {**members(found.to_json()), "at": self._at})
            try:
                await self._store.commit(fresh, expect=0 if record is None else record.rev)
                return
            except Conflict:
                continue

    # Changes

    async def check_handshake(self, link: Link, handshake: Handshake) -> None:
        """Fetch the lists again if a link's first handshake shows another server than the one that was listed."""
        known = self.catalogue
        if known is None or known.told == told_in(handshake) or link.statistics().adoptions:
            return  # lists that are needed are fetched anyway; an adopted session says nothing new
        if not self._backend.is_child:
            self._redeployed.soon()
            return
        try:
            # At once, while no call has used this program: a session may see lists of its own.
            await self.refresh(link, anew=True)
        except HoldfastError as error:
            log.warning("%s: its lists could not be fetched: %s", self._name, error.what)

    def fetch_soon(self) -> None:
        """The server came back, perhaps as another version."""
        self._redeployed.soon()

    def announced(self, method: str) -> None:
        """The server says that a list has changed, on a link of no session."""
        self.looks.changes += 1
        if self._links.has_common:
            self._announced.soon(LISTS[method])

    def ttl(self, name: str) -> float:
        """Seconds for which the server lets one of its lists be kept."""
        return self.ttl_of(self.catalogue, name)

    def ttl_of(self, catalogue: Catalogue | None, name: str) -> float:
        """The same of lists that the server shows to one caller."""
        known = catalogue.about.get(name) if catalogue is not None else None
        return 0.0 if known is None or known.ttl_ms is None else min(known.ttl_ms / 1000, self.max_age)

    @property
    def can_look(self) -> bool:
        """May a list be read for a client that asks for it? A program is not started for that, and a server that is not
        known to be up is not waited for."""
        policy, health = self._backend.policy, self._backend.health
        if self._closed or self.catalogue is None or health.state != "up":
            return False
        return not self._backend.is_child or (policy.reuse == "shared" and self._links.has_common)

    async def _look(self, name: str) -> None:
        """Read one list over the link for all clients."""
        common = self._links.common()
        await common.start()
        link, known = common.link, self.catalogue
        handshake = link.handshake
        if known is None or self.borrowed or known.incomplete or handshake is None or told_in(handshake) != known.told:
            await self.refresh(link, anew=True)
            return
        found = await fetch_list(link, name, known, timeout=FETCH_SECONDS)
        if self.catalogue is not None and not self.borrowed:
            await self._take(self.catalogue.with_list(found))

    async def _fetch_again(self, _: frozenset[str]) -> None:
        if self._fetching is not None:  # the link of that fetch may be closed at its end
            await asyncio.wait((self._fetching,))
        await self.refresh(self._links.common().link, anew=True)

    async def end_look(self) -> None:
        """End a program that was started for its lists only, unless they are being fetched again."""
        if self._fetching is None:
            await self._links.end_look()

    async def _fetch_announced(self, kinds: frozenset[str]) -> None:
        """If no difference shows, the announcement is passed on all the same."""
        before = self.catalogue
        if self._links.has_common:
            try:
                await self._fetch_again(kinds)
            finally:
                await self.end_look()
            if self.catalogue == before:
                for kind in sorted(kinds):
                    self._listener.lists_announced(kind)

    async def watch(self, link: Link) -> None:
        """Listen for changes at a 2026 server, which announces them only to clients that asked for them."""
        handshake = link.handshake
        known = self._watching
        if (known is not None and known[0] is link) or handshake is None or handshake.era is not Era.Y2026:
            return
        sent = {kind: members(handshake.capabilities.get(kind)).get("listChanged") is True for kind in LISTS.values()}
        if not any(sent.values()):
            return
        try:
            tools, prompts, resources = (sent[kind] for kind in ("tools", "prompts", "resources"))
            self._watching = link, await link.watch(tools=tools, prompts=prompts, resources=resources)
        except HoldfastError as error:
            log.info("%s: changes of its lists are not announced: %s", self._name, error.what)

    async def ping(self, link: Link, known: Catalogue) -> None:
        """Is the server there, and is it the one whose lists are known? A server without sessions is asked for its
        lists: no handshake would show that it was deployed again."""
        if link.era is Era.Y2026:
            result = await link.request("server/discover", timeout=PING_SECONDS)
            if told_in(Handshake(Era.Y2026, "", result)) != known.told:
                await self.refresh(link, anew=True)
        elif link.session_id is None and not link.keeps_child:
            await self.refresh(link)
        else:
            with contextlib.suppress(ErrorAnswer):  # a server that answers is there, even if it knows no ping
                await link.request("ping", timeout=PING_SECONDS)

    def close(self) -> None:
        """Stop what is being fetched."""
        self._closed = True
        self._redeployed.close()
        self._announced.close()
        self.looks.close()
        if self._fetching is not None:
            self._fetching.cancel()
