"""Holdfast, the session layer for MCP: sessions that stay alive, isolated and recoverable."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.client import Callbacks, Replaced, Run, Server, close_kept_links, current_run, load_servers, run
from holdfast.core.clock import Clock, ManualClock
from holdfast.core.models import ANONYMOUS, Claim, Gap, LogEntry, Notice, Page, Principal, Reaped, Record
from holdfast.core.values import JSON
from holdfast.errors import (
    AnswerTimeout,
    BadAnswer,
    Busy,
    CallbackFailed,
    ChildDied,
    CircuitOpen,
    ConfigError,
    Conflict,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    Ended,
    ErrorAnswer,
    Forbidden,
    HoldfastError,
    LeaseClosed,
    LimitReached,
    NoBackend,
    NotFound,
    OutcomeUnknown,
    PoolFull,
    Rejected,
    RunsElsewhere,
    SessionExpired,
    SessionReplaced,
    StartTimeout,
    StoreDown,
    Unauthorized,
    Unavailable,
    UnstorableValue,
    UsageError,
    WriteUnsettled,
    WrongPhase,
)
from holdfast.links import (
    TLS,
    CommandTarget,
    HttpMemory,
    HttpTarget,
    Limits,
    Link,
    LinkStatistics,
    Memory,
    ObjectTarget,
    Options,
    Reseeding,
    StoreMemory,
)
from holdfast.stores import Store, open_store, update

if TYPE_CHECKING:
    from holdfast.links import LinkDispatcher, LinkTransport
    from holdfast.state import (
        Companion,
        CompanionOptions,
        Companions,
        ForEveryone,
        From2025Session,
        FromArgument,
        FromMeta,
        FromPrincipal,
        Insight,
        Needs,
        RequestScope,
        ServerScope,
        Session,
        Sessions,
        SessionState,
        StateMiddleware,
        migrate,
        nested_scope,
    )

__version__ = "0.1.0"

__all__ = [
    "ANONYMOUS",
    "JSON",
    "TLS",
    "AnswerTimeout",
    "BadAnswer",
    "Busy",
    "CallbackFailed",
    "Callbacks",
    "ChildDied",
    "CircuitOpen",
    "Claim",
    "Clock",
    "CommandTarget",
    "Companion",
    "CompanionOptions",
    "Companions",
    "ConfigError",
    "Conflict",
    "ConnectFailed",
    "ConnectionLost",
    "CorruptRecord",
    "Ended",
    "ErrorAnswer",
    "ForEveryone",
    "Forbidden",
    "From2025Session",
    "FromArgument",
    "FromMeta",
    "FromPrincipal",
    "Gap",
    "HoldfastError",
    "HttpMemory",
    "HttpTarget",
    "Insight",
    "LeaseClosed",
    "LimitReached",
    "Limits",
    "Link",
    "LinkDispatcher",
    "LinkStatistics",
    "LinkTransport",
    "LogEntry",
    "ManualClock",
    "Memory",
    "Needs",
    "NoBackend",
    "NotFound",
    "Notice",
    "ObjectTarget",
    "Options",
    "OutcomeUnknown",
    "Page",
    "PoolFull",
    "Principal",
    "Reaped",
    "Record",
    "Rejected",
    "Replaced",
    "RequestScope",
    "Reseeding",
    "Run",
    "RunsElsewhere",
    "Server",
    "ServerScope",
    "Session",
    "SessionExpired",
    "SessionReplaced",
    "SessionState",
    "Sessions",
    "StartTimeout",
    "StateMiddleware",
    "Store",
    "StoreDown",
    "StoreMemory",
    "Unauthorized",
    "Unavailable",
    "UnstorableValue",
    "UsageError",
    "WriteUnsettled",
    "WrongPhase",
    "close_kept_links",
    "current_run",
    "load_servers",
    "migrate",
    "nested_scope",
    "open_store",
    "run",
    "update",
]


def __getattr__(name: str) -> Any:
    """What needs the SDK is imported when it is used."""
    if name in ("LinkDispatcher", "LinkTransport"):
        from holdfast import links

        return getattr(links, name)
    if not name.startswith("_"):
        state = import_module("holdfast.state")
        if name in state.__all__:
            return getattr(state, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
