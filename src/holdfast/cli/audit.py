"""`holdfast audit verify`: is an audit trail whole?"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.keys import keys_option, read_keys
from holdfast.cli.output import print_json, table
from holdfast.cli.program import argument, command, json_option
from holdfast.cli.terminal import inline, out
from holdfast.errors import UsageError
from holdfast.sinks.audit.verify import Report, verify
from holdfast.sinks.audit.writers import KIND
from holdfast.stores import open_store

SHOWN = 20  # faults on one screen


@command("verify")
@argument(
    "files",
    "[FILE]...",
    "From the oldest to the newest: audit.jsonl.1 audit.jsonl.",
    nargs=-1,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option("--store", metavar="URL", help="The store, if the trail is written there.")
@keys_option
@json_option
def verify_trail(files: tuple[Path, ...], store: str | None, keys_file: Path | None, json: bool) -> None:
    """Verify that no line of an audit trail was changed, removed or moved.

    Lines at the very end of a chain that was not ended in order can be missing without a trace.
    """
    if bool(files) == bool(store):
        raise UsageError("name files, or a store with --store")
    report = verify(_lines(files)) if store is None else verify(asyncio.run(_stored(store, keys_file)))
    if json:
        chains = [
            {
                "chain": chain.id,
                "first": chain.first,
                "last": chain.last,
                "ended": chain.ended,
                "at": chain.at,
                "hash": chain.hash,
                "dropped": chain.dropped,
            }
            for chain in report.chains.values()
        ]
        print_json(
            {
                "holds": report.holds,
                "lines": report.lines,
                "faults": report.faults,
                "torn": report.torn,
                "chains": chains,
            }
        )
    else:
        _print(report)
    if not report.holds:
        raise click.exceptions.Exit(1)


def _print(report: Report) -> None:
    rows = [
        (
            inline(chain.id),
            f"{chain.first}–{chain.last}",
            "ended" if chain.ended else "open or killed",
            inline(chain.at),
            chain.hash[:16],
            str(chain.dropped or ""),
        )
        for chain in report.chains.values()
    ]
    if rows:
        table(("chain", "lines", "end", "last line", "its hash", "not written"), rows, whole=("its hash",))
    for chain in report.chains.values():
        if chain.first:
            out.print(f"chain {inline(chain.id)} begins with line {chain.first}: earlier files were not given")
    for where in report.torn[:SHOWN]:
        out.print(f"{inline(where)}: not a whole line; a process that was killed may have begun it")
    for fault in report.faults[:SHOWN]:
        out.print(inline(fault))
    if len(report.faults) > SHOWN:
        out.print(f"and {len(report.faults) - SHOWN} more")
    out.print(f"{report.lines} lines: " + ("the trail holds" if report.holds else "the trail was changed"))


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield f"{path}:{number}", line


async def _stored(url: str, keys_file: Path | None) -> list[tuple[str, bytes]]:
    lines: list[tuple[str, bytes]] = []
    async with open_store(url, keys=read_keys(keys_file), create=False) as store:
        after: str | None = None
        while True:
            page = await store.scan(kind=KIND, after=after)
            for record in page.records:
                seq = 0
                while entries := await store.log(KIND, record.id, after=seq):
                    lines += [(f"{record.id}:{entry.seq}", str(entry.data).encode()) for entry in entries]
                    seq = entries[-1].seq
            if page.next is None:
                return lines
            after = page.next
