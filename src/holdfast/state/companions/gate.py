"""The checks before a step of a companion: another caller's long turn, the end of its session, and its phase."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from holdfast.core.phases import PhaseTable
from holdfast.errors import Busy, Ended, HoldfastError, NotFound, SessionExpired, WrongPhase
from holdfast.state.calls.stale_turns import LEASE
from holdfast.state.companions.insight import Insight
from holdfast.state.companions.needs import ToolNeeds
from holdfast.state.companions.record import CompanionRecord
from holdfast.state.companions.reporter import CompanionReporter
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import reworded, showing, shown

E = TypeVar("E", bound=HoldfastError)


@dataclass(frozen=True, slots=True)
class CompanionContext:
    """The context shared by all companions of one kind."""

    sessions: SessionTable[Any]
    needs: ToolNeeds
    reporter: CompanionReporter
    offer: Callable[[Insight], None]


class StepGate:
    """Rejects a step that is not allowed now, with what can be done instead."""

    def __init__(self, session: Session[Any], context: CompanionContext, kind: str, table: PhaseTable) -> None:
        self._session = session
        self._context = context
        self._kind = kind
        self._table = table

    @property
    def phase(self) -> str:
        """The companion's phase, as it was read."""
        return cast("CompanionRecord", self._session.state).phase

    async def check_free(self) -> None:
        """Raise `Busy` while another caller has a long turn."""
        store = await self._context.sessions.store.open()
        holder = await store.holder(KIND, self._session.handle)
        if holder is not None and holder.owner.startswith(LEASE):  # a short turn is waited for by who writes
            raise self.shown(
                Busy(
                    f"a long turn of the {self._kind} is under way; it is in phase {self.phase!r}",
                    id=self._session.handle,
                    remedy="wait until it ends, then check the phase again",
                )
            )

    async def use_session(self) -> None:
        """Count the step as use of the session; rejected once the session has ended, and in a tool that only reads."""
        self._session.in_call.check_writable()
        try:
            store = await self._context.sessions.store.open()
            await store.touch(KIND, self._session.handle.rpartition(".")[0])
        except (Ended, NotFound, SessionExpired) as error:
            why = "has expired" if isinstance(error, SessionExpired) else "was ended"
            reworded(error, f"the session of the {self._kind} {why}", self._context.sessions.begin_hint)
            raise self.shown(error) from error.__cause__
        except HoldfastError as error:
            raise self.shown(error) from error.__cause__

    def check_phase(self) -> None:
        """Reject an unknown phase, stored by another release of the class."""
        if self.phase not in self._table.steps:
            raise self._wrong_phase(
                f"the {self._kind} is in phase {self.phase!r}, which its class does not know",
                remedy="declare it with a following phase, or begin another session",
            )

    async def check_step(self, label: str, to: str) -> None:
        """Reject a step to a phase that may not follow this one."""
        with showing(self._session.in_call.shows_as):
            self._table.check(to)
        self.check_phase()
        if not self._table.allows(self.phase, to):
            raise await self.refusal(label, f"{label!r} leads to {to!r}")

    async def refusal(self, tool: str, why: str) -> WrongPhase:
        """The error for a step out of order. It is counted and reported as an event."""
        phase = self.phase
        await self._context.reporter.refused(self._session.handle, tool, phase)
        return self._wrong_phase(
            f"the {self._kind} is in phase {phase!r}: {why}", remedy=self._context.needs.next_step(phase, tool)
        )

    def _wrong_phase(self, what: str, remedy: str) -> WrongPhase:
        return self.shown(WrongPhase(what, phase=self.phase, id=self._session.handle, remedy=remedy))

    def shown(self, error: E) -> E:
        """The error, as an instance of the framework's class too."""
        return cast("E", shown(error, self._session.in_call.shows_as))
