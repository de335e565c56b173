"""Cells that are wrong today, and how. A cell that comes to hold fails its test until it is taken out of its row."""

from dataclasses import dataclass

from tests.eras.cells import CELLS, FEATURES, Cell


@dataclass(frozen=True)
class Wrong:
    """A feature by its name, its cells by theirs, and what comes instead of the right outcome."""

    feature: str
    cells: tuple[str, ...]
    symptom: str


KNOWN_WRONG: tuple[Wrong, ...] = ()


def symptom(feature: str, cell: Cell) -> str | None:
    """How a cell is wrong; None if it is right."""
    return next((each.symptom for each in KNOWN_WRONG if each.feature == feature and cell.name in each.cells), None)


def strangers() -> list[tuple[str, str]]:
    """Rows of the list that name no cell with a meaning."""
    meant = {(each.name, cell.name) for each in FEATURES for cell in CELLS if each.why_not(cell) is None}
    return [(each.feature, cell) for each in KNOWN_WRONG for cell in each.cells if (each.feature, cell) not in meant]
