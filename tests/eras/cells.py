"""Features and cells: what is walked, where it has a meaning, and which cells are known to be wrong.

A cell is a way (the gateway over HTTP or stdio, or a link in the client's own process as `LinkTransport` or
`LinkDispatcher`) × the era of the client × the era of the server.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from tests.eras.walk import Walk

Era: TypeAlias = Literal["2025", "2026"]
Way: TypeAlias = Literal["gateway", "stdio", "transport", "dispatcher"]
ERAS: tuple[Era, ...] = ("2025", "2026")
WAYS: tuple[Way, ...] = ("gateway", "stdio", "transport", "dispatcher")


@dataclass(frozen=True)
class Cell:
    """A client of one era reaches a server of one era over the gateway or a link."""

    way: Way
    client: Era
    server: Era

    @property
    def name(self) -> str:
        return f"{self.way}-{self.client}-{self.server}"


CELLS = tuple(Cell(way, client, server) for way, client, server in product(WAYS, ERAS, ERAS))


@dataclass(frozen=True)
class NotApplicable:
    """Cells where a feature has no meaning. No ways, and None, stand for any."""

    why: str
    ways: tuple[Way, ...] = WAYS
    client: Era | None = None
    server: Era | None = None

    def applies(self, cell: Cell) -> bool:
        return cell.way in self.ways and self.client in (None, cell.client) and self.server in (None, cell.server)


@dataclass(frozen=True)
class Feature:
    """`walk` drives the client through the feature in one cell, and asserts the right outcome."""

    subject: str
    name: str
    walk: "Callable[[Walk], Awaitable[None]]"
    without: tuple[NotApplicable, ...]

    def why_not(self, cell: Cell) -> str | None:
        """Why it has no meaning in this cell; None if it has one."""
        return next((each.why for each in self.without if each.applies(cell)), None)

    @property
    def id(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower().replace("`", "")).strip("-")


FEATURES: list[Feature] = []


def feature(
    subject: str, name: str, *without: NotApplicable
) -> "Callable[[Callable[[Walk], Awaitable[None]]], Callable[[Walk], Awaitable[None]]]":
    """Add a walk to the table."""

    def add(walk: "Callable[[Walk], Awaitable[None]]") -> "Callable[[Walk], Awaitable[None]]":
        FEATURES.append(Feature(subject, name, walk, without))
        return walk

    return add


def cases(*ways: Way) -> Iterator[tuple[Feature, Cell]]:
    """The cells of these ways that have a meaning, those of one gateway after each other."""
    for cell in (each for each in CELLS if each.way in ways):
        yield from ((each, cell) for each in FEATURES if each.why_not(cell) is None)


CLIENT_2025 = NotApplicable("only 2025 clients have it", client="2026")
SERVER_2025 = NotApplicable("only 2025 servers have it", server="2026")
CLIENT_2026 = NotApplicable("only 2026 clients have it", client="2025")
SERVER_2026 = NotApplicable("only 2026 servers have it", server="2025")
LINK: tuple[Way, ...] = ("transport", "dispatcher")
ONE_PIPE: tuple[Way, ...] = ("stdio", *LINK)
"""Ways on which all messages come one after another."""
HTTP_ONLY = NotApplicable("stdio and links have no HTTP for their clients", ONE_PIPE)
PROGRESS_VALUES = NotApplicable("the SDK's dispatcher takes progress as three values", ("dispatcher",))
