"""All helpers of one kind: found or made by (session, kind), injected into tools, and guarded by what tools need.

It owns the needs of tools, the words of a refusal, and the figures. It refuses a tool in the wrong phase; it never
hides one, for lists of 2026 must not vary.
"""

import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.core.events import CompanionRefused, CompanionStepped, Event, Sink
from holdfast.core.models import Record
from holdfast.core.values import JSON
from holdfast.errors import Conflict, HoldfastError, NotFound, UsageError, WrongPhase
from holdfast.state import records
from holdfast.state.companions.companion import (
    Companion,
    CompanionOptions,
    CompanionRecord,
    check_options,
    read_options,
)
from holdfast.state.companions.figures import Counting
from holdfast.state.companions.insight import Insight
from holdfast.state.frameworks.injection import Context, current_identity
from holdfast.state.frameworks.middleware import GuardMiddleware
from holdfast.state.log import KIND
from holdfast.state.scopes import RequestScope
from holdfast.state.session import Session
from holdfast.state.sessions import Sessions
from holdfast.state.tool_errors import shown
from holdfast.state.work import ENDS_SO, SCOPE, known_as
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.state.identity import Identity

log = logging.getLogger(__name__)
C = TypeVar("C", bound=Companion[Any, Any])
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Needs:
    """What a tool needs of a helper: one of these phases, and a predicate that must hold."""

    phases: tuple[str, ...] = ()
    when: Callable[[Any], object] | None = None
    say: str = ""


class _Own(Sessions[Any]):
    """The helpers' records, in the store of their sessions."""

    def __init__(self, of: Sessions[Any], kind: type[CompanionRecord], name: str) -> None:
        self._of = of
        super().__init__(kind, idle=None, max_age=of.max_age, history=of.history, name=name)

    async def opened(self) -> Store:
        return await self._of.opened()


class Companions(Generic[C]):
    """`writers = Companions(Writer, sessions)`, then `writer: Writer = Depends(writers)` in a tool."""

    def __init__(
        self,
        companion: type[C],
        sessions: Sessions[Any],
        *,
        options: CompanionOptions | None = None,
        on_event: Sink | None = None,
    ) -> None:
        if not isinstance(companion, type) or not issubclass(companion, Companion):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{companion!r:.80} is no kind of helper", remedy="derive it from holdfast.Companion")
        if not hasattr(companion, "table"):
            raise UsageError(f"{companion.__name__} is no kind of helper", remedy="give it states, options and phases")
        if sessions.is_saved:
            raise UsageError(
                f"{sessions!r} is saved by middleware after each call; steps of a companion are written at once, and "
                "would stand if the save is refused",
                remedy="install without save=True, and change the session in `async with session.edit()`",
            )
        if sessions.helpers.setdefault(companion.kind, companion) is not companion:
            raise UsageError(
                f"{sessions!r} has another kind of helper under the name {companion.kind!r}",
                remedy=f"give {companion.__name__} a kind of its own",
            )
        self.companion = companion
        self.sessions = sessions
        self.table = companion.table
        self.needs: dict[str, Needs] = {}
        self.insight = InsightScope(self)
        self._own = _Own(sessions, companion.stored_type, f"companion:{companion.kind}")
        self._options = (
            check_options(companion.options_type, options, companion.__name__) if options is not None else None
        )
        self._sink = on_event
        self.counting = Counting(companion.kind)
        self.__signature__ = sessions.__signature__
        sessions.at_end.append(self._put_down)

    def __repr__(self) -> str:
        return f"<Companions {self.companion.kind} beside {self.sessions!r}>"

    # Finding

    async def __call__(self, ctx: Context[Any, Any] | None = None, **arguments: Any) -> C:
        """The helper of the call under way. On MCPServer with its `Context`; in FastMCP without."""
        caller, also = current_identity(ctx, arguments)
        return await self.for_call(caller, also)

    async def for_call(self, caller: "Identity", also: type[Exception] | None) -> C:
        session = await self.sessions.for_call(caller, also)
        try:
            companion = await self.of(session)
        except HoldfastError as error:
            raise shown(error, also) from error.__cause__
        return companion

    async def of(self, session: Session[Any], options: CompanionOptions | Mapping[str, Any] | None = None) -> C:
        """The session's helper of this kind; made if there is none. Its options stay: others later are a `Conflict`."""
        kind, owner = self.companion.options_type, self.companion.__name__
        if not session.is_of(self.sessions):
            raise UsageError(f"that session is none of {self.sessions!r}", remedy="use the Sessions that it came from")
        wanted = check_options(kind, options, owner) if options is not None else None
        id = f"{session.handle}.{self.companion.kind}"
        try:
            own = await self._own.find(id, session.principal)
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
                session.shows_as,
            )
        own.show_errors_as(session.shows_as)
        own.just_read()
        return self.companion(self, own)

    async def _make(self, session: Session[Any], id: str, options: dict[str, Any] | None) -> Session[Any]:
        if options is None:
            options = check_options(self.companion.options_type, None, self.companion.__name__)
        store = await self.sessions.opened()
        owner, _ = await self.sessions.load(session.handle, session.principal)  # refused if it has ended
        stored = self.companion.stored_type(options=options, entered=time.time())
        data: dict[str, Any] = {"t": self._own.name, "v": stored.version, "state": stored.to_data()}
        data["of"] = session.handle
        record = Record(KIND, id, session.principal, cast("JSON", data), max_age=self.sessions.max_age)
        await records.add_companion(store, owner, self.companion.kind)
        with suppress(Conflict):  # another call was faster: that one's counts
            await store.commit(record, expect=0)
        try:
            await self.sessions.load(session.handle, session.principal)
        except HoldfastError:  # it ended meanwhile, and its helpers with it
            await records.end_companions(store, session.handle)
            await store.end(KIND, id)
            raise
        return await self._own.find(id, session.principal)

    # What tools need

    def requires(
        self, *phases: str, when: Callable[[C], object] | None = None, say: str = "", tool: str | None = None
    ) -> Callable[[F], F]:
        """Below a tool's decorator: the helper must be in one of these phases, and `when(helper)` must hold."""
        needs = self._checked(Needs(phases, when, say))

        def guard(function: F) -> F:
            name = tool or function.__name__
            self.needs[name] = needs

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                companion = self._given((*args, *kwargs.values()))
                if companion is None:
                    raise UsageError(
                        f"the tool {name!r} needs a {self.companion.kind} and is given none",
                        remedy="add a parameter for it: Depends(companions) or Annotated[…, Resolve(companions)]",
                    )
                await self.check(companion, name)
                result = function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return cast("F", call)

        return guard

    def _given(self, values: tuple[object, ...]) -> C | None:
        for value in values:
            if isinstance(value, Companion) and cast("Companion[Any, Any]", value).is_of(self):
                return cast("C", value)
        return None

    def middleware(self, needs: Mapping[str, Needs]) -> GuardMiddleware:
        """The same by the names of tools, for either framework: `middleware=[writers.middleware({"critique": …})]`."""
        self.needs.update({tool: self._checked(each) for tool, each in needs.items()})
        return GuardMiddleware(self.guard)

    def _checked(self, needs: Needs) -> Needs:
        self.table.check(*needs.phases)
        if not needs.phases and needs.when is None:
            raise UsageError("a tool that needs nothing needs no guard", remedy="name phases, or a predicate")
        return needs

    async def guard(self, tool: str, caller: "Identity", also: type[Exception]) -> None:
        """Refuse a call that its tool's needs forbid."""
        if tool in self.needs:
            await self.check(await self.for_call(caller, also), tool)

    async def check(self, companion: C, tool: str) -> None:
        needs = self.needs[tool]
        self.check_phase(companion)
        if needs.phases and companion.phase not in needs.phases:
            wanted = " or ".join(repr(phase) for phase in needs.phases)
            raise await self.refusal(companion, tool, needs.say.rstrip(".") or f"{tool!r} needs {wanted}")
        if needs.when is not None:
            try:
                holds = needs.when(companion)
                if inspect.isawaitable(holds):
                    holds = await cast("Awaitable[object]", holds)
            except (IndexError, KeyError, TypeError, ValueError):
                holds = False  # nothing is there yet that it could look at
            if not holds:
                raise await self.refusal(
                    companion, tool, needs.say.rstrip(".") or f"what {tool!r} needs is not there yet"
                )

    def check_phase(self, companion: C) -> None:
        """A phase of another release of the class is nothing to decide by."""
        if companion.phase not in self.table.steps:
            raise companion.refuse(
                f"the {self.companion.kind} is in phase {companion.phase!r}, which its class does not know",
                remedy="declare it with a way out, or begin another session",
            )

    async def refusal(self, companion: C, tool: str, why: str) -> WrongPhase:
        """The error for a step out of order; counted, and told as an event."""
        phase = companion.phase
        self.counting.refused(phase)
        self._tell(CompanionRefused(time.time(), self.companion.kind, companion.handle, tool, phase))
        await self._put_down_if_due()
        return companion.refuse(
            f"the {self.companion.kind} is in phase {phase!r}: {why}", remedy=self.next_step(phase, tool)
        )

    def next_step(self, phase: str, refused: str | None = None) -> str:
        """What can be called in a phase."""
        ready = [tool for tool, needs in self.needs.items() if phase in needs.phases and tool != refused]
        if ready:
            return f"call {known_as(*ready)} next {ENDS_SO}"
        free = [tool for tool, needs in self.needs.items() if not needs.phases and tool != refused]
        if free:
            return f"call {known_as(*free)} next {ENDS_SO}"
        following = self.table.steps[phase]
        return f"next comes {' or '.join(repr(each) for each in following)}" if following else "its work is done"

    # Figures

    async def stepped(
        self, companion: C, label: str, before: CompanionRecord, after: CompanionRecord, seconds: float | None
    ) -> None:
        """A step was written."""
        newly = after.converged and not before.converged
        iterations = max(0, after.counts.get("total", 0) - before.counts.get("total", 0))  # an undo takes none back
        self.counting.stepped(before.phase, iterations, newly, seconds)
        kind, iteration = self.companion.kind, after.counts.get("iteration", 0)
        self._tell(
            CompanionStepped(
                time.time(), kind, companion.handle, label, before.phase, after.phase, iteration, seconds, newly
            )
        )
        await self._put_down_if_due()

    def _tell(self, event: Event) -> None:
        """What listens is not the step's: its errors are logged."""
        if self._sink is not None:
            try:
                self._sink(event)
            except Exception:
                log.exception("%r: on_event raised", self)

    async def _put_down_if_due(self) -> None:
        if self.counting.due:
            await self._put_down()

    async def _put_down(self) -> None:
        await self.counting.put_down(await self.sessions.opened())


class InsightScope(RequestScope[Insight]):
    """What is known of the helper's work in this request: `Depends(writers.insight)`, or `writers.insight.get()`."""

    def __init__(self, companions: Companions[Any]) -> None:
        super().__init__(self._unknown)
        self._companions = companions
        self.__signature__ = companions.sessions.__signature__

    def _unknown(self) -> Insight:
        raise UsageError(
            f"no {self._companions.companion.kind} was taken in this request",
            remedy="inject the helper, or `Depends(companions.insight)`",
        )

    def offer(self, found: Insight) -> None:
        """For this request, if there is one that middleware stands around."""
        if SCOPE.get() is not None:
            self.set(found)

    async def __call__(self, ctx: Context[Any, Any] | None = None, **arguments: Any) -> Insight:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return await (await self._companions(ctx, **arguments)).insight()
