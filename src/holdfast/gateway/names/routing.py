"""Which backend has a name: one frozen table, made from the backends' catalogues and replaced whole.

It owns public names, allow and deny lists, the merged lists and their pages. It routes by the table; only a name that
no list shows is split, at a prefix. Two tools of one name are a clash.
"""

import base64
import binascii
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.core.exact import is_unicode
from holdfast.core.naming import public_name
from holdfast.gateway.backends.lists.catalogue import NAME_LENGTH, Catalogue, Item
from holdfast.gateway.config.settings import Naming, Policy
from holdfast.gateway.names.seen_uris import ui_uris

PAGE = 500  # items a page: one page in nearly every case


@dataclass(frozen=True, slots=True)
class Route:
    """Where a public name leads, and how it is described there and here."""

    backend: str
    name: str
    """Its own name at the backend."""
    item: Item
    """As clients see it."""
    safe: bool = False
    params_in_headers: bool = False
    """A 2026 tool that wants some of its arguments repeated in headers."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two backends have the same name, and only one can have it."""

    kind: str
    name: str
    winner: str
    loser: str


Routes: TypeAlias = Mapping[str, Route]


@dataclass(frozen=True)
class Table:
    """What the gateway offers."""

    tools: Routes = field(default_factory=dict[str, Route])
    prompts: Routes = field(default_factory=dict[str, Route])
    resources: Routes = field(default_factory=dict[str, Route])
    templates: Routes = field(default_factory=dict[str, Route])
    clashes: tuple[Clash, ...] = ()
    patterns: tuple[tuple["Pattern", str], ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    """Patterns of URIs from the configuration, each with its backend."""
    linked: Mapping[str, str] = field(default_factory=dict[str, str])
    """`ui://…` in the `_meta` of listed items, each with the first backend that has it there."""

    def changed_from(self, other: "Table") -> tuple[str, ...]:
        """Which lists differ: "tools", "prompts", "resources"."""
        changed = [kind for kind in ("tools", "prompts") if _items(getattr(self, kind)) != _items(getattr(other, kind))]
        if _items(self.resources) != _items(other.resources) or _items(self.templates) != _items(other.templates):
            changed.append("resources")
        return tuple(changed)

    def backend_of_uri(self, uri: str) -> str | None:
        """The backend that has a resource: by its URI, by the configuration, by a link of a listed item, else by the
        first template that it fits."""
        route = self.resources.get(uri)
        known = route.backend if route is not None else self.configured_backend(uri) or self.linked.get(uri)
        if known is not None:
            return known
        return next((backend for pattern, backend in self.patterns if pattern.fits(uri)), None)

    def configured_backend(self, uri: str) -> str | None:
        """The backend to which the configuration gives a URI."""
        if not self.configured:
            return None
        return next((name for pattern, name in self.configured if fnmatch.fnmatchcase(uri, pattern)), None)


def _items(routes: Routes) -> list[Item]:
    return [route.item for route in routes.values()]


@dataclass(frozen=True, slots=True)
class Offer:
    """One backend's part of a table."""

    backend: str
    policy: Policy
    catalogue: Catalogue


def build(naming: Naming, offers: Sequence[Offer], before: Table | None = None) -> Table:
    """The table, in the order of the offers. Where no setting says which backend wins a name, the one that had it
    `before` keeps it."""
    held: Routes = {**before.tools, **before.prompts} if before is not None and naming.mode == "none" else {}
    clashes: list[Clash] = []
    tools: dict[str, Route] = {}
    prompts: dict[str, Route] = {}
    resources: dict[str, Route] = {}
    templates: dict[str, Route] = {}
    patterns: list[tuple[Pattern, str]] = []
    linked: dict[str, str] = {}

    def add(kind: str, into: dict[str, Route], public: str, route: Route) -> None:
        if (there := into.get(public)) is None:
            into[public] = route
        elif there.backend != route.backend or there.name != route.name:
            holder = held.get(public)
            if holder is not None and holder.backend == route.backend:
                into[public], there, route = route, route, there
            clashes.append(Clash(kind, public, there.backend, route.backend))

    for offer in offers:
        for kind, items, into in (
            ("tool", offer.catalogue.tools, tools),
            ("prompt", offer.catalogue.prompts, prompts),
        ):
            for item in items:
                own = str(item["name"])
                if _allowed(offer.policy, own):
                    public = _public(naming, offer.backend, own)
                    add(kind, into, public, _route(offer, item, own, public))
                    for uri in ui_uris(item.get("_meta")):
                        linked.setdefault(uri, offer.backend)
        for item in offer.catalogue.resources:
            add("resource", resources, str(item["uri"]), Route(offer.backend, str(item["uri"]), item))
        for item in offer.catalogue.templates:
            template = str(item["uriTemplate"])
            add("template", templates, template, Route(offer.backend, template, item))
            patterns.append((Pattern.of(template), offer.backend))
    configured = tuple((pattern, offer.backend) for offer in offers for pattern in offer.policy.uris)
    return Table(tools, prompts, resources, templates, tuple(clashes), tuple(patterns), configured, linked)


def _route(offer: Offer, item: Item, own: str, public: str) -> Route:
    in_headers = "x-mcp-header" in str(item.get("inputSchema"))
    return Route(offer.backend, own, _shown(item, public, offer), _is_safe(item), in_headers)


def _public(naming: Naming, backend: str, own: str) -> str:
    renamed = naming.rename.get(f"{backend}.{own}")
    if renamed is not None:
        return renamed
    return public_name(backend, own) if naming.mode == "prefix" else own


def own_name(naming: Naming, backend: str, policy: Policy, public: str, *, is_alone: bool) -> str | None:
    """The name at a backend of a tool or prompt that no list shows; None: it can't be of this backend, or the policy
    denies it. Without prefixes only a backend that `is_alone` has every name."""
    given = next((key for key, name in naming.rename.items() if name == public), None)
    if given is not None:
        own = given.removeprefix(f"{backend}.") if given.startswith(f"{backend}.") else ""
    elif naming.mode == "prefix":
        own = public.removeprefix(f"{backend}__") if public.startswith(f"{backend}__") else ""
    else:
        own = public if is_alone else ""
    is_name = bool(own) and len(own) <= NAME_LENGTH and is_unicode(own) and _public(naming, backend, own) == public
    return own if is_name and _allowed(policy, own) else None


def _allowed(policy: Policy, own: str) -> bool:
    def fits(patterns: Iterable[str]) -> bool:
        return any(fnmatch.fnmatchcase(own, pattern) for pattern in patterns)

    return (policy.allow is None or fits(policy.allow)) and not fits(policy.deny)


def _shown(item: Item, public: str, offer: Offer) -> Item:
    described = offer.policy.descriptions.get(str(item["name"]))
    shown = {**item, "name": public}
    return shown if described is None else {**shown, "description": described}


def _is_safe(item: Item) -> bool:
    hints = item.get("annotations")
    return isinstance(hints, dict) and (
        hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True  # pyright: ignore[reportUnknownMemberType]
    )


_EXPRESSION = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """URIs that a template (RFC 6570) may stand for. Matched from left to right, without backtracking."""

    texts: tuple[str, ...]
    """The texts between the variables, before the first and after the last."""
    wide: tuple[bool, ...]
    """For each variable: may it contain a slash?"""

    @classmethod
    def of(cls, template: str) -> "Pattern":
        texts: list[str] = []
        wide: list[bool] = []
        last = 0
        for expression in _EXPRESSION.finditer(template):
            texts.append(template[last : expression.start()])
            wide.append(expression.group(1) != "" or expression.group(2).endswith("*"))
            last = expression.end()
        return cls((*texts, template[last:]), tuple(wide))

    def fits(self, uri: str) -> bool:
        if not self.wide:
            return uri == self.texts[0]
        first, *between, last = self.texts
        if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
            return False
        place, end = len(first), len(uri) - len(last)
        for text, wide in zip((*between, None), self.wide, strict=True):
            at = end if text is None else uri.find(text, place, end)
            if at < 0 or (not wide and "/" in uri[place:at]):
                return False
            place = at + len(text or "")
        return True


def too_many_names(names: Iterable[str]) -> tuple[str, str] | None:
    """Two backends whose prefixed names could be the same: `a` and `a__b` both make `a__b__c`."""
    known = sorted(names)
    for one in known:
        for other in known:
            if other.startswith(f"{one}__"):
                return other, one
    return None


class BadCursor(ValueError):
    """No page begins at this cursor."""


def page(
    routes: Routes, cursor: object, *, size: int = PAGE, show: Callable[[Item], Item] | None = None
) -> tuple[list[Item], str | None]:
    """One page of a list, and the cursor of the next. A cursor names the last item seen, so that a list that changes
    meanwhile skips nothing and repeats nothing but what moved."""
    names = list(routes)
    begin = 0
    if cursor is not None:
        begin = _after(names, cursor)
    chosen = names[begin : begin + size]
    items = [routes[name].item for name in chosen]
    if show is not None:
        items = [show(item) for item in items]
    more = begin + size < len(names)
    return items, base64.urlsafe_b64encode(chosen[-1].encode()).decode() if more and chosen else None


def _after(names: list[str], cursor: object) -> int:
    if not isinstance(cursor, str):
        raise BadCursor("a cursor is a string")
    try:
        return names.index(base64.urlsafe_b64decode(cursor.encode()).decode()) + 1
    except (ValueError, binascii.Error) as error:
        raise BadCursor("there is no such cursor; list from the beginning") from error
