"""What the results of a list have beside its items: how long it may be kept, `_meta`, members of no specification.

It owns how these are merged: of the pages of one server's list, and of the lists of several servers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.eras import SERVER_INFO
from holdfast.core.values import members
from holdfast.links.codec import weight

OTHERS = "dev.holdfast/others"
"""In `_meta` of a merged list: values of servers that another server's value of the same key hides, by server."""
MEMBERS_BYTES = 64 * 1024  # of one list beside its items: they go with every answer
LONGEST_TTL = 10**12  # milliseconds; what is more is no time
_KNOWN = frozenset({"nextCursor", "resultType", "ttlMs", "cacheScope", "_meta"})


@dataclass(frozen=True, slots=True)
class ListMembers:
    """The members of one server's list."""

    ttl_ms: int | None = None
    public: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, result: Mapping[str, Any], key: str) -> "ListMembers":
        """Of one page, whose items are under `key`."""
        ttl, meta = result.get("ttlMs"), dict(members(result.get("_meta")))
        meta.pop(SERVER_INFO, None)
        if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 <= ttl <= LONGEST_TTL:
            ttl = None
        others = {name: value for name, value in result.items() if name not in _KNOWN and name != key}
        return cls(None if ttl is None else int(ttl), result.get("cacheScope") == "public", meta, others)

    def followed_by(self, page: "ListMembers") -> "ListMembers":
        """With those of the next page; what is in both is that of the first."""
        ttl = None if self.ttl_ms is None or page.ttl_ms is None else min(self.ttl_ms, page.ttl_ms)
        return ListMembers(ttl, self.public and page.public, {**page.meta, **self.meta}, {**page.others, **self.others})

    @property
    def is_too_large(self) -> bool:
        return weight(self.meta) + weight(self.others) > MEMBERS_BYTES

    def without_content(self) -> "ListMembers":
        return ListMembers(self.ttl_ms, self.public)

    def to_json(self) -> dict[str, Any]:
        return {"meta": dict(self.meta), "others": dict(self.others)}

    @classmethod
    def from_json(cls, value: object) -> "ListMembers":
        """What a store kept of it; how long it may be kept was of another time."""
        known = members(value)
        return cls(None, False, members(known.get("meta")), members(known.get("others")))


def merged(lists: Iterable[tuple[str, ListMembers]]) -> dict[str, Any]:
    """`_meta` and other members of the lists of several servers, for one answer. The first server's value is taken."""
    result: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    hidden: dict[str, dict[str, Any]] = {}
    for server, each in lists:
        for name, value in each.others.items():
            result.setdefault(name, value)
        for name, value in each.meta.items():
            if meta.setdefault(name, value) != value:
                hidden.setdefault(server, {})[name] = value
    if hidden:
        meta[OTHERS] = hidden
    return {**result, "_meta": meta} if meta else result
