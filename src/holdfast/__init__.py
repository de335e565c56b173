"""Holdfast, the session layer for MCP: sessions that stay alive, isolated and recoverable.

The names that users type first are here; the others are in `holdfast.errors`, `holdfast.events`, `holdfast.links`,
`holdfast.stores`, `holdfast.state`, `holdfast.integrations` and `holdfast.testing`. A name is imported from its module
when it is first used: `import holdfast` costs a few milliseconds, and an unknown name imports nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.version import __version__ as __version__

if TYPE_CHECKING:
    from holdfast import errors, events, links, state, stores
    from holdfast.client.callbacks import Callbacks
    from holdfast.client.declaration import ServerDeclaration
    from holdfast.client.files import load_servers
    from holdfast.client.runs.handlers import Replacement
    from holdfast.client.runs.pool import close_kept_links
    from holdfast.client.runs.run import Run
    from holdfast.client.runs.scope import current_run, run
    from holdfast.client.server import Server
    from holdfast.core.models import Principal
    from holdfast.errors import (
        HoldfastError,
        OutcomeUnknown,
        Rejected,
        SessionReplaced,
        Unavailable,
        UsageError,
    )
    from holdfast.links.link import Link
    from holdfast.observation import observe
    from holdfast.state.companions.companion import Companion
    from holdfast.state.companions.companions import Companions
    from holdfast.state.model import SessionState
    from holdfast.state.session import Session
    from holdfast.state.sessions import Sessions
    from holdfast.stores import Store, open_store

__all__ = [
    "Callbacks",
    "Companion",
    "Companions",
    "HoldfastError",
    "Link",
    "OutcomeUnknown",
    "Principal",
    "Rejected",
    "Replacement",
    "Run",
    "Server",
    "ServerDeclaration",
    "Session",
    "SessionReplaced",
    "SessionState",
    "Sessions",
    "Store",
    "Unavailable",
    "UsageError",
    "close_kept_links",
    "current_run",
    "errors",
    "events",
    "links",
    "load_servers",
    "observe",
    "open_store",
    "run",
    "state",
    "stores",
]

_HOMES = {
    "holdfast.client.callbacks": ("Callbacks",),
    "holdfast.client.declaration": ("ServerDeclaration",),
    "holdfast.client.files": ("load_servers",),
    "holdfast.client.runs.handlers": ("Replacement",),
    "holdfast.client.runs.pool": ("close_kept_links",),
    "holdfast.client.runs.run": ("Run",),
    "holdfast.client.runs.scope": ("current_run", "run"),
    "holdfast.client.server": ("Server",),
    "holdfast.core.models": ("Principal",),
    "holdfast.errors": (
        "HoldfastError",
        "OutcomeUnknown",
        "Rejected",
        "SessionReplaced",
        "Unavailable",
        "UsageError",
    ),
    "holdfast.links.link": ("Link",),
    "holdfast.observation": ("observe",),
    "holdfast.state.companions.companion": ("Companion",),
    "holdfast.state.companions.companions": ("Companions",),
    "holdfast.state.model": ("SessionState",),
    "holdfast.state.session": ("Session",),
    "holdfast.state.sessions": ("Sessions",),
    "holdfast.stores": ("Store", "open_store"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = frozenset({"errors", "events", "integrations", "links", "state", "stores", "testing"})


def __getattr__(name: str) -> Any:
    if (module := _MODULE_OF.get(name)) is not None:
        value = getattr(import_module(module), name)
    elif name in _PACKAGES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
