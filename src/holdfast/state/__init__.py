"""Typed session state and companions, for authors of servers. Owns identity and versions; refuses last-write-wins."""

from typing import TYPE_CHECKING, Any

from holdfast.state.companions.companion import Companion, CompanionOptions
from holdfast.state.companions.insight import Insight
from holdfast.state.identity import ForEveryone, From2025Session, FromArgument, FromMeta, FromPrincipal
from holdfast.state.model import SessionState, migrate
from holdfast.state.scopes import RequestScope, ServerScope, nested_scope
from holdfast.state.session import Session

if TYPE_CHECKING:
    from holdfast.state.companions.companions import Companions, Needs
    from holdfast.state.frameworks.middleware import StateMiddleware
    from holdfast.state.sessions import Sessions

__all__ = [
    "Companion",
    "CompanionOptions",
    "Companions",
    "ForEveryone",
    "From2025Session",
    "FromArgument",
    "FromMeta",
    "FromPrincipal",
    "Insight",
    "Needs",
    "RequestScope",
    "ServerScope",
    "Session",
    "SessionState",
    "Sessions",
    "StateMiddleware",
    "migrate",
    "nested_scope",
]


def __getattr__(name: str) -> Any:
    """What needs the SDK is imported when it is used."""
    if name in ("Companions", "Needs"):
        from holdfast.state.companions import companions

        return getattr(companions, name)
    if name == "Sessions":
        from holdfast.state.sessions import Sessions

        return Sessions
    if name == "StateMiddleware":
        from holdfast.state.frameworks.middleware import StateMiddleware

        return StateMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
