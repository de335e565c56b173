"""`holdfast state …`: the sessions of servers' callers in a store.

They show the stored data, without the class of the state.
"""

import json as plain
from contextlib import aclosing
from typing import Annotated, Any, cast

import typer
from rich.table import Column, Table

from holdfast.cli.keys import KeysFile, read_keys
from holdfast.cli.output import JsonFlag, err, moment, out, print_json, printable, run
from holdfast.core.models import ANONYMOUS, LogEntry, Record
from holdfast.core.values import members
from holdfast.errors import CorruptRecord
from holdfast.state.storage import ending, records
from holdfast.state.storage.entries import KIND
from holdfast.stores import open_store

app = typer.Typer(help="Sessions of a server's callers: list, show, fork, end.", no_args_is_help=True)
StoreUrl = Annotated[str, typer.Option("--store", help="The store, e.g. sqlite:///baskets.db", show_default=False)]
HandleArgument = Annotated[str, typer.Argument(metavar="HANDLE", help="The session's handle.", show_default=False)]
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


@app.command()
def ls(
    store: StoreUrl,
    principal: Annotated[str | None, typer.Option(help="Only sessions of this principal.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only sessions with this type of state.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many. Default: all.")] = None,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
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

    found, corrupt, more = run(main())
    if json:
        print_json({"sessions": found, "more": more, "corrupt": [str(error) for error in corrupt]})
    else:
        if found:
            out.print(_table(found), soft_wrap=False)
        else:
            out.print("no sessions")
        if more:
            out.print(f"… {len(found)} shown; see more with --limit")
        for error in corrupt:
            err.print(f"corrupt: {printable(str(error))}")
    if corrupt:
        raise typer.Exit(1)


def _table(found: list[dict[str, Any]]) -> Table:
    names = ("type", "title", "principal", "rev", "created", "expires", "idle")
    table = Table(Column("handle", no_wrap=True), *(Column(name, overflow="fold") for name in names))
    table.box, table.pad_edge = None, False
    for head in found:
        table.add_row(
            printable(head["handle"]),
            _short(head["type"]) or "?",
            _short(head["title"]),
            printable(head["principal"]),
            str(head["rev"]),
            moment(head["created"]),
            moment(head["expires"]),
            _span(head["idle"]),
        )
    return table


@app.command()
def show(
    handle: HandleArgument,
    store: StoreUrl,
    rev: Annotated[int | None, typer.Option(min=1, help="Show the state as it was at this revision.")] = None,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Show one session and its state."""

    async def main() -> tuple[Record, dict[str, Any]]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await records.find(opened, handle)
            return record, await records.at(opened, record, record.rev if rev is None else rev)

    record, kept = run(main())
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
            out.print(f"{name:<10} {printable(' '.join(value.split()))}")
    out.print("state" if rev is None else f"state at revision {rev}", style="bold")
    print_json(head["state"])


@app.command()
def log(
    handle: HandleArgument,
    store: StoreUrl,
    last: Annotated[int, typer.Option(min=1, help="Show this many of the newest entries.")] = 20,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
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

    found = run(main())
    older = found[0].seq - 1 if found else 0
    if json:
        print_json({"handle": handle, "entries": [_entry(each) for each in found], "older": older})
        return
    if not found:
        out.print("no entries yet")
        return
    table = Table("seq", "rev", "time", "label", "what changed", box=None, pad_edge=False)
    for entry in found:
        shown = _entry(entry)
        table.add_row(str(entry.seq), str(entry.rev), moment(entry.at), _short(shown["label"]), _changed(shown))
    out.print(table, soft_wrap=False)
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


@app.command()
def fork(
    handle: HandleArgument,
    store: StoreUrl,
    rev: Annotated[
        int | None, typer.Option(min=1, help="Begin with the state at this revision. Default: the newest.")
    ] = None,
    title: Annotated[str, typer.Option(help="The new session's title. Default: the old one's.")] = "",
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Begin another session of the same owner with this one's state; print its handle."""

    async def main() -> Record:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await records.fork(opened, await records.find(opened, handle), rev, title)

    child = run(main())
    if json:
        print_json(_head(child))
    else:
        out.print(child.id)


@app.command()
def erase(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="As `ls` shows it.", show_default=False)],
    store: StoreUrl,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Remove everything that the store has of one principal: sessions, logs, results, outlines and tombstones."""
    if principal == ANONYMOUS:
        raise typer.BadParameter("what anonymous callers have is everybody's: end their sessions by handle")

    async def main() -> int:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await opened.erase(principal)

    erased = run(main())
    if json:
        print_json({"principal": principal, "erased": erased})
    else:
        out.print(f"erased {erased} records of {printable(principal)}")
    if not erased:
        raise typer.Exit(1)


@app.command()
def end(
    handles: Annotated[list[str], typer.Argument(metavar="HANDLE...", help="Their handles.", show_default=False)],
    store: StoreUrl,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
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

    done = run(main())
    absent = {each: why for each, why in done.items() if why is not None}
    if json:
        print_json({"ended": [each for each in done if each not in absent], "absent": absent})
    else:
        for each, why in done.items():
            if why is None:
                out.print(f"ended session {each}")
            else:
                reason = "it was ended before" if why == "ended" else "it is unknown here"
                out.print(f"there was no session {printable(each)} to end: {reason}")
    if absent:
        raise typer.Exit(1)
