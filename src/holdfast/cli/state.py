"""`holdfast state …`: the sessions of servers' callers in a store.

They show the stored data, without the class of the state.
"""

import asyncio
import json as plain
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import click

from holdfast.cli.keys import keys_option, read_keys
from holdfast.cli.output import moment, print_json, table
from holdfast.cli.program import argument, command, json_option, store_option
from holdfast.cli.terminal import BOLD, Styled, err, indented, inline, out
from holdfast.core.models import ANONYMOUS, LogEntry, Record
from holdfast.core.values import members
from holdfast.errors import CorruptRecord
from holdfast.sinks.shown import printable
from holdfast.state.storage import ending, records
from holdfast.state.storage.entries import KIND
from holdfast.stores import open_store

_store = store_option("The store, e.g. sqlite:///baskets.db")
_handle = argument("handle", "HANDLE", "The session's handle.")
_CELL = 40  # characters of foreign text in a table cell


def _short(text: str) -> str:
    """Foreign text on one line of a table."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _CELL else f"{line[: _CELL - 1]}…"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _head(record: Record) -> dict[str, Any]:
    """The fields of a session except its state."""
    data = members(record.data)
    return {
        "handle": record.id,
        "type": _text(data.get("t")),
        "version": data.get("v"),
        "title": _text(data.get("title")),
        "parent": members(data.get("parent")) or None,
        "principal": record.principal,
        "rev": record.rev,
        "created": record.created,
        "touched": record.touched,
        "idle": record.idle,
        "max_age": record.max_age,
        "expires": record.expires,
    }


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "no limit"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,g} s"


@command()
@_store
@click.option("--principal", metavar="NAME", help="Only sessions of this principal.")
@click.option("--type", "type_", metavar="NAME", help="Only sessions with this type of state.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most this many. Default: all.")
@keys_option
@json_option
def ls(
    store: str,
    principal: str | None,
    type_: str | None,
    limit: int | None,
    keys_file: Path | None,
    json: bool,
) -> None:
    """List live sessions. The handle of an anonymous one is enough to use it."""

    async def main() -> tuple[list[dict[str, Any]], list[CorruptRecord], bool]:
        found: list[dict[str, Any]] = []
        corrupt: list[CorruptRecord] = []
        after: str | None = None
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            while True:
                page = await opened.scan(kind=KIND, principal=principal, after=after)
                corrupt += page.corrupt
                for record in page.records:
                    head = _head(record)
                    if type_ is not None and head["type"] != type_:
                        continue
                    if len(found) == limit:
                        return found, corrupt, True
                    found.append(head)
                if page.next is None:
                    return found, corrupt, False
                after = page.next

    found, corrupt, more = asyncio.run(main())
    if json:
        print_json({"sessions": found, "more": more, "corrupt": [str(error) for error in corrupt]})
    else:
        if found:
            _print_table(found)
        else:
            out.print("no sessions")
        if more:
            out.print(f"… {len(found)} shown; see more with --limit")
        for error in corrupt:
            err.print(f"corrupt: {indented(str(error))}")
    if corrupt:
        raise click.exceptions.Exit(1)


def _print_table(found: list[dict[str, Any]]) -> None:
    names = ("handle", "type", "title", "principal", "rev", "created", "expires", "idle")
    rows = [
        (
            head["handle"],
            _short(head["type"]) or "?",
            _short(head["title"]),
            head["principal"],
            str(head["rev"]),
            moment(head["created"]),
            moment(head["expires"]),
            _span(head["idle"]),
        )
        for head in found
    ]
    table(names, rows)


@command()
@_handle
@_store
@click.option("--rev", metavar="N", type=click.IntRange(min=1), help="Show the state as it was at this revision.")
@keys_option
@json_option
def show(handle: str, store: str, rev: int | None, keys_file: Path | None, json: bool) -> None:
    """Show one session and its state."""

    async def main() -> tuple[Record, dict[str, Any]]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await records.find(opened, handle)
            return record, await records.at(opened, record, record.rev if rev is None else rev)

    record, kept = asyncio.run(main())
    head: dict[str, Any] = _head(record) | {
        "version": kept["v"],
        "at": record.rev if rev is None else rev,
        "state": kept["state"],
    }
    if json:
        print_json(head)
        return
    parent = members(head["parent"])
    lines: dict[str, str] = {
        "handle": head["handle"],
        "type": f"{head['type']}, version {kept['v']}",
        "title": head["title"],
        "parent": f"{parent.get('handle')} at revision {parent.get('rev')}" if parent else "",
        "principal": head["principal"],
        "rev": str(head["rev"]),
        "created": moment(head["created"]),
        "touched": moment(head["touched"]),
        "expires": f"{moment(head['expires'])} (idle {_span(head['idle'])}, maximum age {_span(head['max_age'])})",
    }
    for name, value in lines.items():
        if value:
            out.print(f"{name:<10} {' '.join(value.split())}")
    out.print(Styled("state" if rev is None else f"state at revision {rev}", BOLD))
    print_json(head["state"])


@command()
@_handle
@_store
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Show this many of the newest entries.",
)
@keys_option
@json_option
def log(handle: str, store: str, last: int, keys_file: Path | None, json: bool) -> None:
    """Show the log of a session, oldest entry first."""

    async def main() -> list[LogEntry]:
        found: list[LogEntry] = []
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await records.find(opened, handle)
            async with aclosing(records.newest(opened, record.id)) as entries:
                async for entry in entries:
                    found.append(entry)
                    if len(found) == last:
                        break
        return found[::-1]

    found = asyncio.run(main())
    older = found[0].seq - 1 if found else 0
    if json:
        print_json({"handle": handle, "entries": [_entry(each) for each in found], "older": older})
        return
    if not found:
        out.print("no entries yet")
        return
    rows: list[tuple[str, ...]] = []
    for entry in found:
        shown = _entry(entry)
        rows.append((str(entry.seq), str(entry.rev), moment(entry.at), _short(shown["label"]), _changed(shown)))
    table(("seq", "rev", "time", "label", "what changed"), rows, whole=("rev", "time"))
    if older:
        out.print(f"… {older} older ones; see more with --last")


def _entry(entry: LogEntry) -> dict[str, Any]:
    body = members(entry.data)
    return {
        "seq": entry.seq,
        "rev": entry.rev,
        "at": entry.at,
        "label": _text(body.get("label")),
        "was": body.get("was"),
        "data": body.get("data"),
    }


def _changed(shown: dict[str, Any]) -> str:
    """A description of the change that an entry records."""
    before: object = shown["was"]
    if not isinstance(before, dict):
        return "?"
    was = members(cast("object", before))
    words: list[str] = []
    if "state" in was:
        words.append(f"all of it, from version {was.get('v')}")
    words += [f"{name} was {_json(value)}" for name, value in members(was.get("set")).items()]
    new: object = was.get("new")
    if isinstance(new, list):
        words += [f"{name} is new" for name in cast("list[object]", new)]
    if shown["data"] is not None:
        words.append(f"noted {_json(shown['data'])}")
    return "; ".join(_short(word) for word in words)


def _json(value: object) -> str:
    return plain.dumps(value, ensure_ascii=False)


@command()
@_handle
@_store
@click.option(
    "--rev",
    metavar="N",
    type=click.IntRange(min=1),
    help="Begin with the state at this revision. Default: the newest.",
)
@click.option("--title", metavar="TEXT", default="", help="The new session's title. Default: the old one's.")
@keys_option
@json_option
def fork(handle: str, store: str, rev: int | None, title: str, keys_file: Path | None, json: bool) -> None:
    """Begin another session of the same owner with this one's state; print its handle."""

    async def main() -> Record:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await records.fork(opened, await records.find(opened, handle), rev, title)

    child = asyncio.run(main())
    if json:
        print_json(_head(child))
    else:
        out.print(child.id)


@command()
@argument("principal", "PRINCIPAL", "As `ls` shows it.")
@_store
@keys_option
@json_option
def erase(principal: str, store: str, keys_file: Path | None, json: bool) -> None:
    """Remove everything that the store has of one principal: sessions, logs, results, outlines and tombstones."""
    if principal == ANONYMOUS:
        raise click.BadParameter("what anonymous callers have is everybody's: end their sessions by handle")

    async def main() -> int:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await opened.erase(principal)

    erased = asyncio.run(main())
    if json:
        print_json({"principal": principal, "erased": erased})
    else:
        out.print(f"erased {erased} records of {inline(principal)}")
    if not erased:
        raise click.exceptions.Exit(1)


@command()
@argument("handles", "HANDLE...", "Their handles.", nargs=-1, required=True)
@_store
@keys_option
@json_option
def end(handles: tuple[str, ...], store: str, keys_file: Path | None, json: bool) -> None:
    """End sessions permanently. Expired ones may be ended, too."""

    async def main() -> dict[str, str | None]:
        """The handles, each with the reason if it was not ended."""
        done: dict[str, str | None] = {}
        checked = [records.check_handle(each) for each in handles]  # all are checked before the first one is ended
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            for each in dict.fromkeys(checked):
                if await ending.end(opened, each):
                    done[each] = None
                else:
                    record = await opened.get(KIND, each, dead=True)
                    done[each] = "unknown" if record is None else "ended"
        return done

    done = asyncio.run(main())
    absent = {each: why for each, why in done.items() if why is not None}
    if json:
        print_json({"ended": [each for each in done if each not in absent], "absent": absent})
    else:
        for each, why in done.items():
            if why is None:
                out.print(f"ended session {each}")
            else:
                reason = "it was ended before" if why == "ended" else "it is unknown here"
                out.print(f"there was no session {inline(each)} to end: {reason}")
    if absent:
        raise click.exceptions.Exit(1)
