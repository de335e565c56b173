"""All records of one kind in a store, for tables and as JSON.

A listing that leaves out unreadable records reports them and fails.
"""

from typing import Any, NamedTuple

import click

from holdfast.cli.output import print_json
from holdfast.cli.terminal import err, indented
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


def refuse_corrupt(corrupt: list[CorruptRecord], json: bool, done: str = "shown") -> None:
    """Print to stderr what was not shown, copied or encrypted, and exit with 1 if there is anything.

    The result is on stdout already, also as JSON, so these are no part of it.
    """
    if not corrupt:
        return
    if json:
        records = [str(error) for error in corrupt]
        about = {
            "type": CorruptRecord.__name__,
            "message": f"{len(records)} records were not {done}",
            "records": records,
        }
        print_json({"error": about}, to=err)
    else:
        for error in corrupt[:SHOWN]:
            err.print(f"not {done}: {indented(str(error))}")
        if len(corrupt) > SHOWN:
            err.print(f"not {done}: {len(corrupt) - SHOWN} more")
    raise click.exceptions.Exit(1)


def as_json(record: Record) -> dict[str, Any]:
    """A record for programs."""
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
    """Whether a record is live, expired or ended."""
    if record.ended is None:
        return "live"
    return "expired" if record.expired else "ended"
