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
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, cast, get_args, get_origin

from pydantic import Field

from holdfast.errors import HoldfastError, UsageError
from holdfast.state.calls.request import SCOPE, Scope, current_transaction
from holdfast.state.calls.transaction import Transaction
from holdfast.state.frameworks.injection import Injectable, current_identity, refused_prompt, sdk_identity
from holdfast.state.frameworks.places import place_of, take_to_read, take_to_write
from holdfast.state.frozen import frozen
from holdfast.state.identity import Identity
from holdfast.state.model import SessionState
from holdfast.state.session import Session
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


def take_beside(
    function: F, sessions: Injectable[Any], names: Sequence[str], around: Around, *, writes: bool = True
) -> F:
    """The function with these parameters filled by something beside the session that the call means."""
    original, before = getattr(function, _TAKES, (function, ()))
    hints = typing.get_type_hints(original, include_extras=True)
    argument = next(iter(sessions.chain.arguments), None)
    taken = Taken("", sessions, writes, argument, True, around, tuple(names))
    return cast("F", _filled(original, hints, (taken, *before)))


def takes_of(function: object) -> Sequence[Taken]:
    """What a tool's function takes, if it is one of ours."""
    return cast("Sequence[Taken]", getattr(function, _TAKES, (None, ()))[1])


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
    bound = _binder(public)

    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        arguments = bound(args, kwargs)
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


def _binder(public: inspect.Signature) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """A function that returns all arguments of a call by name, defaults included. Frameworks pass them by name, which
    needs no work; `Signature.bind` does the rest, and refuses."""
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    empty = inspect.Parameter.empty
    is_plain = all(value.kind in named for value in public.parameters.values())
    needed = {name for name, value in public.parameters.items() if value.default is empty}
    defaults = {name: value.default for name, value in public.parameters.items() if value.default is not empty}

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if is_plain and not args and needed <= kwargs.keys() <= public.parameters.keys():
            return {**defaults, **kwargs}
        bound = public.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for value in public.parameters.values():
            if value.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(value.name)
        return arguments

    return bind


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
        transaction = current_transaction()
        if transaction is not None and transaction.has_begun:  # a nested call, which is written with the outer one
            restore = transaction.snapshot()
            try:
                return await _filled_and_called(original, takes, caller, transaction, also, given)
            except BaseException:
                restore()
                raise
        if transaction is not None or not any(each.writes for each in takes):
            return await _filled_and_called(original, takes, caller, transaction, also, given)
        async with _Alone(original.__name__) as transaction:
            return await _filled_and_called(original, takes, caller, transaction, also, given)
    except HoldfastError as error:
        if is_prompt:
            raise refused_prompt(error) from error
        raise


async def _filled_and_called(
    original: Callable[..., Any],
    takes: Sequence[Taken],
    caller: Identity,
    transaction: Transaction | None,
    also: type[Exception],
    given: dict[str, Any],
) -> Any:
    with showing(also):
        filled = await _taken(takes, caller, transaction, also)
    if not filled.beside:
        with showing(also):
            result = await _called(original, given | filled.values)
    else:
        async with AsyncExitStack() as fillings:
            beside = [
                await fillings.enter_async_context(each.around(session))
                for each, session in filled.beside
                if each.around is not None
            ]
            for each in beside:
                filled.values |= each.values
            with showing(also):
                result = await _called(original, given | filled.values)
            for each in beside:
                each.done(result)
    for state, was in filled.reading:
        if state != was:
            raise shown(
                UsageError("this tool only reads its session, and has changed it", remedy="declare it with `writes`"),
                also,
            )
    return result


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
    places = [await place_of(each.sessions, caller, each.argument) for each in takes]
    filled = Filled({}, [], [])
    writing = [(each, place) for each, place in zip(takes, places, strict=True) if each.writes]
    reading = [(each, place) for each, place in zip(takes, places, strict=True) if not each.writes]
    if transaction is not None and writing:
        written = await take_to_write([place for _, place in writing], caller, transaction, also)
        for (taken, _), session in zip(writing, written, strict=True):
            draft = session.in_call.draft
            assert draft is not None
            if taken.around is not None:
                filled.beside.append((taken, session))
            else:
                filled.values[taken.name] = session if taken.whole else draft.state
    read = await take_to_read([place for _, place in reading], caller, transaction, also)
    for (taken, _), session in zip(reading, read, strict=True):
        if session.in_call.draft is None:
            session.in_call.only_reads()
        if taken.around is not None:
            filled.beside.append((taken, session))
            continue
        if taken.whole:
            filled.values[taken.name] = session
            continue
        was = session.state
        state = frozen(was)
        filled.values[taken.name] = state
        filled.reading.append((state, was))
    return filled
