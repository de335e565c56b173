"""How far a companion's work has come, read from its log: iterations, similarity of revisions, falling critiques.

What an empty log does not say is None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import cast

from holdfast.core.values import JSON, members
from holdfast.errors import UsageError
from holdfast.state.log import HistoryEntry

SIMILAR = 0.95  # of two versions that differ by so little that a third would hardly
WORDS = 800  # of each version that are compared: some tens of milliseconds at worst
VERSIONS = ("draft", "revision")  # labels of entries that hold the work itself
COUNTED = (*VERSIONS, "critique")


@dataclass(frozen=True, slots=True)
class Convergence:
    """Signs that the work is coming to an end."""

    similarity: float | None
    """Of the last two versions, from 0 to 1."""
    critiques: tuple[int, ...]
    """How many points each of the last critiques made, oldest first."""
    falling: bool
    """Each critique made fewer points than the one before."""
    reached: bool


@dataclass(frozen=True, slots=True)
class Insight:
    """What a tool may know of the work before it goes on."""

    phase: str
    iteration: int
    """Since the last query, from 0."""
    total_iterations: int
    convergence: Convergence


Judge = Callable[[Convergence], bool]


def default_judge(signs: Convergence) -> bool:
    """True for two versions that hardly differ, or an empty critique after one with points."""
    if signs.similarity is not None and signs.similarity >= SIMILAR:
        return True
    return signs.falling and signs.critiques[-1] == 0


def insight(phase: str, counts: Mapping[str, int], entries: Sequence[HistoryEntry], judge: Judge) -> Insight:
    """From the counts that each write keeps, and the newest entries of the log."""
    texts = [_text(entry.data) for entry in entries if entry.label in VERSIONS]
    similarity = None
    if len(texts) > 1:
        one, other = (text.split()[:WORDS] for text in texts[-2:])
        similarity = 1.0 if texts[-2] == texts[-1] else SequenceMatcher(None, one, other, autojunk=False).ratio()
    critiques = tuple(_points(entry.data) for entry in entries if entry.label == "critique")
    falling = len(critiques) > 1 and all(later < earlier for earlier, later in pairwise(critiques))
    signs = Convergence(similarity, critiques, falling, False)
    try:
        reached = judge(signs)
    except Exception as error:
        raise UsageError(
            f"the function that judges convergence raised {error!r:.200}", remedy="it must be safe on an empty log"
        ) from error
    signs = Convergence(similarity, critiques, falling, bool(reached))
    return Insight(phase, counts.get("iteration", 0), counts.get("total", 0), signs)


def _text(data: JSON) -> str:
    if isinstance(data, str):
        return data
    return str(members(data).get("text", data))


def _points(data: JSON) -> int:
    """A critique is a list of points, or something with `points`, or one text."""
    if isinstance(data, list):
        return len(data)
    points = members(data).get("points")
    if isinstance(points, list):
        return len(cast("list[object]", points))
    if isinstance(points, int):
        return points
    return 1 if data else 0
