"""Writes log records to a stream, in a thread of its own: who logs never waits for a terminal or a pipe.

What the stream does not take in time is dropped, counted, and told by a line once it takes lines again.
"""

import io
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

from holdfast.sinks.background import Background
from holdfast.sinks.logs.flood import Flood
from holdfast.sinks.logs.formats import Format, formatter

Choice: TypeAlias = Literal["auto", "text", "json"]
Place: TypeAlias = tuple[str, int, str, int]  # logger, level, and where in the code
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

LINES = 4_000  # that wait
WAITING = 4 * 1024 * 1024  # bytes of them
AT_ONCE = 100  # lines written together
MOST = 100  # lines of one place in the code in one while: it may be reached with every request
WRITABLE_SECONDS = 1.0  # between two looks whether a stream takes more


class LogOutput(logging.Handler):
    """The handler of a stream. `trace_id` gives the trace that the code which logs belongs to."""

    def __init__(
        self,
        format: Choice = "auto",
        *,
        stream: TextIO | None = None,
        colour: bool = False,
        trace_id: Callable[[], str | None] | None = None,
    ) -> None:
        super().__init__()
        self._stream = stream if stream is not None else sys.stderr
        self._trace_id = trace_id
        self._colour = colour
        self._size_lock = threading.Lock()
        self._waiting = 0
        self._refused = 0
        self._reported = 0
        self._is_closed = False
        self._flood = Flood[Place](self._summed)
        self.choose(format)
        self._queue: Background[bytes] = Background("log", self._work, most=LINES, at_once=AT_ONCE)

    def choose(self, format: Choice) -> None:
        """Write the next lines in this format; `auto` is text on a terminal, else JSON."""
        chosen: Format = ("text" if self._stream.isatty() else "json") if format == "auto" else format
        self.setFormatter(formatter(chosen, colour=self._colour))

    @property
    def dropped(self) -> int:
        """Lines that the stream did not take."""
        return self._queue.dropped + self._refused

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Lines of events are bounded where they are made, others here, by their place in the code."""
        if (
            record.levelno > logging.DEBUG
            and not hasattr(record, "event")
            and not self._flood.lets((record.name, record.levelno, record.pathname, record.lineno), MOST)
        ):
            return
        self._put(record)

    def _put(self, record: logging.LogRecord) -> None:
        if self._trace_id is not None and not hasattr(record, "trace_id"):
            record.trace_id = self._trace_id()
        try:
            line = self._encoded(record)
        except Exception:
            self._refused += 1
            return
        with self._size_lock:
            if self._is_closed or self._waiting + len(line) > WAITING:
                self._refused += 1
                return
            self._waiting += len(line)
        if not self._queue.put(line):
            self._taken(len(line))

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._stream.encoding or "utf-8", "backslashreplace")

    def _summed(self, kind: Place, number: int) -> None:
        name, level, path, line = kind
        what = f"{number} more lines from {Path(path).name}:{line} were left out in the last seconds"
        self._put(logging.LogRecord(name, level, path, line, what, (), None))

    def _taken(self, size: int) -> None:
        with self._size_lock:
            self._waiting -= size

    def _work(self, lines: Sequence[bytes]) -> None:
        try:
            dropped, text = self.dropped, b"".join(lines)
            if dropped > self._reported:
                what = f"{dropped - self._reported} log lines were dropped: they were not taken as fast as they came"
                record = logging.LogRecord("holdfast.events", logging.WARNING, "", 0, what, (), None)
                text = self._encoded(record) + text
            self._write(text)
            self._reported = dropped
        finally:
            self._taken(sum(map(len, lines)))

    def _write(self, data: bytes) -> None:
        try:
            fd = self._stream.fileno()
        except (OSError, io.UnsupportedOperation):  # replaced by an object in memory
            self._stream.write(data.decode(self._stream.encoding or "utf-8"))
            self._stream.flush()
            return
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # the other end of a pipe may have made it non-blocking
                select.select([], [fd], [], WRITABLE_SECONDS)

    def close(self) -> None:
        """Write what waits, in bounded time."""
        if self._is_closed:
            return
        self._flood.close()
        with self._size_lock:
            self._is_closed = True
        self._queue.close()
        super().close()


class Logging:
    """Log lines on stderr, from now until `close`: of `logger` and those below it, "" for the root.

    Other libraries log at WARNING at the least: their lines of lower levels may hold what is nobody's business.
    """

    def __init__(
        self,
        level: Level = "warning",
        format: Choice = "auto",
        *,
        logger: str = "",
        stream: TextIO | None = None,
        colour: bool = False,
        trace_id: Callable[[], str | None] | None = None,
    ) -> None:
        self.output = LogOutput(format, stream=stream, colour=colour, trace_id=trace_id)
        self._logger = logging.getLogger(logger)
        self._ours = logging.getLogger("holdfast")
        self._before = self._logger.level, self._ours.level
        self._logger.addHandler(self.output)
        self.choose(level, format)

    def choose(self, level: Level, format: Choice) -> None:
        """Write the next lines from this level on, in this format."""
        number = logging.getLevelNamesMapping()[level.upper()]
        self.output.choose(format)
        self._logger.setLevel(max(number, logging.WARNING))
        self._ours.setLevel(number)

    def close(self) -> None:
        """Write what waits, and leave the loggers as they were."""
        self._logger.removeHandler(self.output)
        with suppress(Exception):
            self.output.close()
        before, ours = self._before
        self._logger.setLevel(before)
        self._ours.setLevel(ours)
