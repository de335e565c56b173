"""What is known of one backend's lists: the catalogue, how old it is, and its copy in the store.

It owns the catalogue. Fetching them is in `fetching.py`.
"""

import logging
import time
from collections.abc import Callable, Collection

from holdfast.core.models import ANONYMOUS, Record
from holdfast.core.values import members
from holdfast.errors import Conflict, HoldfastError
from holdfast.gateway.backends.listener import BackendListener
from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.config.settings import Health
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

CATALOGUES = "catalogue"  # the kind of the record that keeps what a backend offered last
TRIES = 3  # to keep the lists in the store, where other processes keep them too


class KnownLists:
    """The lists of one backend, as far as they are known. `at` names the server, so that nothing of another server is
    taken from the store. `on_left_out` gets each new catalogue, and what was left out of the one before."""

    def __init__(
        self,
        name: str,
        at: str,
        store: Store,
        listener: BackendListener,
        on_left_out: Callable[[Catalogue, Collection[str]], None],
    ) -> None:
        self._name = name
        self._at = at
        self._store = store
        self._listener = listener
        self._on_left_out = on_left_out
        self.catalogue: Catalogue | None = None
        self.max_age = Health().lists
        self.borrowed = False
        """The catalogue is that of the server which had this name before; this server's is not known yet."""
        self.fetched_at = float("-inf")
        """When all lists were fetched last."""

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self.fetched_at > self.max_age

    @property
    def must_fetch(self) -> bool:
        """Are the lists unknown, too old, another server's, or without one that could not be read?"""
        known = self.catalogue
        return known is None or self.borrowed or self.is_stale or known.incomplete

    @property
    def own(self) -> Catalogue | None:
        """The catalogue, if it is of the server that has the name now."""
        return None if self.borrowed else self.catalogue

    def configure(self, max_age: float) -> None:
        """The seconds after which lists are fetched again."""
        self.max_age = max_age

    def ttl(self, name: str) -> float:
        """Seconds for which the server lets one of its lists be kept."""
        return self.ttl_of(self.catalogue, name)

    def ttl_of(self, catalogue: Catalogue | None, name: str) -> float:
        """The same of lists that the server shows to one caller."""
        known = catalogue.about.get(name) if catalogue is not None else None
        return 0.0 if known is None or known.ttl_ms is None else min(known.ttl_ms / 1000, self.max_age)

    def take_over(self, other: "KnownLists") -> None:
        """Another server has this name now: until its lists are known, the names of the old one stay."""
        if self.catalogue is None and other.catalogue is not None:
            self.catalogue, self.borrowed = other.catalogue, True

    # In the store

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

    async def take_all(self, fetched: Catalogue) -> None:
        """All lists as they were fetched now."""
        self.fetched_at = time.monotonic()
        self.borrowed = False
        await self.take(fetched)

    async def take(self, fetched: Catalogue) -> None:
        """The catalogue as it is now, where only some of its lists were read."""
        if fetched == self.catalogue:
            self.catalogue = fetched  # what is not compared may be another
            return
        self._on_left_out(fetched, self.catalogue.left_out if self.catalogue is not None else ())
        self.catalogue = fetched
        self._listener.lists_changed()
        try:
            await self._keep(fetched)
        except HoldfastError as error:
            log.warning("%s: its lists are not kept: %s", self._name, error.what)

    async def _keep(self, catalogue: Catalogue) -> None:
        for _ in range(TRIES):
            record = await self._store.get(CATALOGUES, self._name)
            fresh = Record(CATALOGUES, self._name, ANONYMOUS, {**members(catalogue.to_json()), "at": self._at})
            try:
                await self._store.commit(fresh, expect=0 if record is None else record.rev)
                return
            except Conflict:
                continue
