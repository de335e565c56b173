"""`holdfast store …`: inspect, check and clean up a store."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from holdfast.cli.keys import VARIABLE, keys_option, read_keys
from holdfast.cli.output import ProgressLine, moment, print_json, table
from holdfast.cli.program import argument, command, error_json, json_option
from holdfast.cli.records import as_json, refuse_corrupt, state_of
from holdfast.cli.terminal import BOLD, DIM, GREEN, RED, Styled, err, indented, inline, out
from holdfast.core.models import Reaped, Record
from holdfast.core.records import State
from holdfast.errors import ConfigError, CorruptRecord, NotFound
from holdfast.stores import MAX_RECORD_BYTES, open_store
from holdfast.stores.archive import Moved, copy_store, reseal_store
from holdfast.stores.check import Checked, check_store
from holdfast.stores.sealing import SealingCodec, new_key

_url = argument("url", "URL", "The store, e.g. sqlite:///sessions.db")
_STATES: dict[str, State | None] = {"live": "live", "expired": "expired", "ended": "ended", "all": None}
_kind = click.option("--kind", metavar="KIND", help="Only records of this kind.")


@command()
@_url
@click.option("--create", is_flag=True, help="Create the store if it does not exist.")
@keys_option
@json_option
def check(url: str, create: bool, keys_file: Path | None, json: bool) -> None:
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
                    mark = Styled("ok  ", GREEN) if line.ok else Styled("FAIL", RED)
                    out.print(mark, f"{line.name:<34} {line.seconds * 1000:8.1f} ms")
                    if not line.ok:
                        out.print(f"     {indented(line.why)}")
        return lines

    lines = asyncio.run(main())
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
        raise click.exceptions.Exit(1)


@command("ls")
@_url
@_kind
@click.option("--principal", metavar="NAME", help="Only records of this principal.")
@click.option(
    "--state", type=click.Choice(list(_STATES)), default="live", show_default=True, help="Only records in this state."
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Show at most this many.",
)
@keys_option
@json_option
def list_records(
    url: str,
    kind: str | None,
    principal: str | None,
    state: str,
    limit: int,
    keys_file: Path | None,
    json: bool,
) -> None:
    """List records."""

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

    records, corrupt, total = asyncio.run(main())
    if json:
        print_json({"records": [as_json(r) for r in records], "total": total, "corrupt": [str(e) for e in corrupt]})
    else:
        rows = [
            (r.kind, r.id, r.principal, str(r.rev), state_of(r), moment(r.touched), moment(r.ended or r.expires))
            for r in records
        ]
        if rows:
            table(("kind", "id", "principal", "rev", "state", "touched", "expires"), rows, whole=("id",))
        else:
            out.print("no records")
        if total > len(records) + len(corrupt):
            out.print(f"… {len(records)} of {total}; see more with --limit")
        for error in corrupt:
            err.print(f"corrupt: {indented(str(error))}")
    if corrupt:
        raise click.exceptions.Exit(1)


@command()
@_url
@argument("kind", "KIND", "The record's kind.")
@argument("id", "ID", "The record's id.")
@click.option(
    "--log",
    metavar="N",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Also show this many of the newest log entries.",
)
@keys_option
@json_option
def show(url: str, kind: str, id: str, log: int, keys_file: Path | None, json: bool) -> None:
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

    found = asyncio.run(main())
    if found is None:
        absent = NotFound(f"{kind}/{id} does not exist")
        if json:
            print_json({"error": error_json(absent)})
        else:
            err.print(inline(absent.what))
        raise click.exceptions.Exit(1)
    if json:
        print_json(found)
        return
    record = found["record"]
    if record is not None:
        for name in ("kind", "id", "principal", "rev", "state"):
            out.print(f"{name:<10} {inline(str(record[name]))}")
        for name in ("created", "touched", "expires", "ended"):
            if name != "ended" or record[name]:
                out.print(f"{name:<10} {moment(record[name])}")
    if found["claim"]:
        out.print(f"claimed by {inline(found['claim']['owner'])} until {moment(found['claim']['expires'])}")
    if record is not None and record["state"] == "live":
        out.print(Styled("data", BOLD))
        print_json(record["data"])
    for entry in found["log"]:
        out.print(Styled(f"#{entry['seq']} rev {entry['rev']} {moment(entry['at'])}", DIM))
        print_json(entry["data"])


@command()
@_url
@argument("kind", "KIND", "Its kind.")
@argument("id", "ID", "Its id.")
@json_option
def end(url: str, kind: str, id: str, json: bool) -> None:
    """End one record permanently, even one that can't be read."""

    async def main() -> bool:
        async with open_store(url, create=False) as store:
            return await store.end(kind, id)

    ended = asyncio.run(main())
    if json:
        print_json({"ended": ended})
    elif ended:
        out.print(f"ended {inline(kind)}/{inline(id)}")
    else:
        err.print(f"no live or expired record {inline(kind)}/{inline(id)}")
    if not ended:
        raise click.exceptions.Exit(1)


@command()
@_url
@_kind
@json_option
def reap(url: str, kind: str | None, json: bool) -> None:
    """Remove expired records and old tombstones."""

    async def main() -> Reaped:
        async with open_store(url, create=False) as store:
            return await store.reap(kind=kind)

    reaped = asyncio.run(main())
    if json:
        print_json({"expired": reaped.expired, "tombstones": reaped.tombstones})
    else:
        out.print(f"removed {reaped.expired} expired records and {reaped.tombstones} old tombstones")


@command()
@json_option
def key(json: bool) -> None:
    """Create an encryption key."""
    made = new_key()
    if json:
        print_json({"key": made})
    else:
        out.print(made)


@command()
@_url
@keys_option
@click.option("--plaintext", is_flag=True, help="Trust and encrypt records that are not encrypted yet, too.")
@json_option
def reseal(url: str, keys_file: Path | None, plaintext: bool, json: bool) -> None:
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

    done = asyncio.run(main())
    if json:
        print_json({"records": done.seen, "resealed": done.moved, "damaged": len(done.damaged)})
    else:
        out.print(f"{done.moved} of {done.seen} records resealed")
    refuse_corrupt(done.damaged, json, "sealed")


@command()
@argument("source", "FROM", "The store to read.")
@argument("target", "TO", "The store to write.")
@json_option
def copy(source: str, target: str, json: bool) -> None:
    """Copy records, tombstones and logs to another store. To continue after an interruption, run it again.

    Encrypted records are copied without decryption and need no keys. Nothing else should write to either store
    meanwhile.
    """

    async def main() -> _Done:
        async with open_store(source, create=False) as origin, open_store(target) as destination:
            return await _move(copy_store(origin, destination), await origin.count(state=None), "copying", quiet=json)

    done = asyncio.run(main())
    present = done.seen - done.moved - len(done.damaged)
    if json:
        print_json({"copied": done.moved, "present": present, "damaged": len(done.damaged)})
    else:
        out.print(f"{done.moved} records copied, {present} existed already")
    refuse_corrupt(done.damaged, json, "copied")


@dataclass(slots=True)
class _Done:
    """The number of rows of a store that were copied or encrypted again."""

    seen: int = 0
    moved: int = 0
    damaged: list[CorruptRecord] = field(default_factory=list[CorruptRecord])


async def _move(moves: AsyncGenerator[Moved, None], total: int, what: str, *, quiet: bool) -> _Done:
    """Iterate over the rows with a progress bar."""
    done = _Done()
    with ProgressLine(what, total, quiet=quiet) as progress:
        async with aclosing(moves) as steps:
            async for move in steps:
                done.seen += 1
                done.moved += move.copied
                if move.damaged is not None:
                    done.damaged.append(move.damaged)
                progress.show(done.seen)
    return done
