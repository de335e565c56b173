"""The sink that logs events, through `logging`: whatever handlers a program has see the lines, too.

A server that fails is logged when that begins and when it is over, not with every call in between. Lines of one kind
are bounded: a caller that is refused a thousand times a second makes a few lines and a count.
"""

import logging
import math
import time
from typing import TypeAlias

from holdfast.events import (
    CallerRefused,
    ChildEnded,
    CircuitChanged,
    Event,
    GatewayStarted,
    GatewayStopped,
    HandshakeDone,
    LinkClosed,
    LinkFailed,
    LinkSessionReplaced,
    ListenerFailed,
    RequestSent,
)
from holdfast.sinks.logs.flood import Flood
from holdfast.sinks.logs.lines import Line, fields_of, line_of

Kind: TypeAlias = tuple[str, int, str, int | None]  # logger, level, event, and the status of a refusal

WARNINGS = 20  # of one kind in ten seconds
INFORMATION = 1_000  # lines at INFO of one kind in ten seconds
PAUSE = 60.0  # seconds without a failure after which the next one is another
SERVERS = 1_000  # whose failures are remembered

_KNOWN_TO_GATEWAY = (HandshakeDone, LinkClosed, LinkFailed, LinkSessionReplaced, RequestSent)
"""What a gateway says as well, of its backends."""


class LogSink:
    """Logs what an operator must know. It is an observer of a process, of which there is one at a time."""

    writes_log_lines = True

    def __init__(self) -> None:
        self._gateways = 0
        self._failing: dict[tuple[type[Event], str], float] = {}
        """Servers that can't be reached, servers whose circuit is open, stores without notices, each with the time."""
        self._requests = logging.getLogger("holdfast.gateway"), logging.getLogger("holdfast.links")
        self._flood = Flood[Kind](self._summed)

    @property
    def wants_each(self) -> bool:
        """Is there a level at which requests are logged?"""
        served, sent = self._requests
        return served.isEnabledFor(logging.INFO) or sent.isEnabledFor(logging.INFO)

    def __call__(self, event: Event) -> None:
        found = line_of(event)
        if isinstance(event, GatewayStarted):
            self._gateways += 1
        elif isinstance(event, GatewayStopped):
            self._gateways -= 1
        if found is None:
            return
        name, line = found[0], self._judged(event, found[1])
        level, logger = line.level, logging.getLogger(name)
        if not logger.isEnabledFor(level):
            return
        if level > logging.DEBUG:
            most = WARNINGS if level >= logging.WARNING or isinstance(event, CallerRefused) else INFORMATION
            status = event.status if isinstance(event, CallerRefused) else None
            if not self._flood.lets((name, level, type(event).__name__, status), most):
                return
        logger.log(level, "%s", line.text, extra=fields_of(event))

    def _judged(self, event: Event, line: Line) -> Line:
        """The line, by what was logged before. Keeps the state of servers."""
        level, text = line
        if isinstance(event, HandshakeDone):
            if self._failing.pop((LinkFailed, event.server), None) is not None:
                level, text = logging.WARNING, f"{text}; it can be reached again"
        elif isinstance(event, LinkFailed):
            level = self._once(LinkFailed, event.server, level)
        elif isinstance(event, CircuitChanged):
            if event.state == "open":
                level = self._once(CircuitChanged, event.server, level)
            elif event.state == "closed":
                self._failing.pop((CircuitChanged, event.server), None)
        elif isinstance(event, ListenerFailed):
            level = self._once(ListenerFailed, event.store, level, PAUSE)
        elif isinstance(event, ChildEnded) and (LinkFailed, event.server) in self._failing:
            level = logging.DEBUG
        if self._gateways:
            if isinstance(event, _KNOWN_TO_GATEWAY):
                level = logging.DEBUG
            elif isinstance(event, CircuitChanged):
                level = min(level, logging.INFO)  # the gateway warns that the backend is down
        return Line(level, text)

    def _once(self, kind: type[Event], whose: str, level: int, pause: float = math.inf) -> int:
        """The level if this has not failed before, or not for so many seconds; else DEBUG."""
        now, last = time.monotonic(), self._failing.get((kind, whose))
        if last is not None or len(self._failing) < SERVERS:
            self._failing[kind, whose] = now
        return level if last is None or now - last > pause else logging.DEBUG

    def _summed(self, kind: Kind, number: int) -> None:
        name, level, event, status = kind
        of = event if status is None else f"{event}, HTTP {status}"
        text = f"{number} more of these were left out in the last seconds: {of}"
        fields = {"event": event, "left_out": number, "status": status}
        logging.getLogger(name).log(level, "%s", text, extra=fields)

    def close(self) -> None:
        """Log what was only counted."""
        self._flood.close()
