"""A companion: an object that stays with a session, with options given once, typed state, phases and a log.

It is one record beside its session's. A step that its phases forbid, or that falls into another caller's long turn, is
refused and leaves it unchanged.
"""

import inspect
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin

from holdfast.core.models import Handle, Record
from holdfast.core.phases import PhaseTable
from holdfast.core.values import JSON, members
from holdfast.errors import Busy, Conflict, HoldfastError, UsageError, WrongPhase
from holdfast.state.calls.call_state import write_beside
from holdfast.state.companions import genealogy
from holdfast.state.companions.insight import COUNTED, Convergence, Insight, default_judge, insight
from holdfast.state.companions.needs import ToolNeeds
from holdfast.state.companions.record import CompanionOptions, CompanionRecord, read_options, record_type
from holdfast.state.companions.reporter import CompanionReporter
from holdfast.state.lease import long_turn
from holdfast.state.log import HistoryEntry
from holdfast.state.model import SessionState
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND, UNDO
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import showing, shown

S = TypeVar("S", bound=SessionState)
O = TypeVar("O", bound="CompanionOptions")  # noqa: E741
RECENT = 100  # entries that count, which insight looks at
LOOKED = 2_000  # entries of any kind that it goes through to find them


class Turn(Generic[S]):
    """One step under way: change `state`, record the result, add notes. All of it is one write."""

    def __init__(self, state: S, knows: Insight) -> None:
        self.state = state
        self.insight = knows
        self.notes: list[tuple[str, JSON]] = []
        self.made: JSON = None

    def record(self, made: JSON) -> None:
        """The result of this step: the text of a draft, the points of a critique."""
        self.made = made

    def note(self, label: str, data: JSON = None) -> None:
        """Another entry of the log."""
        self.notes.append((label, data))

    def message(self, role: str, content: JSON) -> None:
        """A message of the conversation."""
        self.notes.append(("message", {"role": role, "content": content}))


@dataclass(frozen=True, slots=True)
class CompanionContext:
    """What all companions of one kind share."""

    sessions: SessionTable[Any]
    needs: ToolNeeds
    reporter: CompanionReporter
    offer: Callable[[Insight], None]


class Companion(Generic[S, O]):
    """`class Writer(Companion[Draft, Style]): phases = {"empty": ["drafted"], …}`."""

    kind: ClassVar[str]
    phases: ClassVar[Mapping[str, Sequence[str]]]
    iterates: ClassVar[tuple[str, ...]] = ("revision",)
    begins: ClassVar[tuple[str, ...]] = ("query",)
    table: ClassVar[PhaseTable]
    state_type: ClassVar[type[SessionState]]
    options_type: ClassVar[type[CompanionOptions]]
    stored_type: ClassVar[type[CompanionRecord]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        given = next(
            (get_args(base) for base in vars(cls).get("__orig_bases__", ()) if get_origin(base) is Companion), None
        )
        if given is None and hasattr(cls, "state_type"):  # derived from a companion: another kind with the same state
            given = cls.state_type, cls.options_type
        if given is None:
            raise UsageError(
                f"{cls.__name__} does not say what it keeps", remedy="write class Writer(Companion[State, Options])"
            )
        state, options = given
        for kind, base, what in ((state, SessionState, "state"), (options, CompanionOptions, "options")):
            if not isinstance(kind, type) or not issubclass(kind, base):
                raise UsageError(
                    f"{cls.__name__}: its {what} must be a class derived from {base.__name__}, not {kind!r:.60}"
                )
        cls.kind = vars(cls).get("kind", cls.__name__.lower())
        if inspect.iscoroutinefunction(cls.converged):
            raise UsageError(
                f"{cls.__name__}.converged is async", remedy="judge by the signs; ask a model in a tool, and record it"
            )
        if not cls.kind.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"{cls.__name__}: kind {cls.kind!r:.60} is not a plain name")
        cls.table = PhaseTable(cls.__name__, getattr(cls, "phases", {}))
        cls.state_type, cls.options_type = state, options
        cls.stored_type = record_type(cls.__name__, state, cls.table.start)

    def __init__(self, context: CompanionContext, session: Session[Any]) -> None:
        self._context = context
        self._session = session
        self._turn: Turn[S] | None = None
        self._known: tuple[int, Insight] | None = None
        self._entries: tuple[int, list[HistoryEntry]] | None = None
        self.log = session.log

    def belongs_to(self, context: CompanionContext) -> bool:
        """Does it belong to these companions?"""
        return self._context is context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.phase} of {self.handle[:8]}…>"

    def converged(self, signs: Convergence) -> bool:
        """Whether the work is done. Override it with a rule of your own, which must accept an empty log."""
        return default_judge(signs)

    # What it is

    @property
    def _stored(self) -> CompanionRecord:
        return cast("CompanionRecord", self._session.state)

    @property
    def handle(self) -> Handle:
        """The name of its record."""
        return self._session.handle

    @property
    def rev(self) -> int:
        """The revision that was read; each step makes the next."""
        return self._session.rev

    @property
    def phase(self) -> str:
        """The phase that it is in."""
        return self._stored.phase

    @property
    def state(self) -> S:
        """Its state as it was read; a step changes it."""
        return cast("S", self._stored.body)

    @property
    def options(self) -> O:
        """What it was begun with; options never change."""
        return cast("O", read_options(self.options_type, self._stored.options))

    async def read(self) -> S:
        """The state as it is now."""
        await self._session.read()
        return self.state

    # Steps

    @asynccontextmanager
    async def step(self, label: str, *, to: str | None = None) -> AsyncGenerator[Turn[S]]:
        """One step and, with `to`, a change of phase: written whole at the end of the block, or not at all."""
        self._write_beside()
        with showing(self._session.in_call.shows_as):
            await self._session.record.current()
        await self._is_free()
        await self._use_session()
        base, turn = self._session.record.base, await self._begin(label, to)
        try:
            yield turn
        finally:
            self._turn = None
        await self._is_free()
        await self._finish(turn, label, to, base, None)

    @asynccontextmanager
    async def turn(self, label: str, *, to: str | None = None, ttl: float = 120.0) -> AsyncGenerator[Turn[S]]:
        """A long step: other callers' steps are refused (`Busy`) until it ends. If the process dies in it, the step is
        given up after `ttl` seconds and nothing of it is written."""
        self._write_beside()
        await self._is_free()
        await self._use_session()
        async with long_turn(self._session.in_call, ttl, self._use_session) as fence:
            base, turn = self._session.record.base, await self._begin(label, to)
            try:
                yield turn
            finally:
                self._turn = None
            await self._finish(turn, label, to, base, fence)

    def _write_beside(self) -> None:
        with showing(self._session.in_call.shows_as):
            write_beside(f"a step of the {self.kind}")

    async def _is_free(self) -> None:
        """`Busy` while another caller has a long turn."""
        store = await self._context.sessions.store.open()
        holder = await store.holder(KIND, self.handle)
        if holder is not None:
            raise self._shown(
                Busy(
                    f"a long turn of the {self.kind} is under way; it is in phase {self.phase!r}",
                    id=self.handle,
                    remedy="wait for it, then look at the phase again",
                )
            )

    async def _use_session(self) -> None:
        """A step counts as use of the session, and is refused once the session has ended."""
        try:
            await (await self._context.sessions.store.open()).touch(KIND, self.handle.rpartition(".")[0])
        except HoldfastError as error:
            error.remedy = self._context.sessions.begin_hint
            raise self._shown(error) from error.__cause__

    async def _begin(self, label: str, to: str | None) -> Turn[S]:
        if to is not None:
            with showing(self._session.in_call.shows_as):
                self.table.check(to)
            self.check_phase()
            if not self.table.allows(self.phase, to):
                raise await self.refusal(label, f"{label!r} leads to {to!r}")
        self._turn = Turn(self.state, await self.insight())
        return self._turn

    async def _finish(
        self, turn: Turn[S], label: str, to: str | None, base: tuple[Record, Any], fence: int | None
    ) -> None:
        now, before = time.time(), cast("CompanionRecord", base[1])
        after = before.model_copy(deep=True)
        after.body = turn.state
        labels = [label, *(name for name, _ in turn.notes)]
        for each in labels:
            if each in self.begins:
                after.counts = {**after.counts, "iteration": 0}
            if each in self.iterates:
                after.counts = {name: after.counts.get(name, 0) + 1 for name in ("iteration", "total")}
        left = to is not None and to != before.phase
        if left:
            spent = max(0.0, now - before.entered)
            after.seconds = {**after.seconds, before.phase: after.seconds.get(before.phase, 0.0) + spent}
            after.phase, after.entered = cast("str", to), now
        new = [HistoryEntry(0, base[0].rev + 1, now, each, data) for each, data in ((label, turn.made), *turn.notes)]
        judged = self._judged(after, [*await self._recent(), *new])
        after.converged = judged.convergence.reached
        try:
            with showing(self._session.in_call.shows_as):
                await self._session.record.commit(
                    after, label, base=base, fence=fence, notes=turn.notes, data=turn.made
                )
        except Conflict as error:
            await self._session.read()
            error.remedy = (
                f"another step was faster: the {self.kind} is in phase {self.phase!r} now; "
                f"{self._context.needs.next_step(self.phase)}"
            )
            raise
        self._offer(judged)
        await self._context.reporter.stepped(self.handle, label, before, after, now - before.entered if left else None)

    async def note(self, label: str, data: JSON = None) -> None:
        """An entry of the log that changes nothing else. Labels that count iterations belong into a step."""
        if label in (*self.iterates, *self.begins):
            raise UsageError(f"{label!r} counts iterations", remedy=f"write `async with companion.step({label!r})`")
        if self._turn is not None:  # goes with the step under way
            self._turn.note(label, data)
            return
        self._write_beside()
        await self._is_free()
        await self._use_session()
        await self._session.log.add(label, data)

    # What it knows

    async def insight(self) -> Insight:
        """Iterations and convergence, from the log; also offered as the request's `companions.insight`."""
        if self._known is None or self._known[0] != self.rev:
            self._offer(self._judged(self._stored, await self._recent()))
        return cast("tuple[int, Insight]", self._known)[1]

    def _offer(self, found: Insight) -> None:
        self._known = self.rev, found
        self._context.offer(found)

    def _judged(self, stored: CompanionRecord, entries: Sequence[HistoryEntry]) -> Insight:
        """By what was done since the last query."""
        begun = max((entry.rev for entry in entries if entry.label in self.begins), default=0)
        try:
            since = [entry for entry in entries if entry.rev >= begun]
            return insight(stored.phase, stored.counts, since, self.converged)
        except UsageError as error:
            raise self._shown(error) from error.__cause__

    async def _recent(self) -> list[HistoryEntry]:
        """The newest entries that count, without what was undone; read once for each revision."""
        if self._entries is not None and self._entries[0] == self.rev:
            return self._entries[1]
        found: list[HistoryEntry] = []
        looked = 0
        async with aclosing(self.log.newest_first()) as entries:
            async for entry in entries:
                looked += 1
                if entry.undone_to is not None or entry.label in (*COUNTED, *self.begins):
                    found.append(entry)
                if len(found) == RECENT or looked == LOOKED:
                    break
        self._entries = self.rev, genealogy.lineage(found[::-1])
        return self._entries[1]

    async def history(self, last: int = 200) -> list[dict[str, JSON]]:
        """The messages of the conversation, oldest first."""
        return [members(entry.data) for entry in await self.log.last(last, label="message")]

    async def transcript(self) -> str:
        """The whole log as a person reads it: messages by role, other entries by label."""
        return genealogy.transcript([entry async for entry in self.log])

    async def json_lines(self) -> AsyncGenerator[str]:
        """The whole log for a program, a line for each entry."""
        async for entry in self.log:
            yield json.dumps(asdict(entry), ensure_ascii=False)

    async def tree(self) -> genealogy.Node:
        """Every step as a tree: undos are branches, and so are the companions that were forked from it."""
        store = await self._context.sessions.store.open()
        return await genealogy.tree(store, self.handle, self._session.principal)

    async def undo(self) -> S:
        """Go back one step, phase and counts included; that is a step, too, so another undo takes it back."""
        self._write_beside()
        await self._is_free()
        await self._use_session()
        now, before = time.time(), self._stored

        def enter(stored: Any) -> None:
            stored.entered = now

        await self._session.undo(enter)
        self._known = None
        left = self.phase != before.phase
        await self._context.reporter.stepped(
            self.handle, UNDO, before, self._stored, now - before.entered if left else None
        )
        return self.state

    # Refusals

    def check_phase(self) -> None:
        """Refuse a phase of another release of the class: there is nothing to decide by."""
        if self.phase not in self.table.steps:
            raise self._wrong_phase(
                f"the {self.kind} is in phase {self.phase!r}, which its class does not know",
                remedy="declare it with a way out, or begin another session",
            )

    async def refusal(self, tool: str, why: str) -> WrongPhase:
        """The error for a step out of order; counted, and reported as an event."""
        phase = self.phase
        await self._context.reporter.refused(self.handle, tool, phase)
        return self._wrong_phase(
            f"the {self.kind} is in phase {phase!r}: {why}", remedy=self._context.needs.next_step(phase, tool)
        )

    def _wrong_phase(self, what: str, remedy: str) -> WrongPhase:
        return self._shown(WrongPhase(what, phase=self.phase, id=self.handle, remedy=remedy))

    def _shown(self, error: Any) -> Any:
        return shown(error, self._session.in_call.shows_as)
