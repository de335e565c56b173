"""What a link reports: events to its sink, lines to the log, counts to `statistics()`.

It never raises: an error of the sink is logged.
"""

import logging
from collections.abc import Callable
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.eras import Why
from holdfast.events import Event, HandshakeDone, MemoryFailed, SessionNotOffered, Sink, StrayMessage
from holdfast.links.options import LinkStatistics
from holdfast.links.wires.base import Generation
from holdfast.observers import deliver, is_observed, say, says_itself, wants_each

log = logging.getLogger("holdfast.links")

SESSIONLESS = "is used in 2026, where a server keeps no session state between calls"
SESSIONLESS_REMEDY = (
    "pass the handles that its tools return, or serve it in 2025 with sessions; if it keeps no state anyway, declare "
    "stateful=False"
)


class LinkReporter:
    """The events, log lines and counts of one link."""

    def __init__(
        self, server: str, sink: Sink | None, clock: Clock, wants_requests: Callable[[], bool] | None = None
    ) -> None:
        self.server = server
        counts = (name for name, field in LinkStatistics.__dataclass_fields__.items() if field.default == 0)
        self._count: dict[str, int] = dict.fromkeys(counts, 0)
        self.era: tuple[str, str] | None = None
        self._sink = sink
        self._clock = clock
        self._wants_requests = wants_requests

    def counted(self, what: str, number: int = 1) -> None:
        """Increase a counter of `LinkStatistics`."""
        self._count[what] += number

    @property
    def in_flight(self) -> int:
        """Calls in flight."""
        return self._count["in_flight"]

    def call_began(self) -> None:
        self._count["in_flight"] += 1
        self._count["calls"] += 1

    def call_ended(self) -> None:
        self._count["in_flight"] -= 1

    def event(self, kind: type[Any], **fields: Any) -> None:
        """Deliver an event; it is created only if somebody gets it."""
        if is_observed(self._sink) or says_itself(log):
            self.deliver(kind(at=self._clock.now(), server=self.server, **fields))

    def deliver(self, event: Event) -> None:
        """Deliver an event that exists."""
        deliver(event, self._sink)
        if says_itself(log):
            say(log, event)

    @property
    def reports_requests(self) -> bool:
        """Does anybody want an event for each request?"""
        if wants_each() or says_itself(log):
            return True
        return self._sink is not None and (self._wants_requests is None or self._wants_requests())

    def warn(self, what: str) -> None:
        log.warning("%s: %s", self.server, what)

    def handshake_done(self, generation: Generation) -> None:
        """Report that a generation is ready."""
        self._count["adoptions" if generation.adopted else "handshakes"] += 1
        self.era = (generation.era.value, generation.why.value)
        self.event(
            HandshakeDone,
            generation=generation.number,
            era=generation.era.value,
            version=generation.version,
            session=generation.session,
            adopted=generation.adopted,
            why=generation.why.value,
        )

    def no_session(self, why: Why) -> None:
        """Warn that state is expected of a server that offers no session."""
        what = f"{SESSIONLESS} ({why.value}); {SESSIONLESS_REMEDY}"
        self.warn(what)
        self.event(SessionNotOffered, what=what)

    def strayed(self, what: str) -> None:
        self._count["strays"] += 1
        log.info("%s: %s", self.server, what)
        self.event(StrayMessage, what=what)

    def handler_failed(self, what: str, error: BaseException) -> None:
        """Log the traceback of a function of the application that raised."""
        self._count["strays"] += 1
        log.error("%s: %s raised", self.server, what, exc_info=error)
        self.event(StrayMessage, what=f"{what} raised {error!r:.200}")

    def forgetting(self, why: str) -> None:
        self.warn(f"memory: {why}")
        self.event(MemoryFailed, why=why)

    def task_failed(self, name: str, error: BaseException) -> None:
        log.error("%s: task %s failed", self.server, name, exc_info=error)
        self.event(StrayMessage, what=f"task {name} failed: {error!r:.300}")

    def statistics(self) -> LinkStatistics:
        era, why = self.era or (None, None)
        return LinkStatistics(**self._count, era=era, why=why)


def shown_session(session: str | None) -> str:
    """The beginning of a session id for logs: enough to distinguish sessions, not enough to use one."""
    return "a session without an id" if session is None else f"session {session[:4]}…"
