"""The table of docs/eras.md, from the same lists that the walk goes by."""

from dataclasses import replace
from itertools import groupby

from tests.eras.cells import CELLS, WAYS, Cell, Feature
from tests.eras.features import FEATURES
from tests.eras.known_wrong import symptom

YES, NOT_YET, NO_MEANING = "yes", "not yet", "–"


def _mark(feature: Feature, cell: Cell) -> str:
    if feature.why_not(cell) is not None:
        return NO_MEANING
    return YES if symptom(feature.name, cell) is None else NOT_YET


def _where(cells: list[Cell]) -> str:
    """Cells in words: `gateway 2025 → 2026, 2026 → 2026; transport 2025 → 2025`."""
    return "; ".join(
        f"{way} {', '.join(f'{cell.client} → {cell.server}' for cell in some)}"
        for way, some in groupby(cells, lambda cell: cell.way)
    )


def _notes(features: list[Feature]) -> list[str]:
    """What is not yet right, and why cells have no meaning, each reason once."""
    wrong: dict[tuple[str, str], list[str]] = {}
    without: dict[str, list[str]] = {}
    for feature in features:
        cells: dict[str, list[Cell]] = {}
        for cell in CELLS:
            why, how = feature.why_not(cell), symptom(feature.name, cell)
            if why is not None:
                without.setdefault(why, []).append(feature.name)
            elif how is not None:
                cells.setdefault(how, []).append(cell)
        for how, some in cells.items():
            wrong.setdefault((how, _where(some)), []).append(feature.name)
    lines = [f"- {NOT_YET}, {where}: {'; '.join(names)}: {how}." for (how, where), names in wrong.items()]
    return [*lines, *(f"- {NO_MEANING} {'; '.join(dict.fromkeys(names))}: {why}." for why, names in without.items())]


def counts() -> str:
    """How many cells are right."""
    right = {cell: [symptom(each.name, cell) is None for each in FEATURES if not each.why_not(cell)] for cell in CELLS}
    pairs = [cell for cell in CELLS if cell.way == WAYS[0]]
    rows = [f"| client → server | {' | '.join(f'{cell.client} → {cell.server}' for cell in pairs)} |"]
    rows.append("| --- " * (len(pairs) + 1) + "|")
    for way in WAYS:
        some = [right[replace(cell, way=way)] for cell in pairs]
        rows.append(f"| {way} | {' | '.join(f'{sum(each)} of {len(each)}' for each in some)} |")
    total, meant = sum(map(sum, right.values())), sum(map(len, right.values()))
    return "\n".join(
        [f"{total} of the {meant} cells that have a meaning are right; {len(FEATURES)} features.", "", *rows]
    )


def features() -> str:
    """Every feature in every cell, a table for each subject."""
    parts: list[str] = []
    for subject in dict.fromkeys(each.subject for each in FEATURES):
        some = [each for each in FEATURES if each.subject == subject]
        head = [f"{cell.way}<br>{cell.client}&nbsp;→&nbsp;{cell.server}" for cell in CELLS]
        rows = [f"| {subject} | {' | '.join(head)} |", "| --- " * (len(CELLS) + 1) + "|"]
        rows += [f"| {each.name} | {' | '.join(_mark(each, cell) for cell in CELLS)} |" for each in some]
        parts.append("\n".join([f"## {subject}", "", *rows, "", *_notes(some)]).rstrip())
    return "\n\n".join(parts)
