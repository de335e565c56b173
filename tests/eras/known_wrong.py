"""Cells that are wrong today, and how. A cell that comes to hold fails its test until it is taken out of its row."""

from dataclasses import dataclass

from tests.eras.cells import CELLS, FEATURES, Cell


@dataclass(frozen=True)
class Wrong:
    """A feature by its name, its cells by theirs, and what comes instead of the right outcome."""

    feature: str
    cells: tuple[str, ...]
    symptom: str


NO_LISTEN = "the stdio front does not serve `subscriptions/listen`"
LISTENING = ("stdio-2026-2025", "stdio-2026-2026")
KNOWN_WRONG: tuple[Wrong, ...] = (
    Wrong("`tools/list_changed`, and the list after it", LISTENING, NO_LISTEN),
    Wrong("`prompts/list_changed`, and the list after it", LISTENING, NO_LISTEN),
    Wrong("`resources/list_changed`, and the list after it", LISTENING, NO_LISTEN),
    Wrong("`subscriptions/listen`: nothing that was not asked for", LISTENING, NO_LISTEN),
    Wrong("updates of nothing but what was subscribed to", LISTENING, NO_LISTEN),
    Wrong("`tools/list_changed` on a call's own stream", ("stdio-2026-2025",), NO_LISTEN),
    Wrong("a subscription, and updates with `_meta` and unknown members", LISTENING, NO_LISTEN),
    Wrong("a subscription to a resource that no list shows", LISTENING, NO_LISTEN),
    Wrong("the end of a subscription reaches the server", LISTENING, NO_LISTEN),
    Wrong("2026: `notifications/tasks` for the `taskIds` of a listen", ("stdio-2026-2026",), NO_LISTEN),
)


def symptom(feature: str, cell: Cell) -> str | None:
    """How a cell is wrong; None if it is right."""
    return next((each.symptom for each in KNOWN_WRONG if each.feature == feature and cell.name in each.cells), None)


def strangers() -> list[tuple[str, str]]:
    """Rows of the list that name no cell with a meaning."""
    meant = {(each.name, cell.name) for each in FEATURES for cell in CELLS if each.why_not(cell) is None}
    return [(each.feature, cell) for each in KNOWN_WRONG for cell in each.cells if (each.feature, cell) not in meant]
