"""The progress of a companion's work, from its log: iterations, similarity of revisions, critiques with fewer points.

Values that are not in the log are None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import cast

from holdfast.core.values import JSON, members
from holdfast.errors import UsageError
from holdfast.state.log import HistoryEntry

SIMILAR = 0.95  # of two versions from which a third would hardly differ
WORDS = 800  # of each version that are compared: tens of milliseconds at most
VERSIONS = ("draft", "revision")  # labels of entries that contain the work itself
COUNTED = (*VERSIONS, "critique")


@dataclass(frozen=True, slots=True)
class Convergence:
    """Signs that the work converges."""

    similarity: float | None
    """The similarity of the last two versions, from 0 to 1."""
    critiques: tuple[int, ...]
    """The number of points in each of the last critiques, oldest first."""
    falling: bool
    """Each critique had fewer points than the one before."""
    reached: bool
    """The work is done, by the companion's own rule."""


@dataclass(frozen=True, slots=True)
class Insight:
    """The progress of the work, for tools."""

    phase: str
    iteration: int
    """The number of iterations since the last query."""
    total_iterations: int
    convergence: Convergence


Judge = Callable[[Convergence], bool]


def default_judge(signs: Convergence) -> bool:
    """Whether two versions hardly differ, or an empty critique follows one with points."""
    if signs.similarity is not None and signs.similarity >= SIMILAR:
        return True
    return signs.falling and signs.critiques[-1] == 0


def insight(phase: str, counts: Mapping[str, int], entries: Sequence[HistoryEntry], judge: Judge) -> Insight:
    """Compute the insight from the stored counts and the newest entries of the log."""
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
            f"the function that decides convergence raised {error!r:.200}", remedy="it must accept an empty log"
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
