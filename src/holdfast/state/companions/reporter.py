"""Reports what companions of one kind do, as events and in the counts of `holdfast state stats`."""

import time
from typing import Any

from holdfast.events import CompanionRefused, CompanionStepped, Event, Sink
from holdfast.observers import deliver
from holdfast.state.companions.figures import Counting
from holdfast.state.companions.record import CompanionRecord
from holdfast.state.storage.table import SessionTable


class CompanionReporter:
    """The reporter of all companions of one kind in this process."""

    def __init__(self, kind: str, sessions: SessionTable[Any], on_event: Sink | None) -> None:
        self.counting = Counting(kind)
        self._kind = kind
        self._sessions = sessions
        self._sink = on_event

    async def refused(self, handle: str, tool: str, phase: str) -> None:
        """Report a step out of order."""
        self.counting.refused(phase)
        self._report(CompanionRefused(time.time(), self._kind, handle, tool, phase))
        await self._flush_if_due()

    async def stepped(
        self, handle: str, label: str, before: CompanionRecord, after: CompanionRecord, seconds: float | None
    ) -> None:
        """Report a step that was written; `seconds` were spent in the phase that it left."""
        newly = after.converged and not before.converged
        iterations = max(0, after.counts.get("total", 0) - before.counts.get("total", 0))  # an undo decreases nothing
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
        deliver(event, self._sink)
