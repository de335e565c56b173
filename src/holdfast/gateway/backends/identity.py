"""The identity of one server, from its handshake: info, capabilities, `_meta`, members of no specification.

Frozen, and limited in size: it goes into the handshake of every client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.core.eras import SERVER_INFO
from holdfast.core.handshake import Handshake
from holdfast.core.values import members
from holdfast.links.codec import weight

IDENTITY_BYTES = 128 * 1024  # of each part in memory; icons may be `data:` URIs
LEVELS = 50  # of nesting: far beyond real capabilities
_KNOWN = frozenset(
    {
        "protocolVersion", "supportedVersions", "capabilities", "serverInfo", "instructions", "_meta", "resultType",
        "ttlMs", "cacheScope",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The parts of one handshake that clients get."""

    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Name, version, title, icons and what else is in `serverInfo`; empty: nothing is known."""
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, handshake: Handshake, left_out: list[str]) -> "ServerIdentity":
        """What is too large is left out; of capabilities, the names stay."""
        meta = {key: value for key, value in members(handshake.result.get("_meta")).items() if key != SERVER_INFO}
        others = {key: value for key, value in handshake.result.items() if key not in _KNOWN}
        capabilities: Mapping[str, Any] = handshake.capabilities
        if not _fits(capabilities):
            left_out.append(f"its capabilities are over {IDENTITY_BYTES} bytes or {LEVELS} levels")
            names = [name for name in capabilities if len(name) <= 100][:100]
            capabilities = {name: dict[str, Any]() for name in names}
        kept: list[Mapping[str, Any]] = []
        for what, part in (("serverInfo", handshake.server_info or {}), ("_meta", meta), ("unknown members", others)):
            if not _fits(part):
                left_out.append(f"{what} of its handshake: over {IDENTITY_BYTES} bytes or {LEVELS} levels")
                part = {}
            kept.append(part)
        return cls(kept[0], capabilities, kept[1], kept[2])

    def to_json(self) -> dict[str, Any]:
        return {
            "info": dict(self.info),
            "capabilities": dict(self.capabilities),
            "meta": dict(self.meta),
            "others": dict(self.others),
        }

    @classmethod
    def from_json(cls, value: object) -> "ServerIdentity":
        known = members(value)
        return cls(*(members(known.get(name)) for name in ("info", "capabilities", "meta", "others")))

    def declares(self, name: str) -> bool:
        """Is this one of its capabilities, extensions or experimental capabilities?"""
        own = self.capabilities
        return name in own or name in members(own.get("extensions")) or name in members(own.get("experimental"))


def _fits(value: Mapping[str, Any]) -> bool:
    return weight(dict(value)) <= IDENTITY_BYTES and _depth_within(value, LEVELS)


def _depth_within(value: object, levels: int) -> bool:
    """Level by level, so that no nesting is too deep for this check itself."""
    layer: list[object] = [value]
    for _ in range(levels):
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(cast("dict[str, object]", each).values())
            elif isinstance(each, list):
                inner.extend(cast("list[object]", each))
        if not inner:
            return True
        layer = inner
    return False
