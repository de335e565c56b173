"""What a link tells: events to its sink, lines to the log, counts to `statistics()`. It owns all three.

It refuses to fail: a sink that raises is logged and nobody's call is harmed.
"""

import logging
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.events import Event, MemoryFailed, Sink, StrayMessage
from holdfast.links.options import LinkStatistics

log = logging.getLogger("holdfast.links")


class Telling:
    """One link's voice."""

    def __init__(self, server: str, sink: Sink | None, clock: Clock) -> None:
        self.server = server
        self.count: dict[str, int] = dict.fromkeys(LinkStatistics.__dataclass_fields__, 0)
        self._sink = sink
        self._clock = clock

    def event(self, kind: type[Any], **fields: Any) -> None:
        """Built only if somebody listens."""
        if self._sink is None:
            return
        event: Event = kind(at=self._clock.now(), server=self.server, **fields)
        try:
            self._sink(event)
        except Exception:
            log.exception("%s: the event sink raised", self.server)

    def warn(self, what: str) -> None:
        log.warning("%s: %s", self.server, what)

    def strayed(self, what: str) -> None:
        self.count["strays"] += 1
        log.info("%s: %s", self.server, what)
        self.event(StrayMessage, what=what)

    def handler_failed(self, what: str, error: Exception) -> None:
        """A function of the author's raised: its traceback is the only way for them to find out why."""
        self.count["strays"] += 1
        log.error("%s: %s raised", self.server, what, exc_info=error)
        self.event(StrayMessage, what=f"{what} raised {error!r:.200}")

    def forgetting(self, why: str) -> None:
        self.warn(f"memory: {why}")
        self.event(MemoryFailed, why=why)

    def task_failed(self, name: str, error: BaseException) -> None:
        log.error("%s: task %s failed", self.server, name, exc_info=error)
        self.event(StrayMessage, what=f"task {name} failed: {error!r:.300}")

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(**self.count)
