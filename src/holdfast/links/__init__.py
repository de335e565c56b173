"""One live, self-healing connection to one server: HTTP, or an object in this process.

Owns recovery and the door to the SDK's client side; refuses to know tools.
"""

from holdfast.links.inbound import OnNotification, OnProgress, OnRequest
from holdfast.links.limits import Limits
from holdfast.links.link import Link
from holdfast.links.memory import Memory, StoreMemory
from holdfast.links.memory_http import HttpMemory
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.reseed import Reseeding
from holdfast.links.sdk import LinkDispatcher, LinkTransport
from holdfast.links.target import TLS, HttpTarget, ObjectTarget

__all__ = [
    "TLS",
    "HttpMemory",
    "HttpTarget",
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
    "Reseeding",
    "StoreMemory",
]
