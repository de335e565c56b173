"""`holdfast serve|check|sessions|backends|token|demo`: the gateway from the terminal."""

import asyncio
import gc
import json as json_module
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from holdfast.cli.keys import KeysFile, read_keys
from holdfast.cli.output import JsonFlag, as_json, err, moment, out, print_json, printable, run
from holdfast.cli.records import Found, all_records, refuse_corrupt
from holdfast.core.models import Record
from holdfast.core.values import members
from holdfast.errors import HoldfastError, NotFound
from holdfast.gateway.auth import new_token
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.config.file import Config, Mistake, load_config, read_config
from holdfast.gateway.config.settings import Token
from holdfast.gateway.sessions.record import KIND, record_id
from holdfast.stores import open_store

File = Annotated[Path, typer.Argument(metavar="CONFIG", help="An mcp.json, or YAML with policies.", show_default=False)]
StoreUrl = Annotated[str, typer.Option("--store", help="The gateway's store, e.g. sqlite:///g.db", show_default=False)]
sessions = typer.Typer(help="Sessions of the gateway: list, show, end.", no_args_is_help=True)
token = typer.Typer(help="Tokens for callers.", no_args_is_help=True)


def serve(
    config: File,
    host: Annotated[str | None, typer.Option(help="Bind to this address.", show_default=False)] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Bind to this port; 0 takes a free one.", show_default=False)
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="The store of sessions, e.g. sqlite:///g.db", show_default=False)
    ] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve one client over stdin and stdout.")] = False,
    keys_file: KeysFile = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow binding beyond loopback without auth.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level INFO, not WARNING.")] = False,
) -> None:
    """Serve the servers of a file behind one endpoint."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )

    async def main() -> None:
        loaded = _with(load_config(config), host, port, store)
        keys = read_keys(keys_file)
        if stdio:
            from holdfast.gateway.fronts.stdio import serve_stdio

            await serve_stdio(loaded, keys)
            return
        from holdfast.gateway.server import Program

        def ready(program: Program) -> None:
            names = ", ".join(loaded.entries)
            err.print(f"holdfast serves {names or 'no server'} at {program.url}")
            gc.collect()
            gc.freeze()  # objects built at start are permanent: exclude them from garbage collection
            gc.collect()  # else a full collection would wait until a quarter as many new objects exist
            # A call leaves no reference cycle. An ended session leaves one of about eighty old objects,
            # which only a full collection frees: this runs one every few hundred sessions.
            gc.set_threshold(2_000, 5, 2)
            err.print(f"sessions are kept in {program.gateway.store.url if program.gateway else 'memory:'}")

        await Program(loaded, insecure=insecure, keys=keys).serve(ready)

    _faster()
    run(main())


def _with(config: Config, host: str | None, port: int | None, store: str | None) -> Config:
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    listen = config.settings.listen.model_copy(update=changes)
    settings = config.settings.model_copy(update={"listen": listen, **({"store": store} if store else {})})
    return Config(settings, config.entries, config.path)


def _faster() -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # pyright: ignore[reportDeprecated] - 3.11 has no other way


def check(
    config: File,
    insecure: Annotated[bool, typer.Option("--insecure", help="Check as for `serve --insecure`.")] = False,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Show every mistake in a configuration, with its line and remedy, and the programs that are missing here."""
    loaded, mistakes = read_config(config, here=True, insecure=insecure)
    if loaded is not None and (lacking := run(_lacking(loaded, keys_file))) is not None:
        loaded, mistakes = None, [lacking]
    if json:
        found = [{"line": m.line, "where": m.where, "what": m.what, "remedy": m.remedy} for m in mistakes]
        print_json({"file": str(config), "good": loaded is not None, "mistakes": found})
    elif loaded is not None:
        out.print(f"{config}: good, {len(loaded.entries)} servers: {', '.join(loaded.entries) or 'none'}")
    else:
        for mistake in mistakes:
            err.print(f"{config}: {printable(str(mistake))}")
    if loaded is None:
        raise typer.Exit(1)


async def _lacking(config: Config, keys_file: Path | None) -> Mistake | None:
    from holdfast.gateway.process.place import check_place

    try:
        await check_place(config, read_keys(keys_file))
    except HoldfastError as error:
        return Mistake(None, "", error.what, error.remedy)
    return None


def _data(record: Record) -> dict[str, Any]:
    return members(record.data)


@sessions.command("ls")
def sessions_ls(store: StoreUrl, keys_file: KeysFile = None, json: JsonFlag = False) -> None:
    """List the live sessions, by the names of their records."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, KIND)

    records, corrupt = run(main())
    if json:
        print_json([{**as_json(record), "data": _shown(record)} for record in records])
        refuse_corrupt(corrupt)
        return
    table = Table("session", "principal", "client", "era", "backends", "last used", box=None, pad_edge=False)
    for record in records:
        shown = _shown(record)
        table.add_row(
            record.id,
            printable(record.principal),
            printable(str(shown["client"])),
            str(shown["era"]),
            printable(", ".join(shown["backends"])),
            moment(record.touched),
        )
    out.print(table)
    refuse_corrupt(corrupt)


def _shown(record: Record) -> dict[str, Any]:
    """The fields of a session that may be shown: not the ids of its sessions at backends, which suffice to use them."""
    data = _data(record)
    info = members(members(data.get("client")).get("info"))
    return {
        "client": info.get("name", "?"),
        "era": data.get("era"),
        "log_level": data.get("log_level"),
        "subscriptions": data.get("subscriptions"),
        "backends": sorted(members(data.get("backends"))),
    }


@sessions.command("show")
def sessions_show(
    id: Annotated[str, typer.Argument(help="The record's name, or the session's id.", show_default=False)],
    store: StoreUrl,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Show one session."""

    async def main() -> Record:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await opened.get(KIND, id, dead=True) or await opened.get(KIND, record_id(id), dead=True)
            if record is None:
                raise NotFound(f"no session {id[:12]!r}", remedy="`holdfast sessions ls` lists them")
            return record

    record = run(main())
    if json:
        print_json({**as_json(record), "data": _shown(record)})
        return
    out.print(f"session {record.id} of {printable(record.principal)}")
    for name, value in _shown(record).items():
        out.print(f"  {name}: {printable(str(value))}")
    out.print(f"  begun: {moment(record.created)}, last used: {moment(record.touched)}, ended: {moment(record.ended)}")


@sessions.command("end")
def sessions_end(
    id: Annotated[str, typer.Argument(help="The record's name, or the session's id.", show_default=False)],
    config: Annotated[
        Path, typer.Option("--config", help="The gateway's file: sessions at its servers are ended, too.")
    ],
    store: Annotated[str | None, typer.Option("--store", help="The store, if not the file's.")] = None,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """End a session, in the store and at its servers. A gateway that serves it is notified."""

    async def main() -> bool:
        from holdfast.gateway.gateway import Gateway

        loaded = _with(load_config(config), None, None, store)
        async with open_store(loaded.store_url, keys=read_keys(keys_file), create=False) as opened:
            gateway = Gateway(loaded, opened)
            endings = gateway.sessions.endings
            try:
                return await endings.end_by_key(id) or await endings.end_by_key(record_id(id))
            finally:
                for backend in gateway.backends.values():
                    await backend.close_pool()

    ended = run(main())
    if json:
        print_json({"session": id, "ended": ended})
    else:
        out.print(f"ended session {printable(id)}" if ended else f"there was no session {printable(id)} to end")
    if not ended:
        raise typer.Exit(1)


def backends(store: StoreUrl, keys_file: KeysFile = None, json: JsonFlag = False) -> None:
    """Show every gateway process that uses a store, and the state of its backends."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, PROCESSES)

    records, corrupt = run(main())
    if json:
        print_json([{**_data(record), "seen": record.touched} for record in records])
        refuse_corrupt(corrupt)
        return
    if not records and not corrupt:
        out.print("no gateway uses this store")
    for record in records:
        data = _data(record)
        head = f"{data.get('address')} (pid {data.get('pid')}): {data.get('sessions')} live sessions"
        out.print(f"{head}, {data.get('children')} children, seen {moment(record.touched)}")
        table = Table("backend", "state", "since", "era", "tools", "why", box=None, pad_edge=False)
        for name, each in members(data.get("backends")).items():
            table.add_row(
                printable(name),
                str(each.get("state")),
                moment(each.get("since")),
                str(each.get("era") or "?"),
                str(each.get("tools") if each.get("tools") is not None else "?"),
                printable(str(each.get("why") or "")),
            )
        out.print(table)
        for name, each in members(data.get("backends")).items():
            for what in each.get("left_out") or ():
                out.print(f"  {printable(name)}: left out of its lists: {printable(str(what))}")
    refuse_corrupt(corrupt)


@token.command("new")
def token_new(
    principal: Annotated[str, typer.Argument(help="The principal of the caller that will use it.", show_default=False)],
    json: JsonFlag = False,
) -> None:
    """Create a token. It is shown only once; put its hash into the configuration file."""
    made, digest = new_token()
    try:
        Token(hash=digest, principal=principal)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        err.print(f"error: {printable(repr(principal))} can't be a principal: {printable(why)}")
        raise typer.Exit(2) from None
    if json:
        print_json({"token": made, "hash": digest, "principal": principal})
        return
    out.print(f"token for {printable(principal)}, shown only now:\n  {made}")
    out.print(f"for the file:\nauth:\n  tokens:\n    - {{hash: {digest!r}, principal: {json_module.dumps(principal)}}}")


def demo(
    check: Annotated[
        bool, typer.Option("--check", help="Kill a server, check that the session survives, and exit.")
    ] = False,
    port: Annotated[int, typer.Option(help="The gateway's port; 0 takes a free one.")] = 8808,
) -> None:
    """Start three small servers behind a gateway."""
    from holdfast.gateway.demo import show

    _faster()
    if not check:
        run(show.serve(out.print, port))
    elif not run(show.check(out.print)):
        raise typer.Exit(1)
