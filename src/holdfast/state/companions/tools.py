"""Companions in tools: parameters that a companion fills, its steps written with the call."""

import typing
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar, get_origin

from holdfast.core.values import decode, encode
from holdfast.errors import UnstorableValue, UsageError
from holdfast.state.companions.companion import Companion, Step
from holdfast.state.companions.insight import Insight
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
    def check(self) -> Callable[[Any, str], Awaitable[None]]: ...

    @property
    def for_session(self) -> Callable[[Session[Any]], Awaitable[Any]]: ...


class _Filling:
    """The parameters of one call."""

    def __init__(self, values: dict[str, Any], under_way: Step[Any] | None) -> None:
        self.values = values
        self._step = under_way

    def done(self, result: Any) -> None:
        if self._step is not None and self._step.made is None:
            with suppress(UnstorableValue):  # a result of another type is the tool's own affair
                self._step.record(decode(encode(result)))


def fill(function: F, kind: Kind, step: tuple[str, str | None] | None, *, writes: bool = True) -> F:
    """The function with its parameters for a companion filled; with `step`, a label and a phase, it is one."""
    own = kind.companion
    inner = getattr(function, "__holdfast_takes__", (function,))[0]
    hints = {name: hint for name, hint in typing.get_type_hints(inner).items() if name != "return"}
    whole = [name for name, hint in hints.items() if hint is own]
    insights = [name for name, hint in hints.items() if hint is Insight]
    states = [name for name, hint in hints.items() if hint is own.state_type and step is not None]
    steps = [name for name, hint in hints.items() if (get_origin(hint) or hint) is Step and step is not None]
    if not (whole or insights) and step is None:
        raise UsageError(
            f"{function.__name__} has no parameter for the {own.kind}",
            remedy=f"add one that is annotated with {own.__name__}",
        )

    @asynccontextmanager
    async def around(session: Session[Any]) -> AsyncGenerator[_Filling]:
        companion = await kind.for_session(session)
        if not writes:
            companion.only_reads()
        values = dict.fromkeys(whole, companion)
        if insights:
            values |= dict.fromkeys(insights, await companion.insight())
        if step is None:
            yield _Filling(values, None)
            return
        await kind.check(companion, inner.__name__)  # its words are better than those of the phases
        async with companion.step(step[0], to=step[1]) as under_way:
            values |= dict.fromkeys(states, under_way.state) | dict.fromkeys(steps, under_way)
            yield _Filling(values, under_way)

    return take_beside(function, kind.sessions, [*whole, *insights, *states, *steps], around, writes=writes)
