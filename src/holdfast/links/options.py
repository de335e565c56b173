"""The options and statistics of a link. Options are frozen; a wrong value raises at once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.eras import Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.core.verdicts import VerdictRule
from holdfast.errors import ConfigError
from holdfast.events import Sink
from holdfast.links.calls.handlers import OnNotification, OnRequest
from holdfast.links.lifecycle.reseed import ReseedContext
from holdfast.links.limits import Limits
from holdfast.links.memory.guarded import guarded
from holdfast.links.memory.store import Memory
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.links.wires.http.pool import SharedPool

Reseed: TypeAlias = Callable[[ReseedContext], Awaitable[bool | None]]
"""Awaited when a session was replaced, before any replay.
Returns True if it restored what was lost, so that calls may continue.
"""
EraChoice: TypeAlias = Literal["auto", "2025", "2026"]

CLIENT_INFO: Mapping[str, str] = {"name": "holdfast", "version": __version__}


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a link."""

    era: EraChoice = "auto"
    prefer: Literal["2025", "2026"] | None = None
    """The era to use where the server offers both. None: 2025, which has sessions; with `stateful=False` 2026."""
    stateful: bool = True
    """False: no call relies on state in the server, so nothing is lost with a session."""
    capabilities: Mapping[str, Any] = field(default_factory=_nothing)
    """What the server may request of us; goes with `on_request`."""
    client_info: Mapping[str, Any] = field(default_factory=lambda: CLIENT_INFO)
    principal: Principal = ANONYMOUS
    own_circuit: bool = False
    """Share the circuit only with links of the same principal, because requests of one principal may be what makes the
    server fail."""
    memory: Memory | None = None
    limits: Limits = field(default_factory=Limits)
    verdict_rules: Sequence[VerdictRule] = ()
    """Additional rules for the verdict table, tried first."""
    stream: bool = True
    """Open the server's own stream in 2025; otherwise `Link.listen()` opens it when needed."""
    pool: "SharedPool | None" = None
    """Connections that this link shares with others; None: it has its own."""
    known_json: bool = False
    """For gateways, which pass messages on:
    what is sent is known to be JSON and is not checked, and received numbers keep every digit (those that Python would
    change are `core.exact.Number`).
    """
    log_level: str | None = None
    on_request: OnRequest | None = None
    on_notification: OnNotification | None = None
    on_event: Sink | None = None
    wants_requests: Callable[[], bool] | None = None
    """Whether `on_event` wants a `RequestSent` for each request; None: it does."""
    reseed: Reseed | None = None
    confirm_losses: bool = False
    """For gateways, whose error must still reach the client:
    a loss stays pending until `Losses.reported()` confirms it. Otherwise raising `SessionReplaced` counts as the
    report.
    """
    clock: Clock = SYSTEM

    def __post_init__(self) -> None:
        if self.era not in ("auto", "2025", "2026"):
            raise ConfigError(f"era must be 'auto', '2025' or '2026', not {self.era!r:.40}")
        if not self.principal:
            raise ConfigError("principal= is empty", remedy="give the caller's name, or leave it out")
        if self.memory is not None:
            object.__setattr__(self, "memory", guarded(self.memory, self.principal))
        if self.prefer not in (None, "2025", "2026"):
            raise ConfigError(f"prefer must be '2025', '2026' or None, not {self.prefer!r:.40}")

    @property
    def pinned(self) -> Era | None:
        """The pinned era; None with era='auto'."""
        return None if self.era == "auto" else Era(self.era)

    @property
    def prefers(self) -> Era:
        """The era to use where the server offers both."""
        return Era(self.prefer or ("2025" if self.stateful else "2026"))


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Counters of a link since it was created."""

    calls: int = 0
    opens: int = 0
    handshakes: int = 0
    adoptions: int = 0
    replacements: int = 0
    replays: int = 0
    unknown_outcomes: int = 0
    close_failures: int = 0
    strays: int = 0
    in_flight: int = 0
    era: str | None = None
    """The era of the latest handshake."""
    why: str | None = None
    """Why that era."""
