"""Records of a store for a table: all of one kind. Pages are read to the end.

What can't be read is not skipped in silence: a listing that leaves something out reports it, and fails.
"""

from typing import NamedTuple

import typer

from holdfast.cli.output import err, printable
from holdfast.core.models import Record
from holdfast.errors import CorruptRecord
from holdfast.stores import Store

SHOWN = 5  # of what can't be read; the rest is counted


class Found(NamedTuple):
    """Every live record of a kind, and the rows that are not readable records."""

    records: list[Record]
    corrupt: list[CorruptRecord]


async def all_records(store: Store, kind: str) -> Found:
    """Every live record of a kind."""
    found = Found([], [])
    after: str | None = None
    while True:
        page = await store.scan(kind=kind, after=after)
        found.records.extend(page.records)
        found.corrupt.extend(page.corrupt)
        if page.next is None:
            return found
        after = page.next


def refuse_corrupt(corrupt: list[CorruptRecord], done: str = "shown") -> None:
    """Print what was not shown, copied or sealed, and exit with 1 if there is anything."""
    for error in corrupt[:SHOWN]:
        err.print(f"not {done}: {printable(str(error))}")
    if len(corrupt) > SHOWN:
        err.print(f"not {done}: {len(corrupt) - SHOWN} more")
    if corrupt:
        raise typer.Exit(1)
