"""Standard output and standard error: text as a terminal may show it, its width in columns, styles."""

import os
import re
import shutil
import sys
import unicodedata
from dataclasses import dataclass
from typing import TextIO

from holdfast.sinks.shown import printable

_ESCAPES = re.compile(r"\\u[0-9a-f]{4}|\\[bfnrt]|.", re.DOTALL)


def inline(text: str) -> str:
    """The text on one line: line ends are escaped, too."""
    return printable(text).replace("\n", "\\n")


def indented(text: str) -> str:
    """The text with all lines but the first indented, so that none looks like a line of ours."""
    return text.replace("\n", "\n    ")


def columns(text: str) -> int:
    """The number of columns that a terminal needs for the text."""
    return len(text) if text.isascii() else sum(_columns(each) for each in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0  # drawn over the character before
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, with … where something is missing."""
    if columns(text) <= width:
        return text
    kept: list[str] = []
    left = width - 1
    for part in _ESCAPES.findall(text):  # half an escape would read as something else
        left -= columns(part)
        if left < 0:
            break
        kept.append(part)
    return f"{''.join(kept)}…"


def padded(text: str, width: int) -> str:
    """The text with spaces up to a width."""
    return text + " " * (width - columns(text))


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with a style; the style is shown on a terminal only."""

    text: str
    style: str


BOLD, DIM, GREEN, YELLOW, RED = "1", "2", "32", "33", "1;31"


class Stream:
    """Standard output or standard error. What is printed is escaped, so names and data can't command the terminal."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _file(self) -> TextIO:
        return getattr(sys, self._name)  # tests and shells replace it

    @property
    def is_terminal(self) -> bool:
        return self._file.isatty()

    @property
    def has_colour(self) -> bool:
        """Whether styles are shown: on a terminal that knows them, and not if NO_COLOR is set."""
        return self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """The terminal's columns; None if the output goes elsewhere and nothing is cut."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    def print(self, *parts: str | Styled) -> None:
        """Print the parts on a line, with spaces between."""
        self.write(" ".join(self.shown(part) for part in parts) + "\n")

    def shown(self, part: str | Styled) -> str:
        """The part as it is printed: escaped, with its style where styles are shown."""
        if isinstance(part, str):
            return printable(part)
        text = printable(part.text)
        return f"\x1b[{part.style}m{text}\x1b[0m" if self.has_colour else text

    def write(self, text: str) -> None:
        """Write text that is safe already. What the stream's encoding lacks is escaped."""
        encoding = self._file.encoding or "utf-8"
        self._file.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._file.flush()


out = Stream("stdout")
err = Stream("stderr")
