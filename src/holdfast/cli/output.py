"""Output of the command line: text for people, JSON for programs, and errors."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO, TypeVar

import typer
from rich.console import Console

from holdfast.core.models import Record
from holdfast.errors import HoldfastError

T = TypeVar("T")

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_WIDE = 10_000  # output to a pipe is not wrapped


def _console(stream: TextIO, *, stderr: bool) -> Console:
    width = None if stream.isatty() else _WIDE
    # Names and data are foreign: they must not be read as markup, emoji codes or terminal commands.
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=stderr, width=width)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command; a Holdfast error is shown as a line on stderr, with exit code 2 and no traceback."""
    try:
        return asyncio.run(main)
    except HoldfastError as error:
        err.print("error:", style="bold red", end=" ")
        err.print(printable(error.what))
        if error.remedy:
            err.print(f"  try: {printable(error.remedy)}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    """Print JSON. Control characters are escaped, so that it is safe on a terminal too."""
    sys.stdout.write(printable(json.dumps(value, ensure_ascii=False, indent=2), escape=_json_escape) + "\n")


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def printable(text: str, escape: Callable[[re.Match[str]], str] = _json_escape) -> str:
    """The text with every control character except line ends escaped."""
    return _CONTROL.sub(escape, text)


def as_json(record: Record) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "id": record.id,
        "principal": record.principal,
        "rev": record.rev,
        "state": state_of(record),
        "data": record.data,
        "created": record.created,
        "touched": record.touched,
        "idle": record.idle,
        "max_age": record.max_age,
        "expires": record.expires,
        "ended": record.ended,
    }


def state_of(record: Record) -> str:
    if record.ended is None:
        return "live"
    return "expired" if record.expired else "ended"


def moment(at: float | None) -> str:
    if at is None:
        return "never"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"
