"""`holdfast runs …`: durable runs in a store."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from holdfast.cli.keys import KeysFile, read_keys
from holdfast.cli.output import JsonFlag, as_json, moment, out, print_json, printable, run, state_of
from holdfast.cli.records import Found, all_records, refuse_corrupt
from holdfast.client.files import load_servers
from holdfast.client.runs.durable import KIND, RunRecord, end_sessions, life_of, server_of
from holdfast.core.models import Record, RunId
from holdfast.errors import NotFound
from holdfast.links.memory.store import KIND as LINKS
from holdfast.stores import Store, open_store

app = typer.Typer(help="Durable runs: list, show, end.", no_args_is_help=True)
StoreUrl = Annotated[str, typer.Option("--store", help="The store, e.g. sqlite:///runs.db", show_default=False)]
Id = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]


async def _links(store: Store, run: Record) -> dict[str, Record]:
    """The sessions of a run, by server."""
    life = life_of(run)
    records, corrupt = await all_records(store, LINKS)
    for error in corrupt:
        if error.id is not None and server_of(error.id, run.id, life) is not None:
            raise error
    found = {server_of(record.id, run.id, life): record for record in records}
    return {server: record for server, record in found.items() if server is not None}


@app.command()
def ls(store: StoreUrl, keys_file: KeysFile = None, json: JsonFlag = False) -> None:
    """List the runs that may be continued."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, KIND)

    records, corrupt = run(main())
    if json:
        print_json([as_json(record) for record in records])
        refuse_corrupt(corrupt)
        return
    table = Table("run", "principal", "servers", "last used", box=None, pad_edge=False)
    for record in records:
        data = record.data if isinstance(record.data, dict) else {}
        servers = data.get("servers")
        names = ", ".join(str(name) for name in servers) if isinstance(servers, list) else ""
        table.add_row(printable(record.id), printable(record.principal), printable(names), moment(record.touched))
    out.print(table)
    refuse_corrupt(corrupt)


@app.command()
def show(id: Id, store: StoreUrl, keys_file: KeysFile = None, json: JsonFlag = False) -> None:
    """Show a run and its sessions, with shortened ids, because a full id is enough to use a session."""

    async def main() -> tuple[Record, dict[str, Record]]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await opened.get(KIND, id, dead=True)
            if record is None:
                raise NotFound(f"no run {id!r}", remedy="`holdfast runs ls` lists them")
            return record, await _links(opened, record)

    record, links = run(main())
    sessions: list[dict[str, Any]] = []
    for server, link in links.items():
        data = link.data if isinstance(link.data, dict) else {}
        session = data.get("session")
        sessions.append(
            {
                "server": server,
                "era": data.get("era"),
                "session": f"{session[:4]}…" if isinstance(session, str) else None,
                "saved": link.touched,
            }
        )
    if json:
        print_json({**as_json(record), "sessions": sessions})
        return
    out.print(f"run {printable(record.id)}: {state_of(record)}, of {printable(record.principal)}")
    for each in sessions:
        out.print(f"  {printable(each['server'])}: era {each['era']}, session {each['session'] or 'none'}")


@app.command()
def end(
    id: Id,
    store: StoreUrl,
    servers: Annotated[Path | None, typer.Option(help="An mcp.json: sessions at its servers are ended there.")] = None,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """End a run permanently. Without --servers its sessions are left to expire at their servers."""

    async def main() -> bool:
        known = load_servers(servers).values() if servers is not None else ()
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await opened.get(KIND, id)
            if record is None:
                return False
            names = await _links(opened, record)
            run_record = RunRecord(opened, RunId(id), record.principal)
            run_record.know(record)
            await end_sessions([server for server in known if server.name in names], run_record)
            return await run_record.end(names)

    ended = run(main())
    if json:
        print_json({"run": id, "ended": ended})
    else:
        out.print(f"ended run {printable(id)}" if ended else f"there was no run {printable(id)} to end")
    if not ended:
        raise typer.Exit(1)
