"""Several sinks as one: each gets every event, whatever another one does with it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from holdfast.events import Event
from holdfast.observers import pass_on


class ClosableSink(Protocol):
    """A sink with something to write off at the end."""

    def __call__(self, event: Event) -> None: ...
    def close(self) -> None:
        """Write what is left, in bounded time. It gets no event after that."""
        ...


@runtime_checkable
class DroppingSink(Protocol):
    """A sink that counts the events that it could not take."""

    name: str
    """Its name in the metrics."""

    @property
    def dropped(self) -> int: ...


class FanOut:
    """The sinks of one gateway, or of one program."""

    def __init__(self, sinks: Sequence[ClosableSink]) -> None:
        self._sinks = tuple(sinks)

    @property
    def wants_each(self) -> bool:
        return any(getattr(sink, "wants_each", True) for sink in self._sinks)

    def __call__(self, event: Event) -> None:
        for sink in self._sinks:
            pass_on(event, sink)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
