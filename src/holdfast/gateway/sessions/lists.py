"""Lists of a session's own: those of backends that announced a change to this session alone, and the table with them.

It owns the catalogues that differ from what other sessions see.
"""

from collections.abc import Mapping
from typing import Protocol

from holdfast.gateway.backends.catalogue import Catalogue, fetch
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.lists import FETCH_SECONDS
from holdfast.gateway.backends.offers import Offers
from holdfast.gateway.backends.refetch import Refetch
from holdfast.gateway.backends.routing import Table


class ListsReader(Protocol):
    """The session that has these lists."""

    @property
    def links(self) -> Mapping[str, BackendLink]: ...
    def announce(self, kinds: tuple[str, ...]) -> None:
        """The client's lists of these kinds have changed."""
        ...


class SessionLists:
    """The lists of one session."""

    __slots__ = ("_fetching", "_offers", "_session", "catalogues", "table")

    def __init__(self, session: ListsReader, offers: Offers) -> None:
        self._session = session
        self._offers = offers
        self._fetching: dict[str, Refetch] = {}
        self.catalogues: dict[str, Catalogue] = {}
        """By backend."""
        self.table: Table | None = None
        """None: the table of all sessions."""

    def fetch_soon(self, backend: str) -> None:
        """A backend announced a change on this session's link."""
        fetching = self._fetching.get(backend)
        if fetching is None:
            fetching = self._fetching[backend] = Refetch(backend, lambda _: self._fetch(backend))
        fetching.soon()

    async def _fetch(self, name: str) -> None:
        backend_link = self._session.links.get(name)
        if backend_link is None:
            return
        known = self.catalogues.get(name) or backend_link.backend.catalogue
        found = await fetch(backend_link.link, timeout=FETCH_SECONDS, known=known)
        backend_link.backend.note_left_out(found, known.left_out if known is not None else ())
        if self._session.links.get(name) is backend_link:
            self.catalogues[name] = found
            self.rebuild()

    @property
    def differ(self) -> bool:
        """Does the session see other lists than the rest?"""
        return bool(self.catalogues) or self.table is not None

    def rebuild(self) -> None:
        """Make the table again, if the session has lists of its own, and announce what differs."""
        if not self.differ:
            return
        offers = self._offers
        before = self.table or offers.table
        self.table = offers.table_of(offers.offers_with(self.catalogues), before) if self.catalogues else None
        self._session.announce((self.table or offers.table).changed_from(before))

    def drop(self, backend: str) -> None:
        """Another server has this name now."""
        self.catalogues.pop(backend, None)

    def close(self) -> None:
        for fetching in self._fetching.values():
            fetching.close()
