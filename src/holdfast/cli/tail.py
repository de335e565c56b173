"""`holdfast tail`: the events of the gateways of a store, as they come."""

import asyncio
import json as json_module
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click

from holdfast.cli.gateways import opened, processes, store_url, which_options
from holdfast.cli.keys import keys_option
from holdfast.cli.output import print_json
from holdfast.cli.program import command
from holdfast.cli.terminal import DIM, RED, YELLOW, Styled, inline, out
from holdfast.core.values import members
from holdfast.errors import HoldfastError, UsageError
from holdfast.events import Event
from holdfast.gateway.admin.client import AdminClient
from holdfast.gateway.admin.processes import GatewayProcess
from holdfast.sinks.shown import in_utc
from holdfast.stores import Store

LOOK_SECONDS = 1.0  # between two looks for gateways that have started
_KINDS = frozenset(kind.__name__ for kind in get_args(Event))
_GOOD = frozenset({"ok", "cancelled"})
_BAD = ("Failed", "Replaced", "Refused", "LeftOut", "Warned", "Dropped")


@command()
@which_options()
@keys_option
@click.option("--session", metavar="NAME", help="Only of this client's session: the beginning of its record's name.")
@click.option("--backend", metavar="NAME", help="Only of this backend.")
@click.option("--caller", metavar="PRINCIPAL", help="Only of this caller.")
@click.option("--kind", "kinds", metavar="KIND", multiple=True, help="Only events of this kind; may be repeated.")
@click.option("--json", is_flag=True, help="Print each event as a line of JSON, errors included.")
def tail(
    store: str | None,
    config: Path | None,
    keys_file: Path | None,
    session: str | None,
    backend: str | None,
    caller: str | None,
    kinds: tuple[str, ...],
    json: bool,
) -> None:
    """Show the events of the gateways of a store on this machine, as they come; Ctrl-C ends it.

    A gateway that restarts is followed again. What was lost because this is slow is counted.
    """
    for kind in kinds:
        if kind not in _KINDS:
            raise UsageError(
                f"there is no event {kind!r}", remedy="docs/events.md lists them, e.g. --kind BackendChanged"
            )
    wanted = {"session": session, "backend": backend, "caller": caller, "kinds": list(kinds) or None}
    try:
        asyncio.run(_follow_all(store_url(store, config), keys_file, wanted, json))
    except* BrokenPipeError:  # whoever read it has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it once more at its end


async def _follow_all(url: str, keys_file: Path | None, wanted: Mapping[str, Any], json: bool) -> None:
    async with opened(url, keys_file) as store:
        printer = Printer(json)
        if not await processes(store):
            printer.note("waiting", None, f"no gateway uses {url} yet")
        async with asyncio.TaskGroup() as tasks:
            await Followers(store, wanted, printer, tasks).keep_looking()


class Followers:
    """A task for each gateway that is followed."""

    def __init__(self, store: Store, wanted: Mapping[str, Any], printer: "Printer", tasks: asyncio.TaskGroup) -> None:
        self._store = store
        self._wanted = wanted
        self._printer = printer
        self._tasks = tasks
        self._following: set[str] = set()
        self._unreachable: set[str] = set()
        self._store_failed = False

    async def keep_looking(self) -> None:
        """Follow every gateway that is there, or comes."""
        while True:
            try:
                found = await processes(self._store)
                self._store_failed = False
            except HoldfastError as error:
                if not self._store_failed:
                    self._printer.note("store", None, f"gateways that start now are not found: {error.what}")
                self._store_failed, found = True, []
            for process in found:
                if process.id not in self._following:
                    self._start(process)
            await asyncio.sleep(LOOK_SECONDS)

    def _start(self, process: GatewayProcess) -> None:
        if process.socket is None:
            if process.id not in self._unreachable:
                self._unreachable.add(process.id)
                self._printer.note("unreachable", process, f"not followed: {process.why}")
            return
        self._following.add(process.id)
        self._tasks.create_task(self._follow(process, process.socket), name=f"follow {process.name}")

    async def _follow(self, process: GatewayProcess, path: str) -> None:
        is_followed = False
        try:
            async with AdminClient.connected(path) as client:
                async for line in client.events(self._wanted):
                    if "following" in line:
                        is_followed = True
                        self._unreachable.discard(process.id)
                        self._printer.note("following", process, "following")
                    elif "lost" in line:
                        lost = line["lost"]
                        self._printer.note("lost", process, f"{lost} events were lost: reading was too slow", lost)
                    else:
                        self._printer.event(process, members(line.get("event")))
        except HoldfastError as error:
            if is_followed:
                self._printer.note("gone", process, "it is gone; events are missing until it is followed again")
            elif process.id not in self._unreachable:
                self._unreachable.add(process.id)
                self._printer.note("unreachable", process, f"not followed: {error.what}")
        finally:
            self._following.discard(process.id)


class Printer:
    """Prints events, and notes of what is followed and lost."""

    def __init__(self, json: bool) -> None:
        self._json = json

    def note(self, what: str, process: GatewayProcess | None, text: str, lost: int | None = None) -> None:
        """Something that is no event of a gateway."""
        gateway = process.name if process is not None else None
        if self._json:
            count = {} if lost is None else {"lost": lost}
            print_json({"tail": what, "gateway": gateway, "text": text, **count}, lines=False)
        else:
            out.print(Styled(inline(f"-- {f'{gateway}: ' if gateway else ''}{text}"), YELLOW if lost else DIM))

    def event(self, process: GatewayProcess, event: dict[str, Any]) -> None:
        """An event of a gateway."""
        if self._json:
            print_json({"gateway": process.name, **event}, lines=False)
            return
        kind, at = str(event.pop("kind", "?")), event.pop("at", None)
        time = in_utc(at)[11:] if isinstance(at, int | float) else "?"
        fields = " ".join(f"{name}={_value(value)}" for name, value in event.items() if value not in (None, ""))
        is_bad = kind.endswith(_BAD) or event.get("outcome", "ok") not in _GOOD or event.get("state") == "down"
        name = Styled(inline(kind), RED if is_bad else "0")
        out.print(Styled(time, DIM), inline(process.name), name, inline(fields))


def _value(value: object) -> str:
    """A value on one line; a text with spaces or quotes in it is quoted."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.isprintable() and not set(value) & set(' "='):
        return value
    return json_module.dumps(value, ensure_ascii=False)
