"""Keeps the last lines of a program's stderr, for errors, and reports each line as it arrives."""

from collections import deque
from collections.abc import Callable

from holdfast.links.wires.stdio.lines import LINE_SHOWN

TAIL_LINES = 40  # kept for an error
TAIL_BYTES = 8 * 1024  # kept for an error: a screen or two


class StderrTail:
    """The last lines of stderr."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Process bytes from the pipe."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-4 * LINE_SHOWN :]
        for line in lines:
            text = line[:LINE_SHOWN].decode("utf-8", "replace").rstrip()
            if text:
                self.lines.append(text)
                self._on_line(text)

    def finish(self) -> None:
        """Process a last line without a line end."""
        if self._rest:
            self.feed(b"\n")
