"""The tools with which a model begins, lists, resumes, forks and ends its sessions, on both frameworks.

Their texts say how long a session lasts and what to call next. Anonymous callers get no list of sessions.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from holdfast.core.models import ANONYMOUS
from holdfast.core.values import JSON
from holdfast.errors import Forbidden, UsageError
from holdfast.state.calls.request import current_transaction, outside_transaction
from holdfast.state.frameworks.injection import current_identity
from holdfast.state.frameworks.places import take_with_result
from holdfast.state.identity import FromArgument, Identity
from holdfast.state.registry import SessionRegistry
from holdfast.state.session import Session
from holdfast.state.tool_errors import showing_ours

VERBS = ("create", "list", "resume", "fork", "end")
LAST = 5  # steps that resuming shows


@dataclass(frozen=True, slots=True)
class LifecycleTool:
    """One lifecycle tool."""

    name: str
    description: str
    parameters: Mapping[str, tuple[Any, Any]]
    run: Callable[[Identity, dict[str, Any]], Awaitable[dict[str, Any]]]
    take_result: Callable[[Identity, dict[str, Any]], Awaitable[None]]
    """Makes a call with an idempotency key one that is executed once."""
    reads_only: bool = False
    destroys: bool = False

    def function(self, with_context: bool) -> Callable[..., Awaitable[dict[str, Any]]]:
        """A function with the tool's signature."""

        async def call(**given: Any) -> dict[str, Any]:
            caller, also = current_identity(given.pop("ctx", None), given)
            with showing_ours(also):
                if not self.reads_only:
                    await self.take_result(caller, given)
                return await self.run(caller, given)

        kinds = dict(self.parameters)
        if with_context:
            kinds["ctx"] = (Context, inspect.Parameter.empty)
        call.__name__ = call.__qualname__ = self.name
        call.__doc__ = self.description
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in kinds.items()
        ]
        call.__signature__ = inspect.Signature(parameters, return_annotation=dict[str, Any])  # pyright: ignore[reportFunctionMemberAccess]
        call.__annotations__ = {name: kind for name, (kind, _) in kinds.items()} | {"return": dict[str, Any]}
        return call

    @property
    def verb(self) -> str:
        """What it does."""
        return self.name.partition("_")[0]

    @property
    def annotations(self) -> ToolAnnotations:
        return ToolAnnotations(
            read_only_hint=self.reads_only, destructive_hint=self.destroys, idempotent_hint=self.destroys
        )


def lifecycle_tools(sessions: SessionRegistry[Any], noun: str, create: Sequence[str]) -> list[LifecycleTool]:
    """The five tools for a kind of session."""
    argument = next((place.name for place in sessions.chain.places if isinstance(place, FromArgument)), f"{noun}_id")
    lasts = lifetime(sessions.table.idle, sessions.table.max_age)
    handle = (Annotated[str, Field(description=f"The id that the {noun} got when it began")], inspect.Parameter.empty)
    fields = sessions.kind.model_fields
    unknown = [name for name in create if name not in fields]
    if unknown:
        raise UsageError(f"{sessions.kind.__name__} has no field {unknown[0]!r}", remedy=f"it has {', '.join(fields)}")
    given = {name: _parameter(fields[name]) for name in create}
    title = (Annotated[str, Field(description="A short title to find it by")], "")
    given.setdefault("title", title)

    def shows(session: Session[Any]) -> dict[str, Any]:
        about: dict[str, Any] = {argument: session.handle, "title": session.title, "rev": session.rev}
        about |= {"created": _date(session.created), "expires": _date(session.expires)}
        if session.parent is not None:
            about["forked_from"] = {argument: session.parent[0], "rev": session.parent[1]}
        return about

    async def take_result(caller: Identity, arguments: dict[str, Any]) -> None:
        transaction = current_transaction()
        if transaction is None or transaction.keyed is None or transaction.has_begun:
            return
        handle = arguments.get(argument)
        if handle is None:
            connection = caller.session_2025 if caller.session_2025 is not None else caller.local_user
            place = transaction.keyed.place_of_caller(connection)
        else:
            place = transaction.keyed.place([sessions.table.check_handle(handle)], shared=False)
        await take_with_result(transaction, sessions.table, [], place)

    async def begin(caller: Identity, arguments: dict[str, Any]) -> dict[str, Any]:
        chosen = {name: arguments[name] for name in create if arguments[name] is not None}
        try:
            state = sessions.kind.model_validate(chosen, by_name=True, by_alias=False)
        except ValidationError as error:
            raise UsageError(f"create_{noun}: {error}"[:500], remedy="give other values") from error
        label = str(arguments["title"])
        return shows(await sessions.begin(caller.principal, state, title=label))

    async def list_all(caller: Identity, arguments: dict[str, Any]) -> dict[str, Any]:
        if caller.principal == ANONYMOUS:
            raise Forbidden(
                "without authentication sessions can't be listed",
                remedy=f"use the id that was returned when the session began; {sessions.table.begin_hint}",
            )
        page = await sessions.page(caller.principal, after=arguments["after"] or None)
        listed: dict[str, Any] = {f"{noun}s": [shows(session) for session in page.sessions]}
        if page.next is not None:
            listed["next"] = page.next
            listed["note"] = f"these are not all: call this again with after={page.next!r} for the next ones"
        if page.unreadable:
            listed["unreadable"] = list(page.unreadable)
        return listed

    async def resume(caller: Identity, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await sessions.find(arguments[argument], caller.principal)
        state = await session.read()
        entries = await session.log.last(LAST)
        last: list[JSON] = [{"rev": each.rev, "label": each.label, "at": _date(each.at)} for each in entries]
        return {**shows(session), "state": state.to_data(), "last": last}

    async def fork(caller: Identity, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await sessions.find(arguments[argument], caller.principal)
        return shows(await session.fork(arguments["rev"], arguments["title"]))

    async def end(caller: Identity, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await sessions.find(arguments[argument], caller.principal)
        with outside_transaction():  # before a result is kept that says so
            return {argument: session.handle, "ended": await session.end()}

    after = (Annotated[str, Field(description="Where the next page begins: `next` of the one before")], "")
    rev = (Annotated[int | None, Field(description="The revision to go back to; the newest if left out")], None)
    return [
        LifecycleTool(
            f"create_{noun}",
            f"Begin a new {noun} and return its {argument}. Pass it to the other tools. {lasts}",
            given,
            begin,
            take_result,
        ),
        LifecycleTool(
            f"list_{noun}s",
            f"Your own {noun}s that are still alive, with their ids, 100 at once. {lasts}",
            {"after": after},
            list_all,
            take_result,
            True,
        ),
        LifecycleTool(
            f"resume_{noun}",
            f"Look up a {noun} by its {argument}: its content and its last steps. This restarts its idle time. {lasts}",
            {argument: handle},
            resume,
            take_result,
            True,
        ),
        LifecycleTool(
            f"fork_{noun}",
            f"Begin another {noun} with the content of this one, now or at an earlier revision. This one is kept. "
            f"{lasts}",
            {argument: handle, "rev": rev, "title": title},
            fork,
            take_result,
        ),
        LifecycleTool(
            f"end_{noun}",
            f"End a {noun} permanently. Its content is deleted and can't be restored.",
            {argument: handle},
            end,
            take_result,
            destroys=True,
        ),
    ]


def _parameter(field: FieldInfo) -> tuple[Any, Any]:
    """A field of the state as a parameter: a default factory is called for each session."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    if field.description:
        kind = Annotated[kind, Field(description=field.description)]
    if field.default_factory is not None:
        return kind | None, None
    return kind, field.default


def lifetime(idle: float | None, max_age: float | None) -> str:
    """A sentence that says how long a session lasts."""
    if idle is None and max_age is None:
        return "It lasts until it is ended."
    parts = [f"{_span(idle)} after its last use"] if idle is not None else []
    parts += [f"{'at most ' if parts else ''}{_span(max_age)} after it began"] if max_age is not None else []
    return f"It lasts {', '.join(parts)}."


def _span(seconds: float) -> str:
    for size, name in ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            number = seconds / size
            return f"{number:.3g} {name}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"


def _date(moment: float | None) -> str | None:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds") if moment is not None else None
