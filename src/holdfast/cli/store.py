"""`holdfast store …`: inspect, check and clean up a store."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from holdfast.cli.keys import VARIABLE, KeysFile, read_keys
from holdfast.cli.output import JsonFlag, as_json, err, moment, out, print_json, printable, run, state_of
from holdfast.cli.records import refuse_corrupt
from holdfast.core.models import Reaped, Record
from holdfast.core.records import State
from holdfast.errors import ConfigError, CorruptRecord
from holdfast.stores import MAX_RECORD_BYTES, open_store
from holdfast.stores.archive import Moved, copy_store, reseal_store
from holdfast.stores.check import Checked, check_store
from holdfast.stores.sealing import SealingCodec, new_key

app = typer.Typer(help="Inspect, check and clean up a store.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="The store, e.g. sqlite:///sessions.db", show_default=False)]
_STATES: dict[str, State | None] = {"live": "live", "expired": "expired", "ended": "ended", "all": None}


@app.command()
def check(
    url: Url,
    create: Annotated[bool, typer.Option("--create", help="Create the store if it does not exist.")] = False,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Check that a store behaves correctly, with scratch records that are removed afterwards."""

    async def main() -> list[Checked]:
        lines: list[Checked] = []
        async with (
            open_store(url, keys=read_keys(keys_file), create=create) as store,
            aclosing(check_store(store)) as checks,
        ):
            async for line in checks:
                lines.append(line)  # each result is shown at once
                if not json:
                    mark = Text("ok  ", "green") if line.ok else Text("FAIL", "bold red")
                    out.print(mark, f"{line.name:<34} {line.seconds * 1000:8.1f} ms")
                    if not line.ok:
                        out.print(f"     {printable(line.why)}")
        return lines

    lines = run(main())
    failed = sum(not line.ok for line in lines)
    if json:
        print_json(
            {
                "ok": not failed,
                "checks": [{"name": c.name, "ok": c.ok, "seconds": c.seconds, "why": c.why} for c in lines],
            }
        )
    else:
        out.print(f"{len(lines) - failed} of {len(lines)} checks passed")
    if failed:
        raise typer.Exit(1)


@app.command("ls")
def list_records(
    url: Url,
    kind: Annotated[str | None, typer.Option(help="Only records of this kind.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only records of this principal.")] = None,
    state: Annotated[str, typer.Option(help="live, expired, ended or all.")] = "live",
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 100,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """List records."""
    if state not in _STATES:
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(_STATES)}", param_hint="--state")

    async def main() -> tuple[list[Record], list[CorruptRecord], int]:
        records: list[Record] = []
        corrupt: list[CorruptRecord] = []
        after = None
        async with open_store(url, keys=read_keys(keys_file), create=False) as store:
            total = await store.count(kind=kind, principal=principal, state=_STATES[state])
            while len(records) < limit:
                page = await store.scan(
                    kind=kind,
                    principal=principal,
                    state=_STATES[state],
                    after=after,
                    limit=min(limit - len(records), 1000),
                )
                records += page.records
                corrupt += page.corrupt
                after = page.next
                if after is None:
                    break
        return records, corrupt, total

    records, corrupt, total = run(main())
    if json:
        print_json({"records": [as_json(r) for r in records], "total": total, "corrupt": [str(e) for e in corrupt]})
    else:
        table = Table("kind", "id", "principal", "rev", "state", "touched", "expires", box=None, pad_edge=False)
        for r in records:
            times = moment(r.touched), moment(r.ended or r.expires)
            table.add_row(*(Text(cell) for cell in (r.kind, r.id, r.principal, str(r.rev), state_of(r), *times)))
        out.print(table, soft_wrap=False) if records else out.print("no records")
        if total > len(records) + len(corrupt):
            out.print(f"… {len(records)} of {total}; see more with --limit")
        for error in corrupt:
            err.print(f"corrupt: {printable(str(error))}")
    if corrupt:
        raise typer.Exit(1)


@app.command()
def show(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The record's kind.", show_default=False)],
    id: Annotated[str, typer.Argument(help="The record's id.", show_default=False)],
    log: Annotated[int, typer.Option(min=0, help="Also show this many of the newest log entries.")] = 10,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Show one record, its log and the holder of a claim on it."""

    async def main() -> dict[str, Any] | None:
        async with open_store(url, keys=read_keys(keys_file), create=False) as store:
            record = await store.get(kind, id, dead=True)
            holder = await store.holder(kind, id)
            entries = await store.log(kind, id, limit=log, newest_first=True) if log else []
        if record is None and holder is None:
            return None
        return {
            "record": None if record is None else as_json(record),
            "claim": None if holder is None else {"owner": holder.owner, "expires": holder.expires},
            "log": [{"seq": e.seq, "rev": e.rev, "at": e.at, "data": e.data} for e in reversed(entries)],
        }

    found = run(main())
    if found is None:
        err.print(f"{printable(kind)}/{printable(id)} does not exist")
        raise typer.Exit(1)
    if json:
        print_json(found)
        return
    record = found["record"]
    if record is not None:
        for name in ("kind", "id", "principal", "rev", "state"):
            out.print(f"{name:<10} {record[name]}")
        for name in ("created", "touched", "expires", "ended"):
            if name != "ended" or record[name]:
                out.print(f"{name:<10} {moment(record[name])}")
    if found["claim"]:
        out.print(f"claimed by {found['claim']['owner']} until {moment(found['claim']['expires'])}")
    if record is not None and record["state"] == "live":
        out.print("data", style="bold")
        print_json(record["data"])
    for entry in found["log"]:
        out.print(f"#{entry['seq']} rev {entry['rev']} {moment(entry['at'])}", style="dim")
        print_json(entry["data"])


@app.command()
def end(
    url: Url,
    kind: Annotated[str, typer.Argument(help="Its kind.", show_default=False)],
    id: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    json: JsonFlag = False,
) -> None:
    """End one record permanently, even one that can't be read."""

    async def main() -> bool:
        async with open_store(url, create=False) as store:
            return await store.end(kind, id)

    ended = run(main())
    if json:
        print_json({"ended": ended})
    elif ended:
        out.print(f"ended {printable(kind)}/{printable(id)}")
    if not ended:
        err.print(f"no live or expired record {printable(kind)}/{printable(id)}")
        raise typer.Exit(1)


@app.command()
def reap(
    url: Url,
    kind: Annotated[str | None, typer.Option(help="Only records of this kind.")] = None,
    json: JsonFlag = False,
) -> None:
    """Remove expired records and old tombstones."""

    async def main() -> Reaped:
        async with open_store(url, create=False) as store:
            return await store.reap(kind=kind)

    reaped = run(main())
    if json:
        print_json({"expired": reaped.expired, "tombstones": reaped.tombstones})
    else:
        out.print(f"removed {reaped.expired} expired records and {reaped.tombstones} old tombstones")


@app.command()
def key(json: JsonFlag = False) -> None:
    """Create an encryption key."""
    made = new_key()
    if json:
        print_json({"key": made})
    else:
        out.print(made)


@app.command()
def reseal(
    url: Url,
    keys_file: KeysFile = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Trust and encrypt records that are not encrypted yet, too.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Encrypt every record and log with the first key of the ring."""

    async def main() -> _Done:
        ring = read_keys(keys_file)
        if ring is None:
            raise ConfigError("no encryption keys are configured", remedy=f"set {VARIABLE} or give --keys-file")
        codec = SealingCodec(MAX_RECORD_BYTES, ring)
        async with open_store(url, keys=ring, create=False) as store:
            return await _move(
                reseal_store(store, codec, plaintext=plaintext), await store.count(state=None), "sealing", quiet=json
            )

    done = run(main())
    if json:
        print_json({"records": done.seen, "resealed": done.moved, "damaged": len(done.damaged)})
    else:
        out.print(f"{done.moved} of {done.seen} records resealed")
    refuse_corrupt(done.damaged, "sealed")


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to read.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", help="The store to write.", show_default=False)],
    json: JsonFlag = False,
) -> None:
    """Copy records, tombstones and logs to another store. To continue after an interruption, run it again.

    Encrypted records are copied without decryption and need no keys. Nothing else should write to either store
    meanwhile.
    """

    async def main() -> _Done:
        async with open_store(source, create=False) as origin, open_store(target) as destination:
            return await _move(copy_store(origin, destination), await origin.count(state=None), "copying", quiet=json)

    done = run(main())
    present = done.seen - done.moved - len(done.damaged)
    if json:
        print_json({"copied": done.moved, "present": present, "damaged": len(done.damaged)})
    else:
        out.print(f"{done.moved} records copied, {present} existed already")
    refuse_corrupt(done.damaged, "copied")


@dataclass(slots=True)
class _Done:
    """The number of rows of a store that were copied or encrypted again."""

    seen: int = 0
    moved: int = 0
    damaged: list[CorruptRecord] = field(default_factory=list[CorruptRecord])


async def _move(moves: AsyncGenerator[Moved, None], total: int, what: str, *, quiet: bool) -> _Done:
    """Iterate over the rows with a progress bar."""
    done = _Done()
    with Progress(console=err, transient=True, disable=quiet or not err.is_terminal) as progress:
        bar = progress.add_task(what, total=total)
        async with aclosing(moves) as steps:
            async for move in steps:
                done.seen += 1
                done.moved += move.copied
                if move.damaged is not None:
                    done.damaged.append(move.damaged)
                progress.advance(bar)
    return done
