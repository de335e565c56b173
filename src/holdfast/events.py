"""Events, as frozen dataclasses: the source of logs, audit trails, metrics and spans.

A sink is any callable that takes an event; without a sink no event is created.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class _StoreEvent:
    """Of a store."""

    at: float
    store: str


@dataclass(frozen=True, slots=True)
class StoreOpened(_StoreEvent):
    """A store is ready; `store` is its address without secrets."""

    schema: int


@dataclass(frozen=True, slots=True)
class StoreMigrated(_StoreEvent):
    """A store's schema was brought up to date."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class StoreClosed(_StoreEvent):
    """A store was closed."""


@dataclass(frozen=True, slots=True)
class RecordsReaped(_StoreEvent):
    """Expired records and old tombstones were removed."""

    expired: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class ListenerFailed(_StoreEvent):
    """Notices can't be read; listeners get a `Gap` once they can be read again."""

    why: str


@dataclass(frozen=True, slots=True)
class StoreWarned(_StoreEvent):
    """A store works, but its settings may lose records; `remedy` names what to change."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _ServerEvent:
    """Of a link to a server."""

    at: float
    server: str


@dataclass(frozen=True, slots=True)
class LinkOpened(_ServerEvent):
    """A link has its connection pool, child or object."""


@dataclass(frozen=True, slots=True)
class HandshakeDone(_ServerEvent):
    """A generation is ready; `adopted` if it continues a saved session, without a round trip."""

    generation: int
    era: str
    version: str
    session: str | None
    adopted: bool
    why: str = ""
    """The era of a server was decided; `why` is the reason."""


@dataclass(frozen=True, slots=True)
class SessionNotOffered(_ServerEvent):
    """A server that was expected to keep state offers no session. Reported once per server."""

    what: str


@dataclass(frozen=True, slots=True)
class LinkFailed(_ServerEvent):
    """A link did not come up, for the first time or again; the next call tries again."""

    phase: str
    why: str


@dataclass(frozen=True, slots=True)
class LinkClosed(_ServerEvent):
    """A link was closed; `ended` if its session was ended at the server, `failures` counts the steps of closing that
    failed."""

    session: str | None
    ended: bool
    failures: int


@dataclass(frozen=True, slots=True)
class LinkSessionReplaced(_ServerEvent):
    """The server lost a session and a new one began. `kept_state`: the old one had answered an unsafe call."""

    old: str | None
    new: str | None
    generation: int
    kept_state: bool
    reseeded: bool


@dataclass(frozen=True, slots=True)
class CallReplayed(_ServerEvent):
    """A call is sent again; `why` is the verdict that allowed it."""

    method: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class StreamDropped(_ServerEvent):
    """The server's own stream ended and is being reopened; `resumable` if no message should be missing."""

    why: str
    resumable: bool


@dataclass(frozen=True, slots=True)
class StrayMessage(_ServerEvent):
    """A message arrived that belongs to no call, or that a handler could not process."""

    what: str


@dataclass(frozen=True, slots=True)
class MemoryFailed(_ServerEvent):
    """A link's memory could not be read or written; the link continues without it."""

    why: str


@dataclass(frozen=True, slots=True)
class ChildStarted(_ServerEvent):
    """A server's program was started."""

    pid: int


@dataclass(frozen=True, slots=True)
class ChildEnded(_ServerEvent):
    """A server's program ended; `exit_code` is negative for a signal, `expected` if we closed it."""

    pid: int
    exit_code: int | None
    expected: bool


@dataclass(frozen=True, slots=True)
class ChildStderr(_ServerEvent):
    """A line that a server's program wrote to stderr."""

    pid: int
    line: str


@dataclass(frozen=True, slots=True)
class CircuitChanged(_ServerEvent):
    """The circuit of a server changed: calls are rejected, or sent again."""

    state: str


@dataclass(frozen=True, slots=True)
class _BackendEvent:
    """Of a backend, and of a gateway session (None: of all)."""

    at: float
    backend: str
    session: str | None


@dataclass(frozen=True, slots=True)
class BackendStarted(_BackendEvent):
    """A backend's link is up for a gateway session (None: for all); `adopted` if it continues a saved session."""

    seconds: float
    era: str
    adopted: bool


@dataclass(frozen=True, slots=True)
class BackendFailed(_BackendEvent):
    """A backend did not start, or did not answer its health check."""

    why: str


@dataclass(frozen=True, slots=True)
class BackendClosed(_BackendEvent):
    """A backend's link was closed, after `lifetime` seconds; `reason` as the session's."""

    reason: str
    lifetime: float


@dataclass(frozen=True, slots=True)
class BackendSessionReplaced(_BackendEvent):
    """A backend lost its session for a gateway session, and a new one began."""

    kept_state: bool


@dataclass(frozen=True, slots=True)
class BackendChanged:
    """A backend is up or down for new sessions."""

    at: float
    backend: str
    state: str
    why: str | None


@dataclass(frozen=True, slots=True)
class BackendItemLeftOut:
    """A backend listed something that can't be offered to clients; `what` names its place and the reason."""

    at: float
    backend: str
    what: str


@dataclass(frozen=True, slots=True)
class GatewaySessionBegan:
    """A client's session began. `session` names its record and does not give access to it."""

    at: float
    session: str
    principal: str
    era: str


@dataclass(frozen=True, slots=True)
class GatewaySessionEnded:
    """A client's session ended, or was left for another process to continue; `reason` says which."""

    at: float
    session: str
    principal: str
    reason: str
    lifetime: float


@dataclass(frozen=True, slots=True)
class ServerCounted:
    """A counter in a server's own scope has grown."""

    at: float
    scope: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class CompanionStepped:
    """A companion made a step; `seconds` is the time it had spent in the phase that it left, if any."""

    at: float
    kind: str
    companion: str
    step: str
    was: str
    phase: str
    iteration: int
    seconds: float | None
    converged: bool


@dataclass(frozen=True, slots=True)
class CompanionRefused:
    """A tool was called in a phase that does not allow it."""

    at: float
    kind: str
    companion: str
    tool: str
    phase: str


Event: TypeAlias = (
    StoreOpened
    | StoreMigrated
    | StoreClosed
    | StoreWarned
    | RecordsReaped
    | ListenerFailed
    | LinkOpened
    | HandshakeDone
    | SessionNotOffered
    | LinkFailed
    | LinkClosed
    | LinkSessionReplaced
    | CallReplayed
    | StreamDropped
    | StrayMessage
    | MemoryFailed
    | CircuitChanged
    | ChildStarted
    | ChildEnded
    | ChildStderr
    | BackendStarted
    | BackendFailed
    | BackendClosed
    | BackendSessionReplaced
    | BackendChanged
    | BackendItemLeftOut
    | GatewaySessionBegan
    | GatewaySessionEnded
    | ServerCounted
    | CompanionStepped
    | CompanionRefused
)
Sink: TypeAlias = Callable[[Event], None]
