"""`holdfast serve|check|sessions|backends|token|demo`: the gateway from the terminal."""

import asyncio
import gc
import getpass
import json as json_module
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic import ValidationError

from holdfast.cli.keys import keys_option, read_keys
from holdfast.cli.output import moment, print_json, table
from holdfast.cli.program import argument, command, json_option, store_option
from holdfast.cli.records import Found, all_records, as_json, refuse_corrupt
from holdfast.cli.terminal import err, indented, inline, out
from holdfast.core.models import Principal, Record
from holdfast.core.values import members
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.events import SessionAdministered
from holdfast.gateway.auth import new_token
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.config.callers import Token
from holdfast.gateway.config.file import Config, Mistake, load_config, read_config
from holdfast.gateway.sessions.record import KIND, record_id
from holdfast.links.trace import current_trace_id
from holdfast.observers import add_observer, deliver, remove_observer
from holdfast.sinks.logs.output import Choice, Level, Logging
from holdfast.sinks.logs.sink import LogSink
from holdfast.stores import open_store

T = TypeVar("T")

_config = argument("config", "CONFIG", "An mcp.json, or YAML with policies.", type=click.Path(path_type=Path))
_id = argument("id", "ID", "The record's name, or the session's id.")
_store = store_option("The gateway's store, e.g. sqlite:///g.db")


@command()
@_config
@click.option("--host", metavar="ADDRESS", help="Bind to this address.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="Bind to this port; 0 takes a free one.")
@click.option("--store", metavar="URL", help="The store of sessions, e.g. sqlite:///g.db")
@click.option("--stdio", is_flag=True, help="Serve one client over stdin and stdout.")
@keys_option
@click.option("--insecure", is_flag=True, help="Allow binding beyond loopback without auth.")
@click.option(
    "--log-format",
    type=click.Choice(get_args(Choice)),
    help="The form of lines on stderr; auto: text on a terminal, else JSON. By default the file's observe.logs.",
)
@click.option("--log-level", type=click.Choice(get_args(Level)), help="The least severe lines that are written.")
@click.option("--verbose", "-v", is_flag=True, help="The same as --log-level info.")
@click.option("--json", is_flag=True, help="Print the address as one line of JSON when ready, and errors as JSON.")
def serve(
    config: Path,
    host: str | None,
    port: int | None,
    store: str | None,
    stdio: bool,
    keys_file: Path | None,
    insecure: bool,
    log_format: Choice | None,
    log_level: Level | None,
    verbose: bool,
    json: bool,
) -> None:
    """Serve the servers of a file behind one endpoint."""
    if json and stdio:
        raise click.UsageError("--json prints to stdout, which --stdio uses for messages")
    log_level = log_level or ("info" if verbose else None)

    async def main() -> None:
        loaded = _with(load_config(config), host, port, store)
        wanted = loaded.settings.observe.logs
        logs.choose(log_level or wanted.level, log_format or wanted.format)
        keys = read_keys(keys_file)
        if stdio:
            from holdfast.gateway.fronts.stdio import serve_stdio

            await serve_stdio(loaded, keys)
            return
        from holdfast.gateway.server import Program

        def ready(program: Program) -> None:
            kept = program.gateway.store.url if program.gateway else "memory:"
            if json:
                print_json({"url": program.url, "servers": list(loaded.entries), "store": kept}, lines=False)
            else:
                names = inline(", ".join(loaded.entries))
                err.print(f"holdfast serves {names or 'no server'} at {program.url}")
            gc.collect()
            gc.freeze()  # objects built at start are permanent: exclude them from garbage collection
            gc.collect()  # else a full collection would wait until a quarter as many new objects exist
            # A call leaves no reference cycle. An ended session leaves one of about eighty old objects,
            # which only a full collection frees: this runs one every few hundred sessions.
            gc.set_threshold(2_000, 5, 2)
            if not json:
                err.print(f"sessions are kept in {kept}")

        await Program(loaded, insecure=insecure, keys=keys).serve(ready)

    with _logging(log_level or "warning", log_format or "auto") as logs:
        _run(main())


@contextmanager
def _logging(level: Level = "warning", format: Choice = "text") -> Generator[Logging]:
    """With log lines on stderr, also of what happens."""
    logs, sink = Logging(level, format, colour=err.has_colour, trace_id=current_trace_id), LogSink()
    add_observer(sink)
    try:
        yield logs
    finally:
        remove_observer(sink)
        sink.close()
        logs.close()


def _with(config: Config, host: str | None, port: int | None, store: str | None) -> Config:
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    listen = config.settings.listen.model_copy(update=changes)
    settings = config.settings.model_copy(update={"listen": listen, **({"store": store} if store else {})})
    return Config(settings, config.entries, config.path)


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run a gateway, on the faster event loop where there is one."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # not on Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


@command()
@_config
@click.option("--insecure", is_flag=True, help="Check as for `serve --insecure`.")
@keys_option
@json_option
def check(config: Path, insecure: bool, keys_file: Path | None, json: bool) -> None:
    """Show every mistake in a configuration, with its line and remedy, and the programs that are missing here."""
    loaded, mistakes = read_config(config, here=True, insecure=insecure)
    if loaded is not None and (lacking := asyncio.run(_lacking(loaded, keys_file))) is not None:
        loaded, mistakes = None, [lacking]
    shown = inline(str(config))
    if json:
        found = [{"line": m.line, "where": m.where, "what": m.what, "remedy": m.remedy} for m in mistakes]
        print_json({"file": str(config), "good": loaded is not None, "mistakes": found})
    elif loaded is not None:
        names = inline(", ".join(loaded.entries))
        out.print(f"{shown}: good, {len(loaded.entries)} servers: {names or 'none'}")
    else:
        for mistake in mistakes:
            err.print(f"{shown}: {indented(str(mistake))}")
    if loaded is None:
        raise click.exceptions.Exit(1)


async def _lacking(config: Config, keys_file: Path | None) -> Mistake | None:
    from holdfast.gateway.process.place import check_place

    try:
        await check_place(config, read_keys(keys_file))
    except HoldfastError as error:
        return Mistake(None, "", error.what, error.remedy)
    return None


def _data(record: Record) -> dict[str, Any]:
    return members(record.data)


@command("ls")
@_store
@keys_option
@json_option
def sessions_ls(store: str, keys_file: Path | None, json: bool) -> None:
    """List the live sessions, by the names of their records."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, KIND)

    records, corrupt = asyncio.run(main())
    if json:
        print_json([{**as_json(record), "data": _shown(record)} for record in records])
        refuse_corrupt(corrupt, json)
        return
    rows: list[tuple[str, ...]] = []
    for record in records:
        shown = _shown(record)
        client, era, names = str(shown["client"]), str(shown["era"]), ", ".join(shown["backends"])
        rows.append((record.id, record.principal, client, era, names, moment(record.touched)))
    table(("session", "principal", "client", "era", "backends", "last used"), rows, whole=("era", "last used"))
    refuse_corrupt(corrupt, json)


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


@command("show")
@_id
@_store
@keys_option
@json_option
def sessions_show(id: str, store: str, keys_file: Path | None, json: bool) -> None:
    """Show one session."""

    async def main() -> Record:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            record = await opened.get(KIND, id, dead=True) or await opened.get(KIND, record_id(id), dead=True)
            if record is None:
                raise NotFound(f"no session {id[:12]!r}", remedy="`holdfast sessions ls` lists them")
            return record

    record = asyncio.run(main())
    if json:
        print_json({**as_json(record), "data": _shown(record)})
        return
    out.print(f"session {inline(record.id)} of {inline(record.principal)}")
    for name, value in _shown(record).items():
        out.print(f"  {name}: {inline(str(value))}")
    out.print(f"  begun: {moment(record.created)}, last used: {moment(record.touched)}, ended: {moment(record.ended)}")


@command("end")
@_id
@click.option(
    "--config",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The gateway's file: sessions at its servers are ended, too.",
)
@click.option("--store", metavar="URL", help="The store, if not the file's.")
@keys_option
@json_option
def sessions_end(id: str, config: Path, store: str | None, keys_file: Path | None, json: bool) -> None:
    """End a session, in the store and at its servers. A gateway that serves it is notified."""

    async def main() -> bool:
        from holdfast.gateway.gateway import Gateway
        from holdfast.gateway.observing import observing

        loaded = _with(load_config(config), None, None, store)
        async with (
            observing(loaded, None) as observers,
            open_store(loaded.store_url, keys=read_keys(keys_file), create=False) as opened,
            observers.using(opened),
        ):
            gateway = Gateway(loaded, opened, sink=observers.sink)
            endings, ended = gateway.sessions.endings, False
            try:
                ended = await endings.end_by_key(id) or await endings.end_by_key(record_id(id))
                return ended
            finally:
                who, key = Principal(getpass.getuser()), id if id.isalnum() else record_id(id)
                deliver(SessionAdministered(time.time(), who, "end", key[:12], ended), observers.sink)
                for backend in gateway.backends.values():
                    await backend.close_pool()

    with _logging():
        ended = asyncio.run(main())
    if json:
        print_json({"session": id, "ended": ended})
    else:
        out.print(f"ended session {inline(id)}" if ended else f"there was no session {inline(id)} to end")
    if not ended:
        raise click.exceptions.Exit(1)


@command()
@_store
@keys_option
@json_option
def backends(store: str, keys_file: Path | None, json: bool) -> None:
    """Show every gateway process that uses a store, and the state of its backends."""

    async def main() -> Found:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await all_records(opened, PROCESSES)

    records, corrupt = asyncio.run(main())
    if json:
        print_json([{**_data(record), "seen": record.touched} for record in records])
        refuse_corrupt(corrupt, json)
        return
    if not records and not corrupt:
        out.print("no gateway uses this store")
    for record in records:
        data = _data(record)
        head = f"{data.get('address')} (pid {data.get('pid')}): {data.get('sessions')} live sessions"
        out.print(inline(f"{head}, {data.get('children')} children, seen {moment(record.touched)}"))
        rows = [
            (
                name,
                str(each.get("state")),
                moment(each.get("since")),
                str(each.get("era") or "?"),
                str(each.get("tools") if each.get("tools") is not None else "?"),
                str(each.get("why") or ""),
            )
            for name, each in members(data.get("backends")).items()
        ]
        heads = ("backend", "state", "since", "era", "tools", "why")
        table(heads, rows, whole=heads)  # the terminal wraps a long reason, which is worth nothing if cut
        for name, each in members(data.get("backends")).items():
            for what in each.get("left_out") or ():
                out.print(f"  {inline(name)}: left out of its lists: {inline(str(what))}")
    refuse_corrupt(corrupt, json)


@command("new")
@argument("principal", "PRINCIPAL", "The principal of the caller that will use it.")
@json_option
def token_new(principal: str, json: bool) -> None:
    """Create a token. It is shown only once; put its hash into the configuration file."""
    made, digest = new_token()
    try:
        Token(hash=digest, principal=principal)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{principal!r} can't be a principal: {why}") from None
    if json:
        print_json({"token": made, "hash": digest, "principal": principal})
        return
    out.print(f"token for {inline(principal)}, shown only now:\n  {made}")
    out.print(f"for the file:\nauth:\n  tokens:\n    - {{hash: {digest!r}, principal: {json_module.dumps(principal)}}}")


@command()
@click.option("--check", is_flag=True, help="Kill a server, check that the session survives, and exit.")
@click.option(
    "--port", metavar="N", type=int, default=8808, show_default=True, help="The gateway's port; 0 takes a free one."
)
@click.option("--json", is_flag=True, help="With --check: print JSON instead of text, errors included.")
def demo(check: bool, port: int, json: bool) -> None:
    """Start three small servers behind a gateway."""
    from holdfast.gateway.demo import show

    if json and not check:
        raise click.UsageError("--json needs --check")
    lines: list[str] = []
    with _logging():
        if not check:
            _run(show.serve(out.print, port))
            return
        good = _run(show.check(lines.append if json else out.print))
    if json:
        print_json({"ok": good, "lines": lines})
    if not good:
        raise click.exceptions.Exit(1)
