"""What a link reports: events to its sink, lines to the log, counts to `statistics()`.

It never raises: an error of the sink is logged.
"""

import logging
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.eras import Why
from holdfast.events import Event, HandshakeDone, MemoryFailed, SessionNotOffered, Sink, StrayMessage
from holdfast.links.options import LinkStatistics
from holdfast.links.wires.base import Generation

log = logging.getLogger("holdfast.links")

SESSIONLESS = "is taken in 2026, where a server keeps nothing from one call to the next"
SESSIONLESS_REMEDY = (
    "pass the handles that its tools give, or serve it in 2025 with sessions; if it keeps nothing anyway, say so with "
    "stateful=False"
)


class LinkReporter:
    """The events, log lines and counts of one link."""

    def __init__(self, server: str, sink: Sink | None, clock: Clock) -> None:
        self.server = server
        counts = (name for name, field in LinkStatistics.__dataclass_fields__.items() if field.default == 0)
        self._count: dict[str, int] = dict.fromkeys(counts, 0)
        self.era: tuple[str, str] | None = None
        self._sink = sink
        self._clock = clock

    def counted(self, what: str, number: int = 1) -> None:
        """Add to a count of `LinkStatistics`."""
        self._count[what] += number

    @property
    def in_flight(self) -> int:
        """Calls that are under way."""
        return self._count["in_flight"]

    def call_began(self) -> None:
        self._count["in_flight"] += 1
        self._count["calls"] += 1

    def call_ended(self) -> None:
        self._count["in_flight"] -= 1

    def event(self, kind: type[Any], **fields: Any) -> None:
        """Give an event to the sink; it is built only if there is one."""
        if self._sink is None:
            return
        event: Event = kind(at=self._clock.now(), server=self.server, **fields)
        try:
            self._sink(event)
        except Exception:
            log.exception("%s: the event sink raised", self.server)

    def warn(self, what: str) -> None:
        log.warning("%s: %s", self.server, what)

    def handshake_done(self, generation: Generation) -> None:
        """A generation is ready."""
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
        """State was expected where the server's eras let it keep none."""
        what = f"{SESSIONLESS} ({why.value}); {SESSIONLESS_REMEDY}"
        self.warn(what)
        self.event(SessionNotOffered, what=what)

    def strayed(self, what: str) -> None:
        self._count["strays"] += 1
        log.info("%s: %s", self.server, what)
        self.event(StrayMessage, what=what)

    def handler_failed(self, what: str, error: BaseException) -> None:
        """A function of the application raised: only the traceback shows why."""
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
    """A session in a log: enough to tell two apart, not enough to use it."""
    return "a session without an id" if session is None else f"session {session[:4]}…"
