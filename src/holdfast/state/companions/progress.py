"""The insight into one companion's work, cached for the revision that it was computed from."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

from holdfast.errors import UsageError
from holdfast.state.companions import genealogy
from holdfast.state.companions.gate import CompanionContext
from holdfast.state.companions.insight import COUNTED, Insight, Judge, insight
from holdfast.state.companions.record import CompanionRecord
from holdfast.state.log import HistoryEntry
from holdfast.state.session import Session
from holdfast.state.tool_errors import shown

RECENT = 100  # relevant entries that insight uses
LOOKED = 2_000  # entries of any kind that are read to find them


class Progress:
    """Reads the log of a companion once per revision and computes its insight."""

    def __init__(
        self, session: Session[Any], context: CompanionContext, begins: tuple[str, ...], converged: Judge
    ) -> None:
        self._session = session
        self._context = context
        self._begins = begins
        self._converged = converged
        self._known: tuple[int, Insight] | None = None
        self._entries: tuple[int, list[HistoryEntry]] | None = None

    async def insight(self) -> Insight:
        """The insight at this revision."""
        if self._known is None or self._known[0] != self._session.rev:
            return self.offer(await self.judged(cast("CompanionRecord", self._session.state)))
        return self._known[1]

    async def judged(self, stored: CompanionRecord, new: Sequence[HistoryEntry] = ()) -> Insight:
        """The insight from a record and its log, with the entries that a step is about to write.
        Only entries since the last query count.
        """
        entries = [*await self._recent(), *new]
        begun = max((entry.rev for entry in entries if entry.label in self._begins), default=0)
        try:
            since = [entry for entry in entries if entry.rev >= begun]
            return insight(stored.phase, stored.counts, since, self._converged)
        except UsageError as error:
            raise shown(error, self._session.in_call.shows_as) from error.__cause__

    def offer(self, found: Insight) -> Insight:
        """Cache it for this revision and for the current request."""
        self._known = self._session.rev, found
        self._context.offer(found)
        return found

    def forget(self) -> None:
        """Drop the cached insight."""
        self._known = None

    async def _recent(self) -> list[HistoryEntry]:
        """The newest relevant entries, without those that were undone."""
        if self._entries is not None and self._entries[0] == self._session.rev:
            return self._entries[1]
        found: list[HistoryEntry] = []
        looked = 0
        async with aclosing(self._session.log.newest_first()) as entries:
            async for entry in entries:
                looked += 1
                if entry.undone_to is not None or entry.label in (*COUNTED, *self._begins):
                    found.append(entry)
                if len(found) == RECENT or looked == LOOKED:
                    break
        self._entries = self._session.rev, genealogy.lineage(found[::-1])
        return self._entries[1]
