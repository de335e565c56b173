"""Typed session state and companions for the authors of MCP servers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.state.companions.companion import Companion, Step
from holdfast.state.companions.genealogy import Node
from holdfast.state.companions.insight import Convergence, Insight
from holdfast.state.companions.record import CompanionOptions
from holdfast.state.identity import (
    ForEveryone,
    From2025Session,
    FromArgument,
    FromMeta,
    FromPrincipal,
    IdentitySource,
    Per,
)
from holdfast.state.log import HistoryEntry, Log
from holdfast.state.model import SessionState, migrate
from holdfast.state.registry import SessionPage
from holdfast.state.scopes import RequestScope, ServerScope, nested_scope
from holdfast.state.session import Session

if TYPE_CHECKING:
    from holdfast.state.companions.companions import Companions
    from holdfast.state.sessions import Sessions

__all__ = [
    "Companion",
    "CompanionOptions",
    "Companions",
    "Convergence",
    "ForEveryone",
    "From2025Session",
    "FromArgument",
    "FromMeta",
    "FromPrincipal",
    "HistoryEntry",
    "IdentitySource",
    "Insight",
    "Log",
    "Node",
    "Per",
    "RequestScope",
    "ServerScope",
    "Session",
    "SessionPage",
    "SessionState",
    "Sessions",
    "Step",
    "migrate",
    "nested_scope",
]


_LAZY = {
    "Companions": "holdfast.state.companions.companions",
    "Sessions": "holdfast.state.sessions",
}


def __getattr__(name: str) -> Any:
    """Import names that need the SDK when they are used."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
