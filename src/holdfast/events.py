"""Events, as frozen dataclasses: the source of logs, audit trails, metrics and spans.

A sink is any callable that takes an event; without a sink no event is created.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


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
class StoreAnswered(_StoreEvent):
    """An operation of a store is done. `at` is when it began; `error` the class of the error that it raised, refusals
    included."""

    operation: str
    seconds: float
    error: str | None


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
class RequestSent:
    """A link's request has ended, with its replays; `outcome` is one of docs/observability.md."""

    at: float
    """When it began."""
    server: str
    method: str
    name: str | None
    """The tool or prompt that it names."""
    seconds: float
    outcome: str
    code: int | None
    """The code of a JSON-RPC error."""
    error: str | None
    """The class of the error that it raised."""
    attempts: int
    session: str | None
    era: str | None
    version: str | None
    transport: str
    """`tcp`, `pipe` or `inproc`, as OpenTelemetry names them."""
    trace: str | None
    """The `traceparent` of its span."""


@dataclass(frozen=True, slots=True)
class RequestServed:
    """The gateway has dealt with a request of a client: it is answered, or its client has gone."""

    at: float
    """When it came."""
    method: str
    name: str | None
    """The tool or prompt that it names, as the client knows it."""
    backend: str | None
    """The server that it went to, the last one if there were several."""
    seconds: float
    outcome: str
    code: int | None
    """The code of a JSON-RPC error."""
    error: str | None
    """The class of the error that it was answered for."""
    session: str | None
    """The name of the session's record, which does not give access to it."""
    principal: str
    client: str
    """The client's name and version, as it gives them."""
    id: str | int
    era: str
    version: str
    transport: str
    """`tcp` or `pipe`."""
    trace: str | None
    """The `traceparent` of its span."""
    arguments: Mapping[str, Any] | None = field(repr=False)
    """A tool's or prompt's arguments, values included: for sinks that show only their names and sizes."""


@dataclass(frozen=True, slots=True)
class CallerRefused:
    """The gateway refused an HTTP request before it was served: for its token, host, origin, session or form."""

    at: float
    status: int
    reason: str
    principal: str | None
    address: str | None
    """The address that the connection came from."""


@dataclass(frozen=True, slots=True)
class ConfigurationRead:
    """The gateway has read its file, at the start or again; `error`, the class of the error for which it was
    not taken over."""

    at: float
    digest: str
    """The beginning of the SHA-256 of the file."""
    error: str | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """Names of servers; of `changed` also parts of the settings."""


@dataclass(frozen=True, slots=True)
class SessionAdministered:
    """Somebody with access to the gateway's store did something to a client's session, as `holdfast sessions end`."""

    at: float
    principal: str
    """Who did it: the user of the machine."""
    action: str
    session: str
    done: bool


@dataclass(frozen=True, slots=True)
class GatewayStarted:
    """A gateway process serves."""

    at: float
    process: str
    address: str
    version: str


@dataclass(frozen=True, slots=True)
class GatewayStopped:
    """A gateway process has stopped serving."""

    at: float
    process: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RunBegan:
    """An agent's run began; `durable` if it has a store."""

    at: float
    run: str
    principal: str
    durable: bool


@dataclass(frozen=True, slots=True)
class RunEnded:
    """An agent's run was left; its sessions ended unless it is durable."""

    at: float
    run: str
    principal: str
    seconds: float
    ended: bool


@dataclass(frozen=True, slots=True)
class TurnTaken:
    """A call, or a write of none, got the sole right to change what it takes, after `waited` seconds."""

    at: float
    kinds: str
    """The kinds of records that it takes, with commas between them."""
    waited: float


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """A call gave up waiting for its turn after `waited` seconds; nothing was done."""

    at: float
    kinds: str
    waited: float


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
    | StoreAnswered
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
    | RequestSent
    | RequestServed
    | CallerRefused
    | ConfigurationRead
    | SessionAdministered
    | GatewayStarted
    | GatewayStopped
    | RunBegan
    | RunEnded
    | TurnTaken
    | TurnRefused
    | ServerCounted
    | CompanionStepped
    | CompanionRefused
)
Sink: TypeAlias = Callable[[Event], None]
