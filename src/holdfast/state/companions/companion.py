"""A companion: an object that belongs to a session, with fixed options, typed state, phases and a log.

It is one record beside its session's. A step that its phases do not allow, or that is made during another caller's long
turn, is rejected and changes nothing.
"""

import inspect
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, get_args, get_origin

from holdfast.core.models import Handle, LogEntry, Record
from holdfast.core.phases import PhaseTable
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, UsageError
from holdfast.state.calls.request import current_transaction
from holdfast.state.companions import genealogy
from holdfast.state.companions.gate import CompanionContext, StepGate
from holdfast.state.companions.insight import Convergence, Insight, default_judge
from holdfast.state.companions.progress import Progress
from holdfast.state.companions.record import CompanionOptions, CompanionRecord, read_options, record_type
from holdfast.state.lease import long_turn
from holdfast.state.log import HistoryEntry
from holdfast.state.model import SessionState
from holdfast.state.session import Session
from holdfast.state.storage import history, records
from holdfast.state.storage.entries import KIND, REDO, RESTORE, UNDO
from holdfast.state.storage.history import Move
from holdfast.state.storage.session_record import SessionRecord

S = TypeVar("S", bound=SessionState)
O = TypeVar("O", bound="CompanionOptions")  # noqa: E741


class Step(Generic[S]):
    """A step in progress: change `state`, record the result, add notes. All of it is one write.

    `insight` is what was known when it began.
    """

    def __init__(self, state: S, insight: Insight) -> None:
        self.state = state
        self.insight = insight
        self.notes: list[tuple[str, JSON]] = []
        self.made: JSON = None

    def record(self, result: JSON) -> None:
        """Set the `result` of this step: the text of a draft, the points of a critique."""
        self.made = result

    def note(self, label: str, data: JSON = None) -> None:
        """Add another entry to the log, with this `label` and `data`."""
        self.notes.append((label, data))

    def message(self, role: str, content: JSON) -> None:
        """Add a message of the conversation, with its `role` and `content`."""
        self.notes.append(("message", {"role": role, "content": content}))


class Companion(Generic[S, O]):
    """Base class of stateful objects beside a session: `class Writer(Companion[Draft, Style]): phases = {"empty":
    ["drafted"], …}`.

    `Companions` creates them, with the `session` of their own record and the `context` of their kind.
    """

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
                f"{cls.__name__} does not declare its state and options",
                remedy="write class Writer(Companion[State, Options])",
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
                f"{cls.__name__}.converged is async",
                remedy="decide by the signs; to ask a model, do that in a tool and record the answer",
            )
        if not cls.kind.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"{cls.__name__}: kind {cls.kind!r:.60} is not a plain name")
        cls.table = PhaseTable(cls.__name__, getattr(cls, "phases", {}))
        cls.state_type, cls.options_type = state, options
        cls.stored_type = record_type(cls.__name__, state, cls.table.start)

    def __init__(self, context: CompanionContext, session: Session[Any]) -> None:
        self._context = context
        self._session = session
        self.gate = StepGate(session, context, self.kind, self.table)
        """The checks before a step; for `Companions`."""
        self._progress = Progress(session, context, self.begins, self.converged)
        self._under_way: Step[S] | None = None
        self.log = session.log

    def belongs_to(self, context: CompanionContext) -> bool:
        """Whether it was created by the `Companions` with this context."""
        return self._context is context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.phase} of {self.handle[:8]}…>"

    def converged(self, signs: Convergence) -> bool:
        """Whether the work is done, by its signs. Override it with your own rule, which must accept an empty log."""
        return default_judge(signs)

    def only_reads(self) -> None:
        """Refuse every step from here on: for a tool that only reads."""
        self._session.in_call.only_reads()

    # What it is

    @property
    def _stored(self) -> CompanionRecord:
        return cast("CompanionRecord", self._session.state)

    @property
    def handle(self) -> Handle:
        """The id of its record."""
        return self._session.handle

    @property
    def session_handle(self) -> Handle:
        """The handle of the session that it stays with."""
        return Handle(self.handle.rpartition(".")[0])

    @property
    def rev(self) -> int:
        """The revision that was read; each step creates the next."""
        return self._session.rev

    @property
    def phase(self) -> str:
        """Its phase, as it was read."""
        return self._stored.phase

    @property
    def state(self) -> S:
        """Its state as it was read; a step changes it."""
        return cast("S", self._stored.body)

    @property
    def options(self) -> O:
        """The options it was created with; they never change."""
        return cast("O", read_options(self.options_type, self._stored.options))

    async def read(self) -> S:
        """Read the current state."""
        await self._session.read()
        return self.state

    # Steps

    @asynccontextmanager
    async def step(self, label: str, *, to: str | None = None) -> AsyncGenerator[Step[S]]:
        """One step and, with `to`, a change of phase: written whole at the end of the block, or not at all. `label`
        names it in the log."""
        with self._session.in_call.showing():
            await self._session.record.current()
        await self.gate.check_free()
        await self.gate.use_session()
        async with self._step_of(label, to, None) as step:
            yield step
            await self.gate.check_free()

    @asynccontextmanager
    async def lease(self, label: str, *, to: str | None = None, ttl: float = 120.0) -> AsyncGenerator[Step[S]]:
        """A long step, with the `label` and `to` of `step`: other callers' steps are refused (`Busy`) until it ends. If
        the process dies in it, the step is given up after `ttl` seconds and nothing of it is written."""
        await self.gate.check_free()
        await self.gate.use_session()
        transaction, table = current_transaction(), self._context.sessions
        if transaction is not None and transaction.covers(table.store.place):
            with self._session.in_call.showing():
                await transaction.take(table.store, [(KIND, self.handle)], wait=0.0)
                await self._session.record.refresh()
            async with self._step_of(label, to, None) as step:
                yield step
            return
        async with (
            long_turn(self._session.in_call, ttl, self.gate.use_session) as fence,
            self._step_of(label, to, fence) as step,
        ):
            yield step

    @asynccontextmanager
    async def _step_of(self, label: str, to: str | None, fence: int | None) -> AsyncGenerator[Step[S]]:
        """Read the companion, yield a step, and write it after the block."""
        base = self._session.record.base
        if to is not None:
            await self.gate.check_step(label, to)
        step = self._under_way = Step(self.state, await self.insight())
        try:
            yield step
        finally:
            self._under_way = None
        await self._write(step, label, to, base, fence)

    async def _write(
        self, step: Step[S], label: str, to: str | None, base: tuple[Record, Any], fence: int | None
    ) -> None:
        now, before = time.time(), cast("CompanionRecord", base[1])
        steps = [(label, step.made), *step.notes]
        labels = [each for each, _ in steps]
        after = before.after_step(step.state, labels, to, now, begins=self.begins, iterates=self.iterates)
        new = [HistoryEntry(0, base[0].rev + 1, now, each, data) for each, data in steps]
        judged = await self._progress.judged(after, new)
        after.converged = judged.convergence.reached
        try:
            with self._session.in_call.showing():
                await self._session.record.commit(
                    after, label, base=base, fence=fence, notes=step.notes, data=step.made
                )
        except Conflict as error:
            await self._session.read()
            error.remedy = (
                f"another step was written first: the {self.kind} is now in phase {self.phase!r}; "
                f"{self._context.needs.next_step(self.phase)}"
            )
            raise
        self._progress.offer(judged)
        await self._report(label, before, after, now)

    async def _report(self, label: str, before: CompanionRecord, after: CompanionRecord, now: float) -> None:
        left = now - before.entered if after.phase != before.phase else None

        async def report() -> None:
            await self._context.reporter.stepped(self.handle, label, before, after, left)

        transaction = current_transaction()
        if transaction is not None and transaction.covers(self._context.sessions.store.place):
            transaction.after_commit(report)  # until then the step may be given up
        else:
            await report()

    async def note(self, label: str, data: JSON = None) -> None:
        """Add an entry of the log with this label and data, which changes nothing else.
        Labels that count iterations must be written by a step.
        """
        if label in (*self.iterates, *self.begins):
            raise UsageError(f"{label!r} counts iterations", remedy=f"write `async with companion.step({label!r})`")
        if self._under_way is not None:  # written with the step in progress
            self._under_way.note(label, data)
            return
        await self.gate.check_free()
        await self.gate.use_session()
        await self._session.log.add(label, data)

    # What it knows

    async def insight(self) -> Insight:
        """Iterations and convergence, from the log; also offered as the request's `companions.insight`."""
        return await self._progress.insight()

    async def history(self, last: int = 200) -> list[dict[str, JSON]]:
        """The `last` messages of the conversation, oldest first."""
        return [members(entry.data) for entry in await self.log.last(last, label="message")]

    async def transcript(self) -> str:
        """The whole log for people: messages by role, other entries by label."""
        return genealogy.transcript([entry async for entry in self.log])

    async def json_lines(self) -> AsyncGenerator[str]:
        """The whole log for programs, one line per entry."""
        async for entry in self.log:
            yield json.dumps(asdict(entry), ensure_ascii=False)

    async def tree(self) -> genealogy.Node:
        """Every step as a tree: undos are branches, and so are the companions that were forked from it. A fork's tree
        begins with the companion that it came from."""
        store = await self._context.sessions.store.open()
        return await genealogy.tree(store, self.handle, self._session.principal)

    async def undo(self, steps: int = 1) -> S:
        """Go back one step or so many `steps`, phase and counts included. Another undo goes on from there, and `redo`
        takes it back. Entries that were only noted are no steps."""
        return await self._move(UNDO, lambda entries, record: history.undone(entries, record, steps))

    async def redo(self, steps: int = 1) -> S:
        """Take back the last undo, or so many `steps` of it, if no step was made since."""
        return await self._move(REDO, lambda entries, record: history.redone(entries, record, steps))

    async def restore(self, rev: int) -> S:
        """Go to the revision `rev`, phase and counts included. That is a step of its own, which `undo` takes back."""
        return await self._move(RESTORE, lambda entries, record: history.restored(rev))

    async def _move(self, label: str, find: Callable[[AsyncGenerator[LogEntry, None], Record], Awaitable[Move]]) -> S:
        await self.gate.check_free()
        await self.gate.use_session()
        now, before = time.time(), self._stored

        def enter(stored: Any) -> None:
            stored.entered = now

        with self._session.in_call.showing():
            await self._session.record.move(find, enter)
        self._progress.forget()
        await self._report(label, before, self._stored, now)
        return self.state

    async def fork(self, rev: int | None = None, title: str = "") -> Self:
        """The same companion of another session, which begins as everything was when this one was at the revision
        `rev`, or now, under this `title` or its own. The session and its other companions are those of that time; all
        take their logs along."""
        own, table = self._session.record, self._context.sessions
        with self._session.in_call.showing():
            await own.refresh()
            number = own.base[0].rev if rev is None else rev
            await own.at(number)  # refused if there is no such revision
            store = await table.store.open()
            until = await records.replaced(store, own.base[0], number)
            owner = SessionRecord(table, *await table.load(self.session_handle, self._session.principal))
            seen = owner.base[0].rev if until is None else await records.rev_before(store, owner.base[0], until)
            child = await owner.fork(seen or 1, title, {self.kind: number}, until)
            found = await own.table.load(f"{child.handle}.{self.kind}", self._session.principal)
        also = self._session.in_call.shows_as
        return type(self)(self._context, Session(SessionRecord(own.table, *found), also=also))
