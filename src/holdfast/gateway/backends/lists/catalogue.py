"""What one backend offers: its tools, prompts, resources and templates, as it listed them. Frozen, and plain JSON.

It owns the fetching of all pages over a link, and the form in which a store keeps the lists. What can't be offered (an
object without a name, a list without an end) is left out and named in `left_out`; the rest is offered. A list that
can't be read takes nothing away: the last one that was read stays.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.core.exact import is_unicode
from holdfast.core.handshake import Handshake
from holdfast.core.lifecycle import LinkState
from holdfast.core.values import JSON, members
from holdfast.errors import BadAnswer, ConnectFailed, ErrorAnswer, HoldfastError, LimitReached
from holdfast.gateway.backends.identity import ServerIdentity
from holdfast.gateway.backends.lists.list_members import MEMBERS_BYTES, ListMembers
from holdfast.links.codec import decode_exactly, encode_known
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

Item: TypeAlias = Mapping[str, Any]
PAGES = 100  # of one listing: the cursor of a faulty backend never ends
ITEMS = 10_000  # of one listing: more than any model reads
LIST_BYTES = 8 * 1024 * 1024  # of one listing: it is kept in memory and in the store, and goes to every client
ITEM_DEPTH = 100  # levels of one item: far beyond real schemas, and no client's parser stumbles over it
NAME_LENGTH = 8_192  # characters of a name or URI, as much as a call may have
INSTRUCTIONS_LENGTH = 64 * 1024  # characters of instructions: they go into every client's handshake
LISTS_SECONDS = 120.0  # for all lists of one backend, however many pages they have
REASONS = 20  # that are kept for what was left out: enough to find the fault
_TEXT = "text"


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
    """The backend remembers something for each session, as far as its handshake shows."""
    left_out: tuple[str, ...] = ()
    """What the backend sent and no client is offered, each with the reason."""
    digest: str | None = None
    """Of the server when these lists were fetched, see `server_digest`: another one may offer other things."""
    incomplete: bool = field(default=False, compare=False)
    """A list could not be read this time, so that all should be fetched again soon."""
    about: Mapping[str, ListMembers] = field(default_factory=dict[str, ListMembers], compare=False)
    """What each list has beside its items. Not compared: it may be another at each reading."""
    identity: ServerIdentity = field(default_factory=ServerIdentity)
    tools_by_name: Mapping[str, Item] = field(default_factory=dict[str, Item], compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools_by_name", {str(tool["name"]): tool for tool in self.tools})

    def to_json(self) -> JSON:
        """Definitions as text: a store keeps only what it can give back equal, and they may hold any number."""
        lists = {"tools": self.tools, "prompts": self.prompts, "resources": self.resources, "templates": self.templates}
        kept = {name: list(items) for name, items in lists.items()}
        about = {name: each.to_json() for name, each in self.about.items()}
        return {
            _TEXT: encode_known({**kept, "about": about, "identity": self.identity.to_json()}).decode(),
            "instructions": self.instructions,
            "era": self.era,
            "keeps_sessions": self.keeps_sessions,
            "left_out": list(self.left_out),
            "told": self.digest,
        }

    @property
    def size(self) -> int:
        """Bytes of its definitions as text: about what it takes in memory."""
        return sum(
            len(encode_known(dict(item))) for item in (*self.tools, *self.prompts, *self.resources, *self.templates)
        )

    @classmethod
    def from_json(cls, value: JSON) -> "Catalogue | None":
        """None if it is not in our form: then the lists are fetched again."""
        text = value.get(_TEXT) if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(text, str):
            return None
        try:
            kept = decode_exactly(text.encode())
        except ValueError:
            return None
        if not isinstance(kept, dict):
            return None
        known = cast("dict[str, Any]", kept)
        lists: dict[str, Any] = {spec.name: _offered(known.get(spec.name), spec.by, spec.name, []) for spec in _LISTS}
        instructions, era, left_out = value.get("instructions"), value.get("era"), value.get("left_out")
        digest = value.get("told")
        return cls(
            **lists,
            instructions=instructions if isinstance(instructions, str) else None,
            era=era if isinstance(era, str) else None,
            keeps_sessions=value.get("keeps_sessions") is not False,
            left_out=tuple(str(each) for each in left_out) if isinstance(left_out, list) else (),
            digest=digest if isinstance(digest, str) else None,
            about={name: ListMembers.from_json(each) for name, each in members(known.get("about")).items()},
            identity=ServerIdentity.from_json(known.get("identity")),
        )

    def with_list(self, found: "FoundList") -> "Catalogue":
        """With one list read anew."""
        spec = _BY_NAME[found.name]
        own = (f"{found.name}[", f"{spec.method}:")
        left_out = [each for each in self.left_out if not each.startswith(own)] + found.left_out
        lists: dict[str, Any] = {found.name: found.items}
        about = self.about if found.about is None else {**self.about, found.name: found.about}
        return replace(
            self, **lists, left_out=tuple(left_out[:REASONS]), about=about, incomplete=self.incomplete or found.failed
        )


def _offered(value: object, by: str, kind: str, left_out: list[str]) -> tuple[Item, ...]:
    """The objects that can be offered, each name once: a second object of a name could never be called."""
    found: dict[str, Item] = {}
    for number, each in enumerate(cast("list[object]", value) if isinstance(value, list) else ()):
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name = item.get(by)
        if not isinstance(each, dict):
            why = "is not an object"
        elif not isinstance(name, str) or not name:
            why = f"has no {by}"
        elif len(name) > NAME_LENGTH or not is_unicode(name):
            why = f"has a {by} of more than {NAME_LENGTH} characters, or with half a character"
        elif name in found:
            why = f"has the {by} of another, {name!r:.100}"
        elif _is_deeper(item, ITEM_DEPTH):
            why = f"({name!r:.100}) is nested deeper than {ITEM_DEPTH} levels"
        else:
            found[name] = item
            continue
        left_out.append(f"{kind}[{number}] {why}")
    return tuple(found.values())


def _is_deeper(value: object, levels: int) -> bool:
    inner: list[object]
    if isinstance(value, dict):
        inner = list(cast("dict[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    else:
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


class _Spec(NamedTuple):
    capability: str
    method: str
    key: str
    name: str
    by: str


_LISTS = (
    _Spec("tools", "tools/list", "tools", "tools", "name"),
    _Spec("prompts", "prompts/list", "prompts", "prompts", "name"),
    _Spec("resources", "resources/list", "resources", "resources", "uri"),
    _Spec("resources", "resources/templates/list", "resourceTemplates", "templates", "uriTemplate"),
)
_BY_NAME = {spec.name: spec for spec in _LISTS}


@dataclass(slots=True)
class FoundList:
    """One list as it was read; if that failed, the last one."""

    name: str
    items: tuple[Item, ...] = ()
    left_out: list[str] = field(default_factory=list[str])
    about: ListMembers | None = None
    failed: bool = False


async def fetch_list(
    link: Link, name: str, known: Catalogue | None, *, timeout: float, headers: Mapping[str, str] | None = None
) -> FoundList:
    """One list of the link's server: "tools", "prompts", "resources" or "templates"."""
    handshake = await link.open(timeout=timeout)
    until = asyncio.get_running_loop().time() + LISTS_SECONDS
    return await _fetch_list(link, handshake, _BY_NAME[name], known, timeout, until, headers)


async def _fetch_list(
    link: Link,
    handshake: Handshake,
    spec: _Spec,
    known: Catalogue | None,
    timeout: float,
    until: float,
    headers: Mapping[str, str] | None,
) -> FoundList:
    found = FoundList(spec.name)
    if spec.capability not in handshake.capabilities:
        return found
    try:
        items, found.about = await _pages(link, spec.method, spec.key, timeout, until, headers, found.left_out)
    except (ErrorAnswer, BadAnswer, LimitReached) as error:
        if isinstance(error, ErrorAnswer) and error.code == METHOD_NOT_FOUND:
            return found  # its capabilities name the list, and the method does not exist
        found.failed = True
        found.items = getattr(known, spec.name) if known is not None else ()
        found.about = known.about.get(spec.name) if known is not None else None
        left_out = f"{spec.method}: {_why_unreadable(error)}; the {len(found.items)} that were known before stay"
        found.left_out.append(left_out)
        if known is None or left_out not in known.left_out:
            log.warning("%s: a list can't be read: %s", link.name, error.what)
        return found
    found.items = _offered(items, spec.by, spec.name, found.left_out)
    if found.about.is_too_large:
        found.left_out.append(f"{spec.method}: what it has beside its items is over {MEMBERS_BYTES} bytes")
        found.about = found.about.without_content()
    return found


async def fetch(
    link: Link, *, timeout: float, headers: Mapping[str, str] | None = None, known: Catalogue | None = None
) -> Catalogue:
    """All that the link's server offers, by its capabilities. `timeout` is for each page. `known`: what it offered
    before; its list stays where one can't be read now."""
    until = asyncio.get_running_loop().time() + LISTS_SECONDS
    handshake = await link.open(timeout=timeout)
    found: dict[str, Any] = {}
    left_out: list[str] = []
    incomplete = False
    about: dict[str, ListMembers] = {}
    for spec in _LISTS:
        part = await _fetch_list(link, handshake, spec, known, timeout, until, headers)
        found[spec.name] = part.items
        left_out += part.left_out
        incomplete = incomplete or part.failed
        if part.about is not None:
            about[spec.name] = part.about
    instructions = handshake.instructions
    if instructions is not None and len(instructions) > INSTRUCTIONS_LENGTH:
        left_out.append(f"instructions of {len(instructions)} characters, more than {INSTRUCTIONS_LENGTH}")
        instructions = None
    identity = ServerIdentity.of(handshake, left_out)
    if len(left_out) > REASONS:
        left_out[REASONS:] = [f"and {len(left_out) - REASONS} more"]
    return Catalogue(
        **found,
        instructions=instructions,
        era=handshake.era.value,
        keeps_sessions=link.keeps_state,
        left_out=tuple(left_out),
        digest=server_digest(handshake),
        incomplete=incomplete,
        about=about,
        identity=identity,
    )


def _why_unreadable(error: HoldfastError) -> str:
    """In words that are the same every time, so that the lists do not seem to change; the log says more."""
    if isinstance(error, ErrorAnswer):
        return f"it answered with the error {error.code}"
    return "the list is over the cap of one message" if isinstance(error, LimitReached) else "the answer is no list"


def server_digest(handshake: Handshake) -> str:
    """Name, version, capabilities and instructions of a server, as a digest to compare."""
    parts = [handshake.server_info, handshake.capabilities, handshake.instructions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


async def _pages(
    link: Link,
    method: str,
    key: str,
    timeout: float,
    until: float,
    headers: Mapping[str, str] | None,
    left_out: list[str],
) -> tuple[list[object], ListMembers]:
    """One list, as far as it can be read within the limits, and what its results have besides."""
    items: list[object] = []
    about: ListMembers | None = None
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for _ in range(PAGES):
        if link.phase in (LinkState.CLOSED, LinkState.CLOSING):  # a request would bring it up again
            raise ConnectFailed(f"{method}: the link to {link.name!r} was closed meanwhile", server=link.name)
        params = {"cursor": cursor} if cursor is not None else None
        left = max(0.1, until - asyncio.get_running_loop().time())
        result = await link.request(method, params, timeout=min(timeout, left), headers=headers)
        page = ListMembers.of(result, key)
        about = page if about is None else about.followed_by(page)
        given = result.get(key)
        part = cast("list[object]", given) if isinstance(given, list) else []
        for item in part:
            size += len(encode_known({key: item}))
            if len(items) == ITEMS or size > LIST_BYTES:
                left_out.append(f"{method}: what follows item {len(items)}: over {ITEMS} items or {LIST_BYTES} bytes")
                return items, about
            items.append(item)
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str):
            return items, about
        if cursor in seen:
            left_out.append(f"{method}: a cursor that leads back to an earlier page")
            return items, about
        seen.add(cursor)
    left_out.append(f"{method}: what follows {PAGES} pages")
    return items, about or ListMembers()
