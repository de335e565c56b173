"""All companions of one kind: found or created by (session, kind), injected into tools, and guarded by tools' needs.

A tool in the wrong phase is rejected but stays listed, because lists of tools must not vary in 2026.
"""

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import ANONYMOUS, Principal, Record
from holdfast.core.values import JSON
from holdfast.errors import Conflict, HoldfastError, NotFound, UsageError
from holdfast.events import Sink
from holdfast.state.calls.request import SCOPE
from holdfast.state.companions import genealogy
from holdfast.state.companions.companion import Companion
from holdfast.state.companions.gate import CompanionContext
from holdfast.state.companions.insight import Insight
from holdfast.state.companions.needs import Needs, ToolNeeds
from holdfast.state.companions.record import CompanionOptions, CompanionRecord, check_options, read_options
from holdfast.state.companions.reporter import CompanionReporter
from holdfast.state.companions.tools import fill
from holdfast.state.frameworks.injection import Context, current_identity
from holdfast.state.identity import Identity
from holdfast.state.scopes import RequestScope
from holdfast.state.session import Session
from holdfast.state.sessions import Sessions
from holdfast.state.storage import ending, records
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import showing, shown

C = TypeVar("C", bound=Companion[Any, Any])
F = TypeVar("F", bound=Callable[..., Any])


class Companions(Generic[C]):
    """All companions of one class: `writers = Companions(Writer, sessions)`, then `writer: Writer = Depends(writers)`.

    `companion` is their class, `sessions` are the sessions that they belong to. `options` is the default for new
    companions; `on_event` is called with `CompanionStepped` and `CompanionRefused`.
    """

    def __init__(
        self,
        companion: type[C],
        sessions: Sessions[Any],
        *,
        options: CompanionOptions | None = None,
        on_event: Sink | None = None,
    ) -> None:
        if not isinstance(companion, type) or not issubclass(companion, Companion):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{companion!r:.80} is not a companion class", remedy="derive it from holdfast.Companion")
        if not hasattr(companion, "table"):
            raise UsageError(
                f"{companion.__name__} declares no state", remedy="write class Writer(Companion[State, Options])"
            )
        self.companion = companion
        self.sessions = sessions
        self.reporter = CompanionReporter(companion.kind, sessions.table, on_event)
        sessions.add_companions(companion.kind, companion, self.reporter.flush)
        self.insight = InsightScope(self)
        self._needs = ToolNeeds(companion.table)
        self._context = CompanionContext(sessions.table, self._needs, self.reporter, self.insight.offer)
        of = sessions.table
        self._own: SessionTable[Any] = SessionTable(
            companion.stored_type,
            f"companion:{companion.kind}",
            of.store,
            idle=None,
            max_age=of.max_age,
            history=of.history,
        )
        self._options = (
            check_options(companion.options_type, options, companion.__name__) if options is not None else None
        )
        self.__signature__ = sessions.__signature__

    def __repr__(self) -> str:
        return f"<Companions {self.companion.kind} beside {self.sessions!r}>"

    # Finding

    async def __call__(self, ctx: Context[Any, Any] | None = None, **arguments: Any) -> C:
        """The companion of the current call, with `ctx` on MCPServer, without it in FastMCP.
        `arguments` name the session where those of the call do not.
        """
        caller, also = current_identity(ctx, arguments)
        return await self.for_call(caller, also)

    async def for_call(self, caller: Identity, also: type[Exception] | None) -> C:
        """The companion of the session that `caller` names; errors are also raised as the framework's class `also`."""
        session = await self.sessions.for_call(caller, also)
        with showing(also):
            return await self.for_session(session)

    async def for_session(
        self, session: Session[Any], options: CompanionOptions | Mapping[str, Any] | None = None
    ) -> C:
        """The companion of a `session`, created if there is none.
        Its options never change: other `options` raise `Conflict`.
        """
        kind, owner = self.companion.options_type, self.companion.__name__
        if session.record.table is not self.sessions.table:
            raise UsageError(
                f"that session does not belong to {self.sessions!r}", remedy="use the Sessions that it came from"
            )
        wanted = check_options(kind, options, owner) if options is not None else None
        id = f"{session.handle}.{self.companion.kind}"
        try:
            own = await self._find(id, session)
        except NotFound:
            own = await self._make(session, id, wanted if wanted is not None else self._options)
        kept = cast("CompanionRecord", own.state).options
        if wanted is not None and read_options(kind, wanted) != read_options(kind, kept):
            raise shown(
                Conflict(
                    f"the {self.companion.kind} of this session began with other options: {kept}",
                    id=id,
                    remedy="leave the options out, or begin another session",
                ),
                session.in_call.shows_as,
            )
        own.record.just_read()
        return self.companion(self._context, own)

    async def tree(self, handle: str, principal: Principal = ANONYMOUS) -> genealogy.Node:
        """The steps of the companion of the session `handle` as a tree, with undos and forks; also of a session that
        its `principal` has ended, for 30 days."""
        return await genealogy.tree(await self.sessions.open(), f"{handle}.{self.companion.kind}", principal)

    async def _find(self, id: str, session: Session[Any]) -> Session[Any]:
        found = await self._own.load(id, session.principal)
        return Session(SessionRecord(self._own, *found), also=session.in_call.shows_as)

    async def _make(self, session: Session[Any], id: str, options: dict[str, Any] | None) -> Session[Any]:
        if options is None:
            options = check_options(self.companion.options_type, None, self.companion.__name__)
        store = await self.sessions.table.store.open_real()  # a step in the same call is a revision of its own
        owner, _ = await self.sessions.table.load(session.handle, session.principal)  # refused if it has ended
        stored = self.companion.stored_type(options=options, entered=time.time())
        data: dict[str, Any] = {"t": self._own.name, **stored.to_record(stored.to_data())}
        data["of"] = session.handle
        record = Record(KIND, id, session.principal, cast("JSON", data), max_age=self._own.max_age)
        await records.add_companion(store, owner, self.companion.kind)
        with suppress(Conflict):  # another call created its companion first, which is used
            await store.commit(record, expect=0)
        try:
            await self.sessions.table.load(session.handle, session.principal)
        except HoldfastError:  # it ended meanwhile, and its companions with it
            await ending.end_companions(store, session.handle)
            await store.end(KIND, id)
            raise
        return await self._find(id, session)

    # In tools

    def writes(self, function: F) -> F:
        """A decorator, below a tool's: fill the parameter of `function` that is annotated with the companion's class.
        The call takes the turn of its session, and steps are written when it ends."""
        return fill(function, self, None)

    def reads(self, function: F) -> F:
        """Like `writes`, for a `function` that makes no step: it waits for no other call. In all of them a parameter
        that is annotated with `Insight` gets the companion's."""
        return fill(function, self, None, writes=False)

    def step(self, label: str, *, to: str | None = None) -> Callable[[F], F]:
        """Like `writes`, for a tool that is one step as a whole, with the `label` and `to` of `Companion.step`. A
        parameter that is annotated with the class of its state gets the state to change, one with
        `holdfast.state.Step` the step; what the tool returns is recorded, unless it records something itself."""
        return lambda function: fill(function, self, (label, to))

    # What tools need

    def requires(
        self, *phases: str, when: Callable[[C], object] | None = None, say: str = "", tool: str | None = None
    ) -> Callable[[F], F]:
        """A decorator, below a tool's:
        the companion must be in one of these `phases`, and `when(companion)` must be true. `say` is the text of a
        refusal, `tool` the tool's name if it differs from the function's.
        """
        needs = self._needs.checked(Needs(phases, when, say))

        def guard(function: F) -> F:
            name = tool or function.__name__
            self._needs.add(name, needs)

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                companion = self._given((*args, *kwargs.values()))
                if companion is None:
                    raise UsageError(
                        f"the tool {name!r} needs a {self.companion.kind} and has no parameter for it",
                        remedy="add a parameter for it: Depends(companions) or Annotated[…, Resolve(companions)]",
                    )
                await self.check(companion, name)
                result = function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return cast("F", call)

        return guard

    def _given(self, values: tuple[object, ...]) -> C | None:
        for value in values:
            if isinstance(value, Companion) and cast("Companion[Any, Any]", value).belongs_to(self._context):
                return cast("C", value)
        return None

    async def check(self, companion: C, tool: str) -> None:
        """Reject a call of `tool` if `companion` does not meet its needs."""
        needs = self._needs.get(tool)
        if needs is None:
            return
        companion.gate.check_phase()
        if needs.phases and companion.phase not in needs.phases:
            wanted = " or ".join(repr(phase) for phase in needs.phases)
            raise await companion.gate.refusal(tool, needs.say.rstrip(".") or f"{tool!r} needs {wanted}")
        if needs.when is not None:
            try:
                holds = needs.when(companion)
                if inspect.isawaitable(holds):
                    holds = await cast("Awaitable[object]", holds)
            except (IndexError, KeyError, TypeError, ValueError):
                holds = False  # the predicate had no data to look at yet
            if not holds:
                raise await companion.gate.refusal(
                    tool, needs.say.rstrip(".") or f"what {tool!r} needs is not there yet"
                )


class InsightScope(RequestScope[Insight]):
    """The insight into the companion of this request: `Depends(writers.insight)`, or `writers.insight.get()`."""

    def __init__(self, companions: Companions[Any]) -> None:
        super().__init__(self._unknown)
        self._companions = companions
        self.__signature__ = companions.sessions.__signature__

    def _unknown(self) -> Insight:
        raise UsageError(
            f"no {self._companions.companion.kind} was used in this request",
            remedy="inject the companion, or `Depends(companions.insight)`",
        )

    def offer(self, found: Insight) -> None:
        """Store it for this request, if middleware has begun one."""
        if SCOPE.get() is not None:
            self.set(found)

    async def __call__(self, ctx: Context[Any, Any] | None = None, **arguments: Any) -> Insight:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return await (await self._companions(ctx, **arguments)).insight()
