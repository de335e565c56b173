"""The fetching of one backend's lists, again when the server changed or may have.

A fetch is shared by all callers that wait for it. What is known of the lists is in `known_lists.py`.
"""

import asyncio
import contextlib
import logging

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.gateway.backends.links.link import LinkOwner
from holdfast.gateway.backends.links.shared_links import SharedLinks
from holdfast.gateway.backends.listener import BackendListener
from holdfast.gateway.backends.lists.catalogue import Catalogue, fetch, fetch_list, server_digest
from holdfast.gateway.backends.lists.known_lists import KnownLists
from holdfast.gateway.backends.lists.looks import LISTS, METHODS, Looks
from holdfast.gateway.backends.lists.refetch import Refetch
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

FETCH_SECONDS = 30.0  # for each page of a list
PING_SECONDS = 10.0  # for a server to answer a ping


class BackendLists:
    """The fetching of one backend's lists."""

    def __init__(self, backend: LinkOwner, known: KnownLists, links: SharedLinks, listener: BackendListener) -> None:
        self._backend = backend
        self._name = backend.name
        self._known = known
        self._links = links
        self._listener = listener
        self._fetching: asyncio.Task[Catalogue] | None = None
        self._redeployed = Refetch(self._name, self._fetch_again, lambda: known.fetched_at)
        self._announced = Refetch(self._name, self._fetch_announced)
        self.looks = Looks(self._name, self._look, known.ttl)
        self.is_closed = False

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
        fetched = await fetch(link, timeout=FETCH_SECONDS, known=self._known.own)
        for name in METHODS:
            self.looks.done(name, began)
        self._backend.health.note(None)
        await self._known.take_all(fetched)
        return fetched

    # Changes

    async def check_handshake(self, link: Link, handshake: Handshake) -> None:
        """Fetch the lists again if a link's first handshake shows another server than the one that was listed."""
        known = self._known.catalogue
        if known is None or known.digest == server_digest(handshake) or link.statistics().adoptions:
            return  # lists that are needed are fetched anyway; an adopted session shows nothing new
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
        """The server announced a change of a list, on a link of no session."""
        self.looks.mark_changed()
        if self._links.has_common:
            self._announced.soon(LISTS[method])

    @property
    def can_look(self) -> bool:
        """May a list be read for a client that asks for it? A program is not started for that, and a server that is not
        known to be up is not waited for."""
        policy, health = self._backend.policy, self._backend.health
        if self.is_closed or self._known.catalogue is None or health.state != "up":
            return False
        return not self._backend.is_child or (policy.reuse == "shared" and self._links.has_common)

    async def _look(self, name: str) -> None:
        """Read one list over the link for all clients."""
        common = self._links.common()
        await common.start()
        link, known, handshake = common.link, self._known.own, common.link.handshake
        if known is None or known.incomplete or handshake is None or server_digest(handshake) != known.digest:
            await self.refresh(link, anew=True)
            return
        fetched = await fetch_list(link, name, known, timeout=FETCH_SECONDS)
        now = self._known.own
        if now is not None:
            await self._known.take(now.with_list(fetched))

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
        before = self._known.catalogue
        if self._links.has_common:
            try:
                await self._fetch_again(kinds)
            finally:
                await self.end_look()
            if self._known.catalogue == before:
                for kind in sorted(kinds):
                    self._listener.lists_announced(kind)

    async def ping(self, link: Link, known: Catalogue) -> None:
        """Is the server there, and is it the one whose lists are known? A server without sessions is asked for its
        lists: no handshake would show that it was deployed again."""
        if link.era is Era.Y2026:
            result = await link.request("server/discover", timeout=PING_SECONDS)
            if server_digest(Handshake(Era.Y2026, "", result)) != known.digest:
                await self.refresh(link, anew=True)
        elif link.session_id is None and not link.keeps_child:
            await self.refresh(link)
        else:
            with contextlib.suppress(ErrorAnswer):  # a server that answers is there, even if it knows no ping
                await link.request("ping", timeout=PING_SECONDS)

    def close(self) -> None:
        """Stop what is being fetched."""
        self.is_closed = True
        self._redeployed.close()
        self._announced.close()
        self.looks.close()
        if self._fetching is not None:
            self._fetching.cancel()
