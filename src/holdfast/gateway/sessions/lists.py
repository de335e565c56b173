"""Lists of a session's own: those of backends that announced a change to this session alone, and the table with them.

It owns the catalogues that differ from what other sessions see.
"""

from collections.abc import Mapping

from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.lists.catalogue import Catalogue, fetch, fetch_list
from holdfast.gateway.backends.lists.fetching import FETCH_SECONDS
from holdfast.gateway.backends.lists.looks import METHODS, Looks
from holdfast.gateway.backends.lists.refetch import Refetch
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.names.routing import Table
from holdfast.gateway.sessions.notices import ClientNotices


class SessionLists:
    """The lists of one session."""

    __slots__ = ("_fetching", "_links", "_looks", "_notices", "_offers", "catalogues", "table")

    def __init__(self, links: Mapping[str, BackendLink], notices: ClientNotices, offers: Offers) -> None:
        self._links = links
        self._notices = notices
        self._offers = offers
        self._fetching: dict[str, Refetch] = {}
        self._looks: dict[str, Looks] = {}
        self.catalogues: dict[str, Catalogue] = {}
        """By backend."""
        self.table: Table | None = None
        """None: the table of all sessions."""

    def fetch_soon(self, backend: str, kind: str) -> None:
        """A backend announced a change of its "tools", "prompts" or "resources" on this session's link."""
        self.may_have_changed(backend)
        fetching = self._fetching.get(backend)
        if fetching is None:
            fetching = self._fetching[backend] = Refetch(backend, lambda kinds: self._fetch(backend, kinds))
        fetching.soon(kind)

    async def _fetch(self, name: str, announced: frozenset[str]) -> None:
        backend_link = self._links.get(name)
        if backend_link is None:
            return
        known = self.catalogues.get(name) or backend_link.backend.catalogue
        looks = self.looks_at(name)
        began = looks.began()
        fetched = await fetch(backend_link.link, timeout=FETCH_SECONDS, known=known)
        backend_link.backend.note_left_out(fetched, known.left_out if known is not None else ())
        if self._links.get(name) is backend_link:
            for each in METHODS:
                looks.done(each, began)
            self.catalogues[name] = fetched
            unseen = announced.difference(self.rebuild())
            if unseen:  # as for all clients, an announcement is passed on although no difference shows
                self._notices.lists_changed(tuple(sorted(unseen)), seen=False)

    # Lists that a client asks for

    def may_have_changed(self, backend: str) -> None:
        """A call of this session may have changed what the backend offers to it."""
        self.looks_at(backend).mark_changed()

    def looks_at(self, backend: str) -> Looks:
        """The readings of a backend's lists over the session's own link."""
        known = self._looks.get(backend)
        if known is None:
            known = self._looks[backend] = Looks(backend, lambda name: self._look(backend, name), lambda _: 0.0)
        return known

    def looks_over_own_link(self, backend: str) -> bool:
        """Is a list of this backend read over the session's own link? Only there a program answers, and a server that
        this session has called may show it other lists than the rest."""
        link = self._links.get(backend)
        if link is None or not link.is_up or link.backend.catalogue is None:
            return False
        looks = self._looks.get(backend)
        called = looks is not None and looks.changes > 0
        return link.backend.is_child or backend in self.catalogues or called

    async def freshen(self, backend: str, name: str, seconds: float, since: float | None = None) -> None:
        """Wait, at most these seconds, until a list is as the server shows it to this session now."""
        await self.looks_at(backend).freshen(name, seconds, since)

    async def _look(self, backend: str, name: str) -> None:
        backend_link = self._links.get(backend)
        known = self.catalogues.get(backend) or (backend_link.backend.catalogue if backend_link is not None else None)
        if backend_link is None or known is None:
            return
        fetched = await fetch_list(backend_link.link, name, known, timeout=FETCH_SECONDS)
        known = self.catalogues.get(backend) or backend_link.backend.catalogue
        if self._links.get(backend) is not backend_link or known is None:
            return
        fresh = known.with_list(fetched)
        if fresh != known:
            self.catalogues[backend] = fresh
            self.rebuild()

    @property
    def differ(self) -> bool:
        """Does the session see other lists than the rest?"""
        return bool(self.catalogues) or self.table is not None

    def rebuild(self) -> tuple[str, ...]:
        """Make the table again, if the session has lists of its own, and announce what differs. Returns the kinds."""
        if not self.differ:
            return ()
        offers = self._offers
        before = self.table or offers.table
        for name in [name for name, own in self.catalogues.items() if own == offers.catalogue_of(name)]:
            del self.catalogues[name]  # all see the same again
        self.table = offers.table_of(offers.offers_with(self.catalogues), before) if self.catalogues else None
        changed = (self.table or offers.table).changed_from(before)
        self._notices.lists_changed(changed)
        return changed

    def drop(self, backend: str) -> None:
        """Another server has this name now."""
        self.catalogues.pop(backend, None)
        if (looks := self._looks.pop(backend, None)) is not None:
            looks.close()

    def close(self) -> None:
        for fetching in self._fetching.values():
            fetching.close()
        for looks in self._looks.values():
            looks.close()
