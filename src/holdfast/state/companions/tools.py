"""Companions in tools: parameters that a companion fills, its steps written with the call."""

import typing
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar, get_origin

from holdfast.core.values import decode, encode
from holdfast.errors import UnstorableValue, UsageError
from holdfast.state.companions.companion import Companion, Turn
from holdfast.state.frameworks.taking import take_beside
from holdfast.state.session import Session

F = TypeVar("F", bound=Callable[..., Any])


class Kind(Protocol):
    """All companions of one class; in fact `Companions`."""

    @property
    def companion(self) -> type[Companion[Any, Any]]: ...

    @property
    def sessions(self) -> Any: ...

    @property
    def for_session(self) -> Callable[[Session[Any]], Awaitable[Any]]: ...


class _Filling:
    """The parameters of one call."""

    def __init__(self, values: dict[str, Any], turn: Turn[Any] | None) -> None:
        self.values = values
        self._turn = turn

    def done(self, result: Any) -> None:
        if self._turn is not None and self._turn.made is None:
            with suppress(UnstorableValue):  # a result of another type is the tool's own affair
                self._turn.record(decode(encode(result)))


def fill(function: F, kind: Kind, step: tuple[str, str | None] | None) -> F:
    """The function with its parameters for a companion filled; with `step`, a label and a phase, it is one."""
    own = kind.companion
    inner = getattr(function, "__holdfast_takes__", (function,))[0]
    hints = {name: hint for name, hint in typing.get_type_hints(inner).items() if name != "return"}
    whole = [name for name, hint in hints.items() if hint is own]
    states = [name for name, hint in hints.items() if hint is own.state_type and step is not None]
    turns = [name for name, hint in hints.items() if (get_origin(hint) or hint) is Turn and step is not None]
    if not (whole or states or turns) and step is None:
        raise UsageError(
            f"{function.__name__} has no parameter for the {own.kind}",
            remedy=f"add one that is annotated with {own.__name__}",
        )

    @asynccontextmanager
    async def around(session: Session[Any]) -> AsyncGenerator[_Filling]:
        companion = await kind.for_session(session)
        values = dict.fromkeys(whole, companion)
        if step is None:
            yield _Filling(values, None)
            return
        async with companion.step(step[0], to=step[1]) as turn:
            values |= dict.fromkeys(states, turn.state) | dict.fromkeys(turns, turn)
            yield _Filling(values, turn)

    return take_beside(function, kind.sessions, [*whole, *states, *turns], around)
