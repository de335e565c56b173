"""URIs that a session has seen, in lists or not: of resource links, embedded resources, and `ui://` in `_meta`.

It owns which backends have shown each, for as long as this process serves the session, within a number of bytes. What
went is found again by asking the servers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from holdfast.core.values import members

SEEN_BYTES = 256 * 1024  # of one session: some thousand URIs; the ones not used for the longest time go
PER_ENTRY = 200  # bytes that an entry takes beside its URI
LONGEST_URI = 8192  # characters: as much as web servers take
CALLERS = 256  # without a session, whose URIs are kept
META_VALUES = 200  # of one `_meta` that are looked at
SHOWS_URIS = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}
"""Methods whose results may show URIs, and where."""


class SeenUris:
    """What one session has seen."""

    __slots__ = ("_backends", "_size")

    def __init__(self) -> None:
        self._backends: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._backends)

    def add(self, uris: Iterable[str], backend: str) -> None:
        """A backend has shown these."""
        for uri in uris:
            known = self._backends.pop(uri, None)
            if known is None:
                self._size += len(uri) + PER_ENTRY
            self._backends[uri] = known if known is not None and backend in known else (*(known or ()), backend)
            while self._size > SEEN_BYTES:
                oldest, _ = self._backends.popitem(last=False)
                self._size -= len(oldest) + PER_ENTRY

    def backends(self, uri: str) -> tuple[str, ...]:
        """The backends that have shown it."""
        known = self._backends.get(uri)
        if known is None:
            return ()
        self._backends.move_to_end(uri)
        return known


class SeenByCallers:
    """What callers without a session have seen."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, SeenUris] = OrderedDict()

    def for_caller(self, principal: str) -> SeenUris:
        known = self._callers.get(principal)
        if known is None:
            known = self._callers[principal] = SeenUris()
            if len(self._callers) > CALLERS:
                self._callers.popitem(last=False)
        self._callers.move_to_end(principal)
        return known


def uris_in(method: str, result: Mapping[str, Any]) -> list[str]:
    """The URIs in the result of a call, a prompt or a resource."""
    uris: list[object] = []
    parts = result.get(SHOWS_URIS.get(method, ""))
    for each in cast("list[object]", parts) if isinstance(parts, list) else ():
        part = members(each)
        if method == "prompts/get":
            part = members(part.get("content"))
        kind = part.get("type")
        if kind == "resource_link" or method == "resources/read":
            uris.append(part.get("uri"))
        elif kind == "resource":
            uris.append(members(part.get("resource")).get("uri"))
        if "_meta" in part:
            uris.extend(ui_uris(part["_meta"]))
    if "_meta" in result:
        uris.extend(ui_uris(result["_meta"]))
    return [uri for uri in uris if isinstance(uri, str) and 0 < len(uri) <= LONGEST_URI]


def ui_uris(meta: object) -> Iterator[str]:
    """Every `ui://…` in a `_meta`, at any depth."""
    waiting, left = [meta], META_VALUES
    while waiting and left:
        value, left = waiting.pop(), left - 1
        if isinstance(value, str):
            if value.startswith("ui://") and len(value) <= LONGEST_URI:
                yield value
        elif isinstance(value, dict):
            waiting.extend(cast("dict[str, Any]", value).values())
        elif isinstance(value, list):
            waiting.extend(cast("list[Any]", value))
