"""All records of one kind in a store, for tables.

A listing that leaves out unreadable records reports them and fails.
"""

from typing import NamedTuple

import typer

from holdfast.cli.output import err, printable
from holdfast.core.models import Record
from holdfast.errors import CorruptRecord
from holdfast.stores import Store

SHOWN = 5  # of the unreadable records; the rest is counted


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
    """Print what was not shown, copied or encrypted, and exit with 1 if there is anything."""
    for error in corrupt[:SHOWN]:
        err.print(f"not {done}: {printable(str(error))}")
    if len(corrupt) > SHOWN:
        err.print(f"not {done}: {len(corrupt) - SHOWN} more")
    if corrupt:
        raise typer.Exit(1)
