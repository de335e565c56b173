"""What the gateway offers: the table of all sessions, made from the backends' catalogues, and tables that differ.

It owns the current table. A table is frozen and replaced whole.
"""

import logging
from collections.abc import Mapping, Sequence

from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.config.settings import Naming
from holdfast.gateway.names.routing import Offer, Table, build

log = logging.getLogger("holdfast.gateway")


class Offers:
    """The offers of one gateway's backends."""

    def __init__(self, backends: Mapping[str, Backend], naming: Naming) -> None:
        self._backends = backends
        self._naming = naming
        self.table = Table()

    def configure(self, naming: Naming) -> None:
        """Other names, from the next table on."""
        self._naming = naming

    def rebuild(self) -> tuple[str, ...]:
        """Make the table again. Returns which lists differ: "tools", "prompts", "resources"."""
        before, self.table = self.table, self.table_of(self.offers_with({}))
        for clash in set(self.table.clashes) - set(before.clashes):
            log.warning("%s %r of %s is hidden by that of %s", clash.kind, clash.name, clash.loser, clash.winner)
        return self.table.changed_from(before)

    def catalogue_of(self, backend: str) -> Catalogue | None:
        """What a backend offers to all sessions."""
        known = self._backends.get(backend)
        return known.catalogue if known is not None else None

    def offers_with(self, catalogues: Mapping[str, Catalogue | None]) -> list[Offer]:
        """What a caller is offered to whom some backends show other lists; None: a backend shows nothing."""
        offers: list[Offer] = []
        for name, backend in self._backends.items():
            catalogue = catalogues.get(name, backend.catalogue)
            if catalogue is not None:
                offers.append(Offer(name, backend.policy, catalogue))
        return offers

    def table_of(self, offers: Sequence[Offer], before: Table | None = None) -> Table:
        """A table for some callers only. `before`: the one that they had, if it was not that of all sessions."""
        return build(self._naming, offers, before or self.table)
