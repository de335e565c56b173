"""Who observes this process: sinks that get every event of every link, run, store, gateway and session in it.

`holdfast.observe()` adds them. What happens is delivered here to them and to the sink that was given to the part where
it happened. A sink that raises harms nobody: it is logged, once until it works again.

Most things happen a few times in a session; some come with every call: requests, operations of a store, turns. A sink
that has no use for those says so by an attribute `wants_each`, and they are not even created for it.
"""

import logging
from dataclasses import fields

from holdfast.events import ChildStderr, Event, Sink

log = logging.getLogger("holdfast.events")
logging.getLogger("holdfast").addHandler(logging.NullHandler())  # whoever uses the library decides where lines go

_observers: tuple[Sink, ...] = ()
_logged = False
_failing: set[int] = set()


def add_observer(sink: Sink) -> None:
    """Deliver every event of this process to a sink from now on."""
    _observe((*_observers, sink))


def remove_observer(sink: Sink) -> None:
    """Deliver no more events to a sink; it need not be one."""
    _observe(tuple(each for each in _observers if each is not sink))
    _failing.discard(id(sink))


def _observe(observers: tuple[Sink, ...]) -> None:
    global _observers, _logged
    _observers = observers
    _logged = any(getattr(each, "writes_log_lines", False) for each in observers)


def is_observed(sink: Sink | None = None) -> bool:
    """Would anybody get an event? `sink` is the one that was given where it happens."""
    return sink is not None or bool(_observers)


def wants_each(sink: Sink | None = None) -> bool:
    """Would anybody use the events that come with every call?"""
    if sink is not None and getattr(sink, "wants_each", True):
        return True
    for observer in _observers:  # noqa: SIM110 (each call comes here: a generator is slow)
        if getattr(observer, "wants_each", True):
            return True
    return False


def says_itself(log: logging.Logger) -> bool:
    """Should a part of the library say at DEBUG what happens to it? Not if an observer writes log lines of events."""
    return log.isEnabledFor(logging.DEBUG) and not _logged


def say(log: logging.Logger, event: Event) -> None:
    """Log an event at DEBUG, where `says_itself`: its name and its short fields, without what gives access."""
    if not isinstance(event, ChildStderr):  # which may hold anything
        shown = {each.name: getattr(event, each.name) for each in fields(event) if each.name not in ("at", "arguments")}
        text = " ".join(f"{name}={_short(name, value)}" for name, value in shown.items() if value is not None)
        log.debug("%s %s", type(event).__name__, text)


def _short(name: str, value: object) -> str:
    text = f"{value[:4]}…" if isinstance(value, str) and name in ("session", "old", "new") else str(value)
    return repr(text[:200]) if " " in text or not text.isprintable() else text[:200]


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
