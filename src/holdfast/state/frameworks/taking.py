"""`writes` and `reads`: tools, resources and prompts that are given the state of sessions, the same on both frameworks.

A decorator takes the parameter that is annotated with the class of state out of the signature, and puts the argument
that names the session into it. Several decorators on one function make one transaction.
"""

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, cast, get_args, get_origin

from pydantic import Field

from holdfast.core.models import Principal
from holdfast.core.records import Key as StoreKey
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.state.calls.request import SCOPE, Scope, current_transaction
from holdfast.state.calls.transaction import Transaction
from holdfast.state.frameworks.injection import Injectable, current_identity, refused_prompt, sdk_identity
from holdfast.state.frozen import frozen
from holdfast.state.identity import FromArgument, Identity, Key, Named
from holdfast.state.model import SessionState
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.tool_errors import showing, shown

F = TypeVar("F", bound=Callable[..., Any])
_TAKES = "__holdfast_takes__"


class Filling(Protocol):
    """Parameters that something beside a session fills."""

    @property
    def values(self) -> dict[str, Any]: ...

    def done(self, result: Any) -> None:
        """The function has returned this."""
        ...


Around: TypeAlias = Callable[[Session[Any]], AbstractAsyncContextManager[Filling]]


@dataclass(frozen=True, slots=True)
class Taken:
    """One parameter that a session fills, and the argument that names the session."""

    name: str
    sessions: Injectable[Any]
    writes: bool
    argument: str | None
    whole: bool
    """The parameter is a `Session`, not its state."""
    around: "Around | None" = None
    """What fills parameters by means of the session, for as long as the function runs."""
    names: tuple[str, ...] = ()
    """These parameters."""


@dataclass(frozen=True, slots=True)
class Place:
    """The session that a call means for one parameter."""

    taken: Taken
    handle: str
    principal: Principal
    found: Named | Key

    @property
    def key(self) -> StoreKey:
        return KIND, self.handle

    @property
    def shared(self) -> bool:
        return isinstance(self.found, Key) and self.found.shared


def take(function: F, sessions: Injectable[Any], *, writes: bool) -> F:
    """The function with its parameters for these sessions filled."""
    original, before = getattr(function, _TAKES, (function, ()))
    hints = typing.get_type_hints(original, include_extras=True)
    mine = [name for name, hint in hints.items() if name != "return" and _is_of(hint, sessions.kind)]
    mine = [name for name in mine if all(each.name != name for each in before)]
    verb = "writes" if writes else "reads"
    if not mine:
        raise UsageError(
            f"{original.__name__} has no parameter for {verb} to fill",
            remedy=f"add one that is annotated with {sessions.kind.__name__}",
        )
    argument = next(iter(sessions.chain.arguments), None)
    whole = [get_origin(hints[name]) is Session for name in mine]
    several = whole.count(False) > 1 or whole.count(True) > 1  # a state and its session are one
    if several and argument is None:
        raise UsageError(
            f"{original.__name__} takes {len(mine)} sessions of {sessions!r}, which nothing could tell apart",
            remedy="add FromArgument() to the identity chain",
        )
    taken = [
        Taken(name, sessions, writes, f"{name}_id" if several else argument, is_whole)
        for name, is_whole in zip(mine, whole, strict=True)
    ]
    return cast("F", _filled(original, hints, (*taken, *before)))


def take_beside(function: F, sessions: Injectable[Any], names: Sequence[str], around: Around) -> F:
    """The function with these parameters filled by something beside the session that the call means."""
    original, before = getattr(function, _TAKES, (function, ()))
    hints = typing.get_type_hints(original, include_extras=True)
    argument = next(iter(sessions.chain.arguments), None)
    taken = Taken("", sessions, True, argument, True, around, tuple(names))
    return cast("F", _filled(original, hints, (taken, *before)))


def _is_of(hint: object, kind: type[SessionState]) -> bool:
    return hint is kind or (get_origin(hint) is Session and get_args(hint) == (kind,))


def _filled(original: Callable[..., Any], hints: dict[str, Any], takes: tuple[Taken, ...]) -> Callable[..., Any]:
    signature, filled = inspect.signature(original), {name for each in takes for name in (each.name, *each.names)}
    parameters = [
        value.replace(annotation=hints.get(name, value.annotation))
        for name, value in signature.parameters.items()
        if name not in filled
    ]
    known = {value.name for value in parameters}
    added = {each.argument: _argument(each) for each in takes if each.argument and each.argument not in known}
    last = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters[len(parameters) - last : len(parameters) - last] = added.values()
    public = signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.empty))

    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        bound = public.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for value in public.parameters.values():
            if value.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(value.name)
        given = {name: value for name, value in arguments.items() if name not in added}
        return await _run(original, takes, arguments, given)

    del call.__wrapped__
    call.__signature__ = public  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {name: value.annotation for name, value in public.parameters.items()}
    call.__annotations__ = {
        name: hint for name, hint in call.__annotations__.items() if hint is not inspect.Parameter.empty
    }
    if "return" in hints:
        call.__annotations__["return"] = hints["return"]
    setattr(call, _TAKES, (original, takes))
    return call


def _argument(taken: Taken) -> inspect.Parameter:
    """The argument that names a session, as the model is told of it."""
    assert taken.argument is not None
    sessions = taken.sessions
    must = len(sessions.chain.places) == 1 or taken.argument not in sessions.chain.arguments
    text = (
        f"The id of the {sessions.noun}"
        if taken.argument == f"{sessions.noun}_id"
        else f"The id of the {sessions.noun} {taken.name!r}"
    )
    text += f", as {sessions.table.begin_tool or 'the server'} returned it."
    if not must and sessions.chain.has_own:
        text += " Leave it out for your own."
    return inspect.Parameter(
        taken.argument,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, Field(description=text)],
        default=inspect.Parameter.empty if must else "",
    )


# The call


async def _run(
    original: Callable[..., Any], takes: Sequence[Taken], arguments: dict[str, Any], given: dict[str, Any]
) -> Any:
    caller, also, is_prompt = _identity(arguments)
    try:
        async with AsyncExitStack() as stack:
            transaction = current_transaction()
            if transaction is None and any(each.writes for each in takes):
                transaction = await stack.enter_async_context(_Alone(original.__name__))
            with showing(also):
                filled = await _taken(takes, caller, transaction, also)
            async with AsyncExitStack() as fillings:
                beside = [
                    await fillings.enter_async_context(each.around(session))
                    for each, session in filled.beside
                    if each.around is not None
                ]
                for each in beside:
                    filled.values |= each.values
                result = await _called(original, given | filled.values)
                for each in beside:
                    each.done(result)
            for state, was in filled.reading:
                if state != was:
                    raise shown(
                        UsageError(
                            "this tool only reads its session, and has changed it", remedy="declare it with `writes`"
                        ),
                        also,
                    )
        return result
    except HoldfastError as error:
        if is_prompt:
            raise refused_prompt(error) from error
        raise


async def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What is not async runs in a thread, as on both frameworks."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await asyncio.to_thread(function, **arguments)
    return await result if inspect.isawaitable(result) else result


def _identity(arguments: Mapping[str, Any]) -> tuple[Identity, type[Exception], bool]:
    """Who calls, the class of errors to show, and whether it is a prompt of the SDK, which has no such class."""
    scope = SCOPE.get()
    if scope is not None and scope.is_sdk:
        request = cast("Any", scope.request)
        return (*sdk_identity(request, arguments), request.method.startswith("prompts/"))
    return (*current_identity(None, arguments), False)


@dataclass(slots=True)
class Filled:
    """The values of parameters, the states that are only read beside what they have to stay equal to, and the sessions
    by means of which others are filled."""

    values: dict[str, Any]
    reading: list[tuple[SessionState, SessionState]]
    beside: list[tuple[Taken, Session[Any]]]


class _Alone:
    """The transaction of a call that no middleware of ours is around."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._transaction = Transaction()

    async def __aenter__(self) -> Transaction:
        outer = SCOPE.get()
        scope = outer.nested(outer.arguments) if outer is not None else Scope(None, {})
        scope.transaction = self._transaction
        self._token = SCOPE.set(scope)
        return self._transaction

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if error is not None:
                await self._transaction.abandon()
            else:
                await self._transaction.commit(self._label)
        finally:
            SCOPE.reset(self._token)


async def _taken(
    takes: Sequence[Taken], caller: Identity, transaction: Transaction | None, also: type[Exception]
) -> "Filled":
    places = [await _place(each, caller) for each in takes]
    filled = Filled({}, [], [])
    if transaction is not None and (writing := [each for each in places if each.taken.writes]):
        for place, session in zip(writing, await _written(writing, caller, transaction, also), strict=True):
            draft = session.in_call.draft
            assert draft is not None
            if place.taken.around is not None:
                filled.beside.append((place.taken, session))
            else:
                filled.values[place.taken.name] = session if place.taken.whole else draft.state
    for place, session in await _read([each for each in places if not each.taken.writes], caller, transaction, also):
        if place.taken.whole:
            filled.values[place.taken.name] = session
            continue
        was = session.state
        state = frozen(was)
        filled.values[place.taken.name] = state
        filled.reading.append((state, was))
    return filled


async def _place(taken: Taken, caller: Identity) -> Place:
    """The session that the caller means, not read yet."""
    sessions, chain = taken.sessions, taken.sessions.chain
    if taken.argument is not None and taken.argument not in chain.arguments:
        handle = caller.arguments.get(taken.argument)
        found = FromArgument(taken.argument).find(caller, sessions.table.name) if handle else None
    else:
        found = chain.find(caller, sessions.table.name)
    if found is None:
        raise NotFound(
            "this needs a session, and the call names none",
            remedy=f"{sessions.table.begin_hint}, or {chain.hint}" if chain.is_named_by_callers else chain.hint,
        )
    if isinstance(found, Named):
        return Place(taken, sessions.table.check_handle(found.handle), caller.principal, found)
    return Place(taken, await sessions.pointers.handle(found), found.principal, found)


async def _current(place: Place) -> Place:
    """The session that stands for a caller now that the one before has ended."""
    assert isinstance(place.found, Key)
    place.taken.sessions.pointers.forget(place.found)
    return replace(place, handle=await place.taken.sessions.pointers.handle(place.found))


async def _written(
    places: list[Place], caller: Identity, transaction: Transaction, also: type[Exception]
) -> list[Session[Any]]:
    """The sessions under the call's turn, with a draft each."""
    keyed = transaction.keyed if not transaction.has_begun else None
    result = (
        keyed.place((each.handle for each in places), shared=any(each.shared for each in places)) if keyed else None
    )
    for place in places:
        await transaction.begin(place.taken.sessions.table.store)
    first = places[0].taken.sessions.table
    names = {each.key for each in places if each.handle not in transaction.sessions}
    if result is not None:
        names.add(result)
    await transaction.take(first.store, names, wait=first.turn_wait, ttl=first.turn_ttl)
    if keyed is not None and result is not None:
        transaction.answer = keyed.answer(transaction.record(result))
        transaction.result_place = result
        if transaction.answer is not None:
            raise shown(HoldfastError("the call was made before, and its result is known"), also)
    return [await _draft(place, caller, transaction, also) for place in places]


async def _draft(place: Place, caller: Identity, transaction: Transaction, also: type[Exception]) -> Session[Any]:
    table = place.taken.sessions.table
    known = transaction.sessions.get(place.handle)
    if known is not None and known.record.table is table and known.principal == place.principal:
        return cast("Session[Any]", known)
    record = transaction.record(place.key)
    if isinstance(place.found, Key) and (record is None or record.ended is not None):
        place = await _current(place)
        await transaction.take(table.store, [place.key], wait=table.turn_wait, ttl=table.turn_ttl)
        record = transaction.record(place.key)
    session = Session(
        SessionRecord(table, *table.check(record, place.handle, place.principal)),
        shared_with=caller.principal if place.shared else None,
        also=also,
    )
    session.in_call.open_draft()
    transaction.adopt(place.handle, session, session.in_call)
    return session


async def _read(
    places: list[Place], caller: Identity, transaction: Transaction | None, also: type[Exception]
) -> list[tuple[Place, Session[Any]]]:
    """The sessions as they are at one moment, with what the call itself has changed."""
    found: list[tuple[Place, Session[Any]]] = []
    groups: dict[object, list[Place]] = {}
    for place in places:
        known = transaction.sessions.get(place.handle) if transaction is not None else None
        if known is not None and known.record.table is place.taken.sessions.table:
            found.append((place, known))
        else:
            groups.setdefault(place.taken.sessions.table.store.place, []).append(place)
    for group in groups.values():
        store = await group[0].taken.sessions.table.store.open()
        for place, record in zip(group, await store.get_all([each.key for each in group], dead=True), strict=True):
            table = place.taken.sessions.table
            if isinstance(place.found, Key) and (record is None or record.ended is not None):
                now = await _current(place)
                loaded = await table.load(now.handle, now.principal)
            else:
                loaded = table.check(record, place.handle, place.principal)
            await table.slide(loaded[0])
            shared = caller.principal if place.shared else None
            found.append((place, Session(SessionRecord(table, *loaded), shared_with=shared, also=also)))
    return found
