"""Typed session state and companions, for authors of servers. Owns identity and versions; refuses last-write-wins."""

from typing import TYPE_CHECKING, Any

from holdfast.state.identity import ForEveryone, From2025Session, FromArgument, FromMeta, FromPrincipal
from holdfast.state.model import SessionState, migrate
from holdfast.state.scopes import RequestScope, ServerScope, nested_scope
from holdfast.state.session import Session

if TYPE_CHECKING:
    from holdfast.state.middleware import StateMiddleware
    from holdfast.state.sessions import Sessions

__all__ = [
    "ForEveryone",
    "From2025Session",
    "FromArgument",
    "FromMeta",
    "FromPrincipal",
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
    if name == "Sessions":
        from holdfast.state.sessions import Sessions

        return Sessions
    if name == "StateMiddleware":
        from holdfast.state.middleware import StateMiddleware

        return StateMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
