"""Lifecycles as tables: link, gateway, gateway session, circuit.

A pair of state and event that is not in a table is a bug in Holdfast and raises; a late event that must have no effect
is listed with the state it stays in. Times and counts are kept by the owner of a lifecycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class LinkState(Enum):
    """The state of a link. RESOLVE, OPEN and HANDSHAKE are the steps of connecting; calls are sent in READY."""

    CLOSED = "closed"
    RESOLVE = "resolve"
    OPEN = "open"
    HANDSHAKE = "handshake"
    READY = "ready"
    CLOSING = "closing"
    RETIRING = "retiring"
    RETIRED = "retired"


class LinkEvent(Enum):
    """An event in the life of a link."""

    USE = "use"
    RESOLVED = "resolved"
    OPENED = "opened"
    HANDSHAKE_DONE = "handshake done"
    SESSION_LOST = "session lost"
    TRANSPORT_LOST = "transport lost"
    AUTH_NEEDED = "auth needed"
    FAILED = "failed"
    CLOSE = "close"
    CLOSED = "closed"
    RETIRE = "retire"
    ABANDONED = "abandoned"


class GatewayState(Enum):
    """The state of a gateway process. LEAVING accepts new sessions, DRAINING only calls of existing ones."""

    SERVING = "serving"
    LEAVING = "leaving"
    DRAINING = "draining"
    CUTTING = "cutting"


class GatewayEvent(Enum):
    """An event in the shutdown of a gateway process."""

    LEAVE = "leave"
    DRAIN = "drain"
    CUT = "cut"


class GatewaySessionState(Enum):
    """The state of a gateway session in one process. The record outlives all of these except ENDED."""

    STARTING = "starting"
    OPEN = "open"
    DRAINING = "draining"
    DETACHED = "detached"
    ENDED = "ended"


class GatewaySessionEvent(Enum):
    """An event that ends or moves a gateway session."""

    STARTED = "started"
    DELETED = "deleted"
    EXPIRED = "expired"
    HANDED_OVER = "handed over"
    DRAINED = "drained"


class CircuitState(Enum):
    """The state of a circuit: whether calls to a server are sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class CircuitEvent(Enum):
    """An event that changes a circuit."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FAILED_TOO_OFTEN = "failed too often"
    RESTED = "rested"


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(RuntimeError):
    """The table has no such transition. This is a bug in Holdfast, not in its caller."""


@dataclass(frozen=True)
class Lifecycle(Generic[S, E]):
    """A table of transitions."""

    name: str
    initial: S
    steps: Mapping[S, Mapping[E, S]]

    def next(self, state: S, event: E) -> S:
        try:
            return self.steps[state][event]
        except KeyError:
            raise IllegalTransition(f"{self.name}: {event.name} is not possible in {state.name}") from None

    def allows(self, state: S, event: E) -> bool:
        return event in self.steps.get(state, {})


_L, _V = LinkState, LinkEvent

LINK: Lifecycle[LinkState, LinkEvent] = Lifecycle(
    "link",
    _L.CLOSED,
    {
        # A closed link that is used again starts over; a late event about its earlier resources changes nothing.
        _L.CLOSED: {
            _V.USE: _L.RESOLVE,
            _V.CLOSE: _L.CLOSING,
            _V.RETIRE: _L.RETIRED,
            _V.ABANDONED: _L.CLOSED,
            _V.SESSION_LOST: _L.CLOSED,
            _V.TRANSPORT_LOST: _L.CLOSED,
            _V.AUTH_NEEDED: _L.CLOSED,
        },
        # While connecting, a second call may report a fault from which the link is already recovering.
        _L.RESOLVE: {
            _V.USE: _L.RESOLVE,
            _V.RESOLVED: _L.OPEN,
            _V.SESSION_LOST: _L.RESOLVE,
            _V.TRANSPORT_LOST: _L.RESOLVE,
            _V.AUTH_NEEDED: _L.RESOLVE,
            _V.FAILED: _L.CLOSED,
            _V.CLOSE: _L.CLOSING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.CLOSED,
        },
        _L.OPEN: {
            _V.USE: _L.OPEN,
            _V.OPENED: _L.HANDSHAKE,
            _V.AUTH_NEEDED: _L.RESOLVE,
            _V.SESSION_LOST: _L.OPEN,
            _V.TRANSPORT_LOST: _L.OPEN,
            _V.FAILED: _L.CLOSED,
            _V.CLOSE: _L.CLOSING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.CLOSED,
        },
        _L.HANDSHAKE: {
            _V.USE: _L.HANDSHAKE,
            _V.HANDSHAKE_DONE: _L.READY,
            _V.SESSION_LOST: _L.HANDSHAKE,
            _V.TRANSPORT_LOST: _L.OPEN,
            _V.AUTH_NEEDED: _L.RESOLVE,
            _V.FAILED: _L.CLOSED,
            _V.CLOSE: _L.CLOSING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.CLOSED,
        },
        # Recovery starts at the last phase that suffices.
        _L.READY: {
            _V.USE: _L.READY,
            _V.SESSION_LOST: _L.HANDSHAKE,
            _V.TRANSPORT_LOST: _L.OPEN,
            _V.AUTH_NEEDED: _L.RESOLVE,
            _V.CLOSE: _L.CLOSING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.CLOSED,
        },
        # Work in progress may still finish; a new use waits for CLOSED and starts over from there.
        _L.CLOSING: {
            _V.USE: _L.CLOSING,
            _V.RESOLVED: _L.CLOSING,
            _V.OPENED: _L.CLOSING,
            _V.HANDSHAKE_DONE: _L.CLOSING,
            _V.CLOSE: _L.CLOSING,
            _V.CLOSED: _L.CLOSED,
            _V.SESSION_LOST: _L.CLOSING,
            _V.TRANSPORT_LOST: _L.CLOSING,
            _V.AUTH_NEEDED: _L.CLOSING,
            _V.FAILED: _L.CLOSING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.CLOSED,
        },
        # Closed permanently by its owner, which had leased it: a later use must not open it again.
        _L.RETIRING: {
            _V.RESOLVED: _L.RETIRING,
            _V.OPENED: _L.RETIRING,
            _V.HANDSHAKE_DONE: _L.RETIRING,
            _V.CLOSE: _L.RETIRING,
            _V.CLOSED: _L.RETIRED,
            _V.SESSION_LOST: _L.RETIRING,
            _V.TRANSPORT_LOST: _L.RETIRING,
            _V.AUTH_NEEDED: _L.RETIRING,
            _V.FAILED: _L.RETIRING,
            _V.RETIRE: _L.RETIRING,
            _V.ABANDONED: _L.RETIRED,
        },
        _L.RETIRED: {
            _V.CLOSE: _L.RETIRING,
            _V.SESSION_LOST: _L.RETIRED,
            _V.TRANSPORT_LOST: _L.RETIRED,
            _V.AUTH_NEEDED: _L.RETIRED,
            _V.RETIRE: _L.RETIRED,
            _V.ABANDONED: _L.RETIRED,
        },
    },
)

_P, _Y = GatewayState, GatewayEvent

GATEWAY: Lifecycle[GatewayState, GatewayEvent] = Lifecycle(
    "gateway",
    _P.SERVING,
    {
        _P.SERVING: {_Y.LEAVE: _P.LEAVING, _Y.CUT: _P.CUTTING},
        _P.LEAVING: {_Y.LEAVE: _P.LEAVING, _Y.DRAIN: _P.DRAINING, _Y.CUT: _P.CUTTING},
        # A second drain waits with the first; a cut is possible at any time; no transition leads back.
        _P.DRAINING: {_Y.LEAVE: _P.DRAINING, _Y.DRAIN: _P.DRAINING, _Y.CUT: _P.CUTTING},
        _P.CUTTING: {_Y.LEAVE: _P.CUTTING, _Y.DRAIN: _P.CUTTING, _Y.CUT: _P.CUTTING},
    },
)

_G, _W = GatewaySessionState, GatewaySessionEvent

GATEWAY_SESSION: Lifecycle[GatewaySessionState, GatewaySessionEvent] = Lifecycle(
    "gateway session",
    _G.STARTING,
    {
        _G.STARTING: {
            _W.STARTED: _G.OPEN,
            _W.DELETED: _G.DRAINING,
            _W.EXPIRED: _G.DRAINING,
            _W.HANDED_OVER: _G.DETACHED,
        },
        _G.OPEN: {
            _W.DELETED: _G.DRAINING,
            _W.EXPIRED: _G.DRAINING,
            _W.HANDED_OVER: _G.DETACHED,
        },
        # Once it is ending, further reasons to end have no effect, and it is not handed over any more.
        _G.DRAINING: {
            _W.STARTED: _G.DRAINING,
            _W.DELETED: _G.DRAINING,
            _W.EXPIRED: _G.DRAINING,
            _W.HANDED_OVER: _G.DRAINING,
            _W.DRAINED: _G.ENDED,
        },
        # Left for another process, which reads the record and starts over.
        _G.DETACHED: {
            _W.STARTED: _G.DETACHED,
            _W.DELETED: _G.ENDED,
            _W.EXPIRED: _G.ENDED,
            _W.HANDED_OVER: _G.DETACHED,
        },
        _G.ENDED: {
            _W.STARTED: _G.ENDED,
            _W.DELETED: _G.ENDED,
            _W.EXPIRED: _G.ENDED,
            _W.HANDED_OVER: _G.ENDED,
        },
    },
)

_C, _X = CircuitState, CircuitEvent

CIRCUIT: Lifecycle[CircuitState, CircuitEvent] = Lifecycle(
    "circuit",
    _C.CLOSED,
    {
        _C.CLOSED: {_X.SUCCEEDED: _C.CLOSED, _X.FAILED: _C.CLOSED, _X.FAILED_TOO_OFTEN: _C.OPEN},
        # Calls that began before it opened may still end, with or without an answer.
        _C.OPEN: {
            _X.SUCCEEDED: _C.OPEN,
            _X.FAILED: _C.OPEN,
            _X.FAILED_TOO_OFTEN: _C.OPEN,
            _X.RESTED: _C.HALF_OPEN,
        },
        _C.HALF_OPEN: {_X.SUCCEEDED: _C.CLOSED, _X.FAILED: _C.OPEN, _X.FAILED_TOO_OFTEN: _C.OPEN},
    },
)
