"""`holdfast runs …`: durable runs in a store."""

import asyncio
from pathlib import Path
from typing import Any

import click

from holdfast.cli.keys import keys_option, read_keys
from holdfast.cli.output import moment, print_json, table
from holdfast.cli.program import argument, command, json_option, store_option
from holdfast.cli.records import Found, all_records, as_json, refuse_corrupt, state_of
from holdfast.cli.terminal import inline, out
from holdfast.client.files import load_servers
from holdfast.client.runs.durable import KIND, RunRecord, end_sessions, life_of, server_of
from holdfast.core.models import Record, RunId
from holdfast.errors import NotFound
from holdfast.links.memory.store import KIND as LINKS
from holdfast.stores import Store, open_store

_store = store_option("The store, e.g. sqlite:///runs.db")
_id = argument("id", "ID", "The run's id.")


async def _links(store: Store, run: Record) -> dict[str, Record]:
    """The sessions of a run, by server."""
    life = life_of(run)
    records, corrupt = await all_records(store, LINKS)
    for error in corrupt:
        if error.id is not None and server_of(error.id, run.id, life) is not None:
            raise error
    found = {server_of(record.id, run.id, life): record for record in records}
    return {server: record for server, record in found.items() if server is not None}


@command()
@_store
@keys_option
@json_option
def ls(store: str, keys_file: Path | None, json: bool) -> None:
    """List the runs that may be continued."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, KIND)

    records, corrupt = asyncio.run(main())
    if json:
        print_json([as_json(record) for record in records])
        refuse_corrupt(corrupt, json)
        return
    rows: list[tuple[str, ...]] = []
    for record in records:
        data = record.data if isinstance(record.data, dict) else {}
        servers = data.get("servers")
        names = ", ".join(str(name) for name in servers) if isinstance(servers, list) else ""
        rows.append((record.id, record.principal, names, moment(record.touched)))
    table(("run", "principal", "servers", "last used"), rows, whole=("last used",))
    refuse_corrupt(corrupt, json)


@command()
@_id
@_store
@keys_option
@json_option
def show(id: str, store: str, keys_file: Path | None, json: bool) -> None:
    """Show a run and its sessions, with shortened ids, because a full id is enough to use a session."""

    async def main() -> tuple[Record, dict[str, Record]]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await opened.get(KIND, id, dead=True)
            if record is None:
                raise NotFound(f"no run {id!r}", remedy="`holdfast runs ls` lists them")
            return record, await _links(opened, record)

    record, links = asyncio.run(main())
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
    out.print(f"run {inline(record.id)}: {state_of(record)}, of {inline(record.principal)}")
    for each in sessions:
        shown = f"{each['server']}: era {each['era']}, session {each['session'] or 'none'}"
        out.print(f"  {inline(shown)}")


@command()
@_id
@_store
@click.option(
    "--servers",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="An mcp.json: sessions at its servers are ended there.",
)
@keys_option
@json_option
def end(id: str, store: str, servers: Path | None, keys_file: Path | None, json: bool) -> None:
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

    ended = asyncio.run(main())
    if json:
        print_json({"run": id, "ended": ended})
    else:
        out.print(f"ended run {inline(id)}" if ended else f"there was no run {inline(id)} to end")
    if not ended:
        raise click.exceptions.Exit(1)
