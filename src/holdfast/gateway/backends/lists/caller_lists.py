"""What servers with `pass_headers` offer each caller: their lists depend on headers that only callers' requests have.

It owns these lists, by caller and headers, and the tables made of them. One caller's list is never shown to another.
The headers themselves are not kept: a digest names them.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.core.models import Principal
from holdfast.errors import HoldfastError, NoBackend, Rejected, RunsElsewhere, StoreDown
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.lists.catalogue import Catalogue, fetch
from holdfast.gateway.backends.lists.fetching import FETCH_SECONDS
from holdfast.gateway.backends.lists.looks import FRESH_SECONDS, NOTIFICATIONS
from holdfast.gateway.calls.link_choice import LinkChoice
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.names.routing import Table

log = logging.getLogger("holdfast.gateway")

MIB = 1024 * 1024
BYTES = 32 * MIB  # of lists of all callers: some hundred callers of a large server; the least recently used go
INCOMPLETE_SECONDS = 5.0  # until lists of which one could not be read are fetched again
FAILURES = 512  # callers of whom it is kept why their lists could not be read
TABLES = 64  # callers whose tables are kept; another caller's is built again, in milliseconds

Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Listed:
    """One caller's lists of one server."""

    catalogue: Catalogue
    at: float
    changes: int
    """Calls to the server until then, of all callers; each may have changed what it offers."""
    size: int


class CallerLists:
    """The lists of one gateway's callers."""

    def __init__(
        self, backends: Mapping[str, Backend], offers: Offers, link_choice: LinkChoice, settings: Settings
    ) -> None:
        self._backends = backends
        self._offers = offers
        self._link_choice = link_choice
        self._settings = settings
        self._listed: OrderedDict[Key, Listed] = OrderedDict()
        self._size = 0
        self._fetching: dict[Key, asyncio.Task[Catalogue]] = {}
        self._late: set[asyncio.Task[Catalogue]] = set()
        self._failures: OrderedDict[Key, HoldfastError] = OrderedDict()
        """Why a caller's lists could not be read, the last time that they were to be."""
        self._tables: OrderedDict[tuple[int, ...], tuple[Table, tuple[Catalogue, ...]]] = OrderedDict()
        self.needed = False
        """Is there a server whose lists depend on the caller?"""

    def configure(self, settings: Settings) -> None:
        """Take over other servers, or another policy of a server."""
        self._settings = settings
        self.needed = any(backend.is_per_caller for backend in self._backends.values())
        self._listed.clear()
        self._failures.clear()
        self._tables.clear()
        self._size = 0

    def forget(self, backend: str) -> None:
        """A server may offer other things from now on."""
        for key in [key for key in self._listed if key[0] == backend]:
            self._size -= self._listed.pop(key).size

    def left_out(self, backend: str) -> set[str]:
        """What a server listed for callers and can't be offered to them."""
        return {what for key, listed in self._listed.items() if key[0] == backend for what in listed.catalogue.left_out}

    async def table(self, context: RequestContext, *, fresh: bool = False) -> Table:
        """All that this caller is offered. `fresh`: as the servers show it now."""
        per_caller = [backend for backend in self._backends.values() if backend.is_per_caller]
        fetched = await asyncio.gather(*(self._for_backend(context, backend, fresh) for backend in per_caller))
        own = context.session.lists.catalogues if context.session is not None else {}
        listed = {backend.name: catalogue for backend, catalogue in zip(per_caller, fetched, strict=True)}
        offers = self._offers.offers_with({**listed, **own})
        key = tuple(id(offer.catalogue) for offer in offers)
        known = self._tables.get(key)
        if known is None:
            catalogues = tuple(offer.catalogue for offer in offers)  # held, so that their ids stay theirs
            known = self._tables[key] = self._offers.table_of(offers), catalogues
            if len(self._tables) > TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return known[0]

    async def learn(self, context: RequestContext) -> None:
        """Fetch the lists of the servers of which this request has headers, if they are not known."""
        if not self.needed:
            return
        asked = (each for each in self._backends.values() if each.is_per_caller and each.passed(context.headers))
        await asyncio.gather(*(self._for_backend(context, backend, False) for backend in asked))

    def known(self, context: RequestContext, backend: Backend) -> Catalogue | None:
        """One server's lists for this caller, as they were read last."""
        listed = self._listed.get(_key_of(context, backend, backend.passed(context.headers)))
        return listed.catalogue if listed is not None else None

    def why_unknown(self, context: RequestContext, backend: Backend) -> HoldfastError | None:
        """Why it can't be said what one server offers this caller now; None: it can."""
        key = _key_of(context, backend, backend.passed(context.headers))
        error = self._failures.get(key)
        if error is None and key in self._listed and backend.health.state != "down":
            return None
        if isinstance(error, (Rejected, RunsElsewhere, NoBackend, StoreDown)):
            return error.copied()
        return backend.health.unavailable(error)

    async def _for_backend(self, context: RequestContext, backend: Backend, fresh: bool) -> Catalogue | None:
        """One server's lists for this caller; what it offered before, if it does not answer by the start deadline."""
        passed = backend.passed(context.headers)
        key = _key_of(context, backend, passed)
        known = self._listed.get(key)
        if known is not None:
            self._listed.move_to_end(key)
            max_age = INCOMPLETE_SECONDS if known.catalogue.incomplete else backend.known_lists.max_age
            if fresh:
                ttl = backend.known_lists.ttl_of(known.catalogue, "tools")
                max_age = max(FRESH_SECONDS, ttl) if known.changes == backend.lists.looks.changes else 0.0
            if time.monotonic() - known.at < max_age:
                return known.catalogue
        if backend.health.resting:
            return known.catalogue if known is not None else None
        fetching = self._fetching.get(key)
        if fetching is None:
            work = self._fetch(context, backend, key, passed)
            fetching = self._fetching[key] = asyncio.get_running_loop().create_task(work, name=f"lists {backend.name}")
            fetching.add_done_callback(lambda task: self._fetched(key, backend, task))
        if known is None or fetching not in self._late:  # a server that is slow delays a caller once
            await asyncio.wait((fetching,), timeout=self._settings.start)
            if not fetching.done():
                self._late.add(fetching)
        known = self._listed.get(key)
        if known is None and not fetching.done() and context.session is not None:
            session = context.session
            fetching.add_done_callback(lambda _: session.notices.lists_changed(tuple(NOTIFICATIONS)))
        return known.catalogue if known is not None else None

    async def _fetch(self, context: RequestContext, backend: Backend, key: Key, passed: Mapping[str, str]) -> Catalogue:
        began, changes = time.monotonic(), backend.lists.looks.changes
        backend_link, ours = await self._link_choice.for_lists(context, backend, passed)
        try:
            before = self._listed.get(key)
            fetched = await self._fetch_over(backend_link, passed, before.catalogue if before is not None else None)
        finally:
            if ours:
                await backend_link.close("listed", end=True)
        if fetched.left_out:
            backend.note_left_out(fetched, self.left_out(backend.name))
        size = fetched.size
        if key in self._listed:
            self._size -= self._listed.pop(key).size
        self._listed[key] = Listed(fetched, began, changes, size)
        self._size += size
        while self._size > BYTES and len(self._listed) > 1:
            self._size -= self._listed.popitem(last=False)[1].size
        return fetched

    async def _fetch_over(
        self, backend_link: BackendLink, passed: Mapping[str, str], known: Catalogue | None
    ) -> Catalogue:
        await backend_link.start()
        return await fetch(backend_link.link, timeout=FETCH_SECONDS, headers=passed, known=known)

    def _fetched(self, key: Key, backend: Backend, task: "asyncio.Task[Catalogue]") -> None:
        self._fetching.pop(key, None)
        self._late.discard(task)
        error = None if task.cancelled() else task.exception()
        self._failures.pop(key, None)
        if isinstance(error, HoldfastError):
            self._failures[key] = error
            if len(self._failures) > FAILURES:
                self._failures.popitem(last=False)
            backend.health.failures.add(error, Principal(key[1]))
        elif error is not None:
            log.error("the lists of %r for a caller could not be fetched", backend.name, exc_info=error)

    async def close(self) -> None:
        """Stop what is being fetched."""
        tasks = tuple(self._fetching.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)


def _key_of(context: RequestContext, backend: Backend, passed: Mapping[str, str]) -> Key:
    digest = hashlib.sha256("\0".join(f"{name}:{passed[name]}" for name in sorted(passed)).encode()).hexdigest()
    return backend.name, str(context.principal), digest
