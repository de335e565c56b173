"""How log lines look: text for people, or a JSON object a line for programs that collect them."""

import json
import logging
from typing import Any, Literal, TypeAlias

from holdfast.sinks.shown import in_utc, printable

Format: TypeAlias = Literal["text", "json"]

TEXT = 8_000  # characters of a message that are shown
TRACEBACK = 16_000  # characters of a traceback, from its end
FIELDS = (
    "event", "gateway", "backend", "server", "session", "request", "principal", "client", "address", "method", "tool",
    "status", "outcome", "code", "error", "seconds", "reason", "why", "state", "era", "version", "transport", "run",
    "old", "new", "kept_state", "generation", "adopted", "attempts", "pid", "exit_code", "digest", "added", "removed",
    "changed", "store", "left_out", "trace_id",
)  # fmt: skip
"""Attributes that a record of ours may have: they are members of its JSON object."""
_IDS = ("session", "request", "trace_id")  # shown behind a text, except a session that it names
_COLOURS = {logging.WARNING: "33", logging.ERROR: "1;31", logging.CRITICAL: "1;31"}


class TextFormatter(logging.Formatter):
    """A line of text. Whatever it holds can't command a terminal, nor look like a line of its own."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname
        if self._colour and (colour := _COLOURS.get(record.levelno)) is not None:
            level = f"\x1b[{colour}m{level}\x1b[0m"
        text = _message(record)
        for name in _IDS:
            value = record.__dict__.get(name)
            if value is not None and not (name == "session" and str(value) in text):
                text += f" {name}={value}"
        if (traceback := _traceback(record)) is not None:
            text += f"\n{traceback}"
        return f"{in_utc(record.created)} {level} {record.name}: " + printable(text).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """A JSON object, in ASCII and without line ends."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": in_utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        line |= {name: value for name in FIELDS if (value := record.__dict__.get(name)) is not None}
        if (traceback := _traceback(record)) is not None:
            line["traceback"] = traceback
        return json.dumps(line, default=str)


def formatter(format: Format, *, colour: bool = False) -> logging.Formatter:
    """The formatter of a format. `colour` is for text on a terminal."""
    return TextFormatter(colour=colour) if format == "text" else JsonFormatter()


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception as error:  # a mistake in the call that logs must not cost the line
        text = f"{record.msg!r} could not be formatted: {type(error).__name__}"
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"


def _traceback(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    text = logging.Formatter().formatException(record.exc_info)
    return text if len(text) <= TRACEBACK else f"…{text[-TRACEBACK:]}"
