"""Reports what companions of one kind do: counted for `holdfast state stats`, and as events."""

import logging
import time
from typing import Any

from holdfast.events import CompanionRefused, CompanionStepped, Event, Sink
from holdfast.state.companions.figures import Counting
from holdfast.state.companions.record import CompanionRecord
from holdfast.state.storage.table import SessionTable

log = logging.getLogger(__name__)


class CompanionReporter:
    """One for all companions of a kind in this process."""

    def __init__(self, kind: str, sessions: SessionTable[Any], on_event: Sink | None) -> None:
        self.counting = Counting(kind)
        self._kind = kind
        self._sessions = sessions
        self._sink = on_event

    async def refused(self, handle: str, tool: str, phase: str) -> None:
        """A step was out of order."""
        self.counting.refused(phase)
        self._report(CompanionRefused(time.time(), self._kind, handle, tool, phase))
        await self._flush_if_due()

    async def stepped(
        self, handle: str, label: str, before: CompanionRecord, after: CompanionRecord, seconds: float | None
    ) -> None:
        """A step was written; `seconds` were spent in the phase that it left."""
        newly = after.converged and not before.converged
        iterations = max(0, after.counts.get("total", 0) - before.counts.get("total", 0))  # an undo takes none back
        self.counting.stepped(before.phase, iterations, newly, seconds)
        iteration = after.counts.get("iteration", 0)
        self._report(
            CompanionStepped(
                time.time(), self._kind, handle, label, before.phase, after.phase, iteration, seconds, newly
            )
        )
        await self._flush_if_due()

    async def flush(self) -> None:
        """Write the figures, at the latest when the server stops."""
        await self.counting.flush(await self._sessions.store.open_real())

    async def _flush_if_due(self) -> None:
        if self.counting.due:
            await self.flush()

    def _report(self, event: Event) -> None:
        """An error of the listener is not the step's: it is logged."""
        if self._sink is not None:
            try:
                self._sink(event)
            except Exception:
                log.exception("companions %r: on_event raised", self._kind)
