"""Who observes this process: sinks that get every event of every link, run, store, gateway and session in it.

`holdfast.observe()` adds them. What happens is delivered here to them and to the sink that was given to the part where
it happened. A sink that raises harms nobody: it is logged, once until it works again.
"""

import logging

from holdfast.events import Event, Sink

log = logging.getLogger("holdfast.events")

_observers: tuple[Sink, ...] = ()
_failing: set[int] = set()


def add_observer(sink: Sink) -> None:
    """Deliver every event of this process to a sink from now on."""
    global _observers
    _observers = (*_observers, sink)


def remove_observer(sink: Sink) -> None:
    """Deliver no more events to a sink; it need not be one."""
    global _observers
    _observers = tuple(each for each in _observers if each is not sink)
    _failing.discard(id(sink))


def is_observed(sink: Sink | None = None) -> bool:
    """Would anybody get an event? `sink` is the one that was given where it happens."""
    return sink is not None or bool(_observers)


def deliver(event: Event, sink: Sink | None = None) -> None:
    """Deliver an event to the sink that was given, and to the observers of the process. Never raises."""
    if sink is not None:
        pass_on(event, sink)
    for observer in _observers:
        if observer is not sink:
            pass_on(event, observer)


def pass_on(event: Event, sink: Sink) -> None:
    """Deliver an event to one sink only: the observers of the process have it already. Never raises."""
    try:
        sink(event)
    except Exception:
        if id(sink) not in _failing:
            _failing.add(id(sink))
            log.exception("a sink raised on %s; it is logged again once it has worked", type(event).__name__)
    else:
        if _failing:
            _failing.discard(id(sink))
