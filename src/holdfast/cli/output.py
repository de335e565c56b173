"""How answers reach a person or a program. It owns the terminal, JSON output and what an error looks like."""

import asyncio
import json
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO, TypeVar

import typer
from rich.console import Console

from holdfast.core.models import Record
from holdfast.errors import HoldfastError

T = TypeVar("T")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of text for a person.")]

_WIDE = 10_000  # what goes into a pipe is cut into lines by its reader, not by us


def _console(stream: TextIO, *, stderr: bool) -> Console:
    return Console(highlight=False, soft_wrap=True, stderr=stderr, width=None if stream.isatty() else _WIDE)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it; an error of ours is a line on stderr and exit code 2, never a traceback."""
    try:
        return asyncio.run(main)
    except HoldfastError as error:
        err.print("error:", style="bold red", end=" ")
        err.print(error.what, markup=False)
        if error.remedy:
            err.print(f"  try: {error.remedy}", markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


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
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
