"""What one backend offers: its tools, prompts, resources and templates, as it told them. Frozen, and plain JSON.

It owns the fetching of all pages over a link, and the form in which a store keeps it. It refuses what is not a list of
objects with names: what a backend sends is data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from holdfast.core.values import JSON
from holdfast.errors import ErrorAnswer, LimitReached
from holdfast.links.link import Link

Item: TypeAlias = Mapping[str, Any]
PAGES = 100  # of one listing: a backend whose cursor never ends is at fault
ITEMS = 10_000  # of one listing: what a model could never read


@dataclass(frozen=True)
class Catalogue:
    """Raw definitions, in the backend's order."""

    tools: tuple[Item, ...] = ()
    prompts: tuple[Item, ...] = ()
    resources: tuple[Item, ...] = ()
    templates: tuple[Item, ...] = ()
    instructions: str | None = None
    era: str | None = None
    keeps_sessions: bool = True
    """The backend remembers something for each session, as far as its greeting tells."""
    tools_by_name: Mapping[str, Item] = field(default_factory=dict[str, Item], compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools_by_name", {str(tool["name"]): tool for tool in self.tools})

    def to_json(self) -> JSON:
        return cast(
            "JSON",
            {
                "tools": list(self.tools),
                "prompts": list(self.prompts),
                "resources": list(self.resources),
                "templates": list(self.templates),
                "instructions": self.instructions,
                "era": self.era,
                "keeps_sessions": self.keeps_sessions,
            },
        )

    @classmethod
    def from_json(cls, value: JSON) -> "Catalogue | None":
        """None if it is not what we wrote: then it is fetched anew."""
        if not isinstance(value, dict):
            return None
        lists: dict[str, Any] = {
            name: _items(value.get(name), by)
            for name, by in (("tools", "name"), ("prompts", "name"), ("resources", "uri"), ("templates", "uriTemplate"))
        }
        instructions, era = value.get("instructions"), value.get("era")
        return cls(
            **lists,
            instructions=instructions if isinstance(instructions, str) else None,
            era=era if isinstance(era, str) else None,
            keeps_sessions=value.get("keeps_sessions") is not False,
        )


def _items(value: object, by: str) -> tuple[Item, ...]:
    """The objects that have a name, each name once: a second one could never be called."""
    found: dict[str, Item] = {}
    for each in cast("list[object]", value) if isinstance(value, list) else ():
        if isinstance(each, dict):
            item = cast("dict[str, Any]", each)
            name = item.get(by)
            if isinstance(name, str) and name:
                found.setdefault(name, item)
    return tuple(found.values())


_LISTS = (
    ("tools", "tools/list", "tools", "tools", "name"),
    ("prompts", "prompts/list", "prompts", "prompts", "name"),
    ("resources", "resources/list", "resources", "resources", "uri"),
    ("resources", "resources/templates/list", "resourceTemplates", "templates", "uriTemplate"),
)


async def fetch(link: Link, *, timeout: float, headers: Mapping[str, str] | None = None) -> Catalogue:
    """All that the link's server offers, by its capabilities."""
    greeting = await link.open(timeout=timeout)
    found: dict[str, Any] = {}
    for capability, method, key, name, by in _LISTS:
        if capability not in greeting.capabilities:
            continue
        try:
            found[name] = _items(await _pages(link, method, key, timeout, headers), by)
        except ErrorAnswer:  # it said that it has them, and has no such list
            continue
    return Catalogue(
        **found,
        instructions=greeting.instructions,
        era=greeting.era.value,
        keeps_sessions=link.keeps_state,
    )


async def _pages(link: Link, method: str, key: str, timeout: float, headers: Mapping[str, str] | None) -> list[object]:
    items: list[object] = []
    cursor: str | None = None
    for _ in range(PAGES):
        params = {"cursor": cursor} if cursor is not None else None
        result = await link.request(method, params, timeout=timeout, headers=headers)
        part = result.get(key)
        items.extend(cast("list[object]", part) if isinstance(part, list) else ())
        following = result.get("nextCursor")
        if not isinstance(following, str) or following == cursor:
            return items
        if len(items) > ITEMS:
            break
        cursor = following
    raise LimitReached(f"{method}: {link.name!r} lists without end", limit=ITEMS, server=link.name)
