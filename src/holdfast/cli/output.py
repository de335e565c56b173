"""What commands print: JSON for programs; tables, trees, progress and times for people."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from holdfast.cli.terminal import BOLD, Stream, Styled, columns, cut, err, inline, out, padded
from holdfast.sinks.shown import printable

_GAP = "  "  # between the columns of a table
_NARROWEST = 8  # columns that a cell keeps
_REDRAW_SECONDS = 0.1  # faster progress only flickers
_BAR = 30  # columns of a progress bar


def print_json(value: object, *, lines: bool = True, to: Stream = out) -> None:
    """Print JSON, on many lines or on one. Control characters are escaped, so that it is safe on a terminal too."""
    to.write(printable(json.dumps(value, ensure_ascii=False, indent=2 if lines else None)) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[str] = ()) -> None:
    """Print rows in aligned columns. On a terminal that is too narrow, the widest cells are cut,
    except in the first column and in those named in `whole`."""
    for number, line in enumerate(aligned(head, rows, out.width, whole)):
        out.print(Styled(line, BOLD) if number == 0 else line)


def aligned(
    head: Sequence[str], rows: Sequence[Sequence[str]], available: int | None, whole: Collection[str] = ()
) -> list[str]:
    """The lines of a table, the head first, in `available` columns if that is possible."""
    cells = [head, *([inline(cell) for cell in row] for row in rows)]
    widths = [max(columns(row[index]) for row in cells) for index in range(len(head))]
    if available is not None:
        _fit(widths, available, [index for index, name in enumerate(head) if index and name not in whole])
    return [
        _GAP.join(padded(cut(cell, width), width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _fit(widths: list[int], available: int, cuttable: Sequence[int]) -> None:
    """Narrow the widest of the cuttable columns until the line fits, or until each is as narrow as it may be."""
    for index in cuttable:
        widths[index] = min(widths[index], available)
    while cuttable and sum(widths) + len(_GAP) * (len(widths) - 1) > available:
        widest = max(cuttable, key=lambda index: widths[index])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


@dataclass(slots=True)
class Branch:
    """A line of a tree with the branches below it."""

    text: str
    branches: list["Branch"] = field(default_factory=list["Branch"])

    def add(self, text: str) -> "Branch":
        """Append a branch and return it."""
        branch = Branch(text)
        self.branches.append(branch)
        return branch


def tree(root: Branch) -> None:
    """Print a tree, however deep."""
    waiting = [(root, "", "")]
    while waiting:
        branch, before, below = waiting.pop()
        line = before + inline(branch.text)
        out.print(line if out.width is None else cut(line, out.width))
        for number, child in reversed(list(enumerate(branch.branches, 1))):
            last = number == len(branch.branches)
            waiting.append((child, below + ("└── " if last else "├── "), below + ("    " if last else "│   ")))


class ProgressLine:
    """A line on stderr that shows progress, on a terminal only, and is removed at the end."""

    def __init__(self, label: str, total: float | None = None, *, quiet: bool = False) -> None:
        self._label = label
        self._total = total
        self._shown = err.is_terminal and not quiet
        self._drawn: float | None = None

    def __enter__(self) -> Self:
        self.show(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            err.write("\r\x1b[K")

    def show(self, done: float, total: float | None = None, label: str | None = None) -> None:
        """Draw the line again, if it was not drawn just now."""
        now = time.monotonic()
        if not self._shown or (self._drawn is not None and now - self._drawn < _REDRAW_SECONDS):
            return
        self._drawn = now
        bar = _bar(done, self._total if total is None else total)
        room = max((err.width or 0) - columns(bar) - 2, _NARROWEST)
        err.write(f"\r{cut(inline(label or self._label), room)} {bar}\x1b[K")


def _bar(done: float, total: float | None) -> str:
    """A bar, or only the number if the total is unknown or makes no sense: both come from servers."""
    if total is None or not 0 < total < float("inf") or not 0 <= done < float("inf"):
        return f"{done:g}"
    full = round(_BAR * min(done / total, 1))
    return f"{'━' * full}{' ' * (_BAR - full)} {done:g}/{total:g}"


def moment(at: float | None) -> str:
    """A time for people, in UTC."""
    if at is None:
        return "never"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"
