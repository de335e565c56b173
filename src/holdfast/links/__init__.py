"""A connection to one server, over HTTP, to a program or to an object, that recovers from faults automatically.

It carries JSON-RPC. Tools are handled by the packages above.
"""

from typing import TYPE_CHECKING, Any

from holdfast.core.verdicts import Verdict, VerdictRule
from holdfast.links.calls.handlers import OnNotification, OnProgress, OnRequest
from holdfast.links.lifecycle.reseed import ReseedContext
from holdfast.links.limits import Limits
from holdfast.links.link import Link
from holdfast.links.memory.http import HttpMemory
from holdfast.links.memory.ids import IdMemory
from holdfast.links.memory.store import Memory, StoreMemory
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.target import TLS, CommandTarget, HttpTarget, ObjectTarget

if TYPE_CHECKING:
    from holdfast.links.sdk import LinkDispatcher, LinkTransport

__all__ = [
    "TLS",
    "CommandTarget",
    "HttpMemory",
    "HttpTarget",
    "IdMemory",
    "Limits",
    "Link",
    "LinkDispatcher",
    "LinkStatistics",
    "LinkTransport",
    "Memory",
    "ObjectTarget",
    "OnNotification",
    "OnProgress",
    "OnRequest",
    "Options",
    "ReseedContext",
    "StoreMemory",
    "Verdict",
    "VerdictRule",
]


def __getattr__(name: str) -> Any:
    """Import what needs the SDK's client side when it is used: that import takes half a second."""
    if name in ("LinkDispatcher", "LinkTransport"):
        from holdfast.links import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
