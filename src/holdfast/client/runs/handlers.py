"""The callbacks and event sinks of a run: its own, and those of nested runs while they are open."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import ServerDeclaration
from holdfast.events import Event, LinkSessionReplaced, Sink
from holdfast.observers import deliver, pass_on, say, says_itself

log = logging.getLogger("holdfast.client")


@dataclass(frozen=True)
class Replacement:
    """A server lost a session of the run and began a new one; the state of the old one is gone."""

    server: ServerDeclaration
    old: str | None
    new: str | None


OnReplaced: TypeAlias = Callable[[Replacement], None]


@dataclass(frozen=True, eq=False)
class Handlers:
    """The callbacks and event sinks given to one `run()`."""

    callbacks: Callbacks
    on_replaced: OnReplaced | None = None
    on_event: Sink | None = None


class RunHandlers:
    """All handlers of a run."""

    def __init__(self, first: Handlers) -> None:
        self._all = (first,)
        self.callbacks = first.callbacks
        """The callbacks of all that are open: those of nested runs first, the newest before the others."""

    def add(self, handlers: Handlers) -> None:
        """Add a nested run's callbacks and sinks."""
        self._replace((*self._all, handlers))

    def remove(self, handlers: Handlers) -> None:
        self._replace(tuple(each for each in self._all if each is not handlers))

    def _replace(self, all: tuple[Handlers, ...]) -> None:
        self._all = all
        merged = Callbacks()
        for handlers in reversed(all):
            merged = merged.over(handlers.callbacks)
        self.callbacks = merged

    @property
    def has_sinks(self) -> bool:
        """Does anybody get the events?"""
        return any(handlers.on_event is not None for handlers in self._all)

    def on_event(self, server: ServerDeclaration, event: Event) -> None:
        """Pass on an event of a link that the run leases. Every sink gets it, even if another one raises."""
        for handlers in self._all:
            try:
                if handlers.on_replaced is not None and isinstance(event, LinkSessionReplaced):
                    handlers.on_replaced(Replacement(server, event.old, event.new))
            except Exception:
                log.exception("on_replaced raised for %s", server.name)
            if handlers.on_event is not None:
                pass_on(event, handlers.on_event)  # the link has delivered it to the observers of the process

    def report(self, event: Event) -> None:
        """Deliver an event of the run itself."""
        deliver(event)
        if says_itself(log):
            say(log, event)
        for handlers in self._all:
            if handlers.on_event is not None:
                pass_on(event, handlers.on_event)
