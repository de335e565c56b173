"""`holdfast top`: what the gateways of a store do right now."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import click

from holdfast.cli.gateways import opened, processes, store_url, which_options
from holdfast.cli.keys import keys_option
from holdfast.cli.output import print_json
from holdfast.cli.program import command, json_option
from holdfast.cli.terminal import Styled, out
from holdfast.cli.top_view import Gateway, screen
from holdfast.errors import HoldfastError
from holdfast.gateway.admin.client import AdminClient
from holdfast.gateway.admin.processes import GatewayProcess
from holdfast.stores import Store

EVERY_SECONDS = 1.0
ONCE_SECONDS = 1.0  # over which rates are measured for one snapshot
SESSIONS = 200  # that are fetched of each gateway
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor


class Watch:
    """Connections to the gateways of a store, made and given up as they come and go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, tuple[AsyncExitStack, AdminClient]] = {}

    async def look(self) -> list[Gateway]:
        """Every gateway, with a snapshot where it could be had."""
        found = await processes(self._store)
        known = {process.id for process in found}
        for id in [id for id in self._open if id not in known]:
            await self._drop(id)
        return list(await asyncio.gather(*(self._look(process) for process in found)))

    async def _look(self, process: GatewayProcess) -> Gateway:
        if process.socket is None:
            return Gateway(process, None, process.why)
        try:
            if process.id not in self._open:
                stack = AsyncExitStack()
                client = await stack.enter_async_context(AdminClient.connected(process.socket))
                self._open[process.id] = stack, client
            return Gateway(process, await self._open[process.id][1].snapshot(SESSIONS), None)
        except HoldfastError as error:
            await self._drop(process.id)
            return Gateway(process, None, error.what)

    async def _drop(self, id: str) -> None:
        if (found := self._open.pop(id, None)) is not None:
            await found[0].aclose()

    async def close(self) -> None:
        for id in list(self._open):
            await self._drop(id)


@asynccontextmanager
async def _watching(url: str, keys_file: Path | None) -> AsyncGenerator[Watch]:
    async with opened(url, keys_file) as store:
        watch = Watch(store)
        try:
            yield watch
        finally:
            await watch.close()


@command()
@which_options()
@keys_option
@click.option("--once", is_flag=True, help="Print one snapshot and exit, as also where the output is no terminal.")
@json_option
def top(store: str | None, config: Path | None, keys_file: Path | None, once: bool, json: bool) -> None:
    """Show live what the gateways of a store do: sessions, backends, calls a second.

    q or Ctrl-C quits. Gateways on other machines are shown by their records. --json prints one snapshot.
    """
    url = store_url(store, config)
    is_live = out.is_terminal and sys.stdin.isatty() and sys.platform != "win32"
    if once or json or not is_live:
        _print_once(asyncio.run(_once(url, keys_file)), url, json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_live(url, keys_file))


async def _once(url: str, keys_file: Path | None) -> list[Gateway]:
    async with _watching(url, keys_file) as watch:
        await watch.look()  # a gateway measures calls while somebody reads
        await asyncio.sleep(ONCE_SECONDS)
        return await watch.look()


def _print_once(found: list[Gateway], url: str, json: bool) -> None:
    if json:
        print_json({"at": time.time(), "gateways": [each.to_json() for each in found]})
        return
    for line in screen(found, url, out.width, None):
        out.print(line)


async def _live(url: str, keys_file: Path | None) -> None:
    quit = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP"):
        loop.add_signal_handler(getattr(signal, name), quit.set)
    async with _watching(url, keys_file) as watch:
        with _raw_terminal(), _keys(loop, quit):
            while not quit.is_set():
                try:
                    lines = screen(await watch.look(), url, *_size())
                except HoldfastError as error:  # the store is away for now
                    lines = [f"holdfast top: {error.what}"]
                _draw(lines)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(quit.wait(), EVERY_SECONDS)


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns - 1, size.lines  # a character in the last column may be erased with the rest of its line


def _draw(lines: Sequence[str | Styled]) -> None:
    """Draw the screen over the last one, without a flicker."""
    parts = [f"{out.shown(line)}\x1b[K" for line in lines]
    out.write("\x1b[H" + "\r\n".join(parts) + "\x1b[J")


@contextmanager
def _raw_terminal() -> Generator[None]:
    """The alternate screen, with keys as they are pressed; at the end, as it was."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        out.write(_ENTER)
        yield
    finally:
        out.write(_LEAVE)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, quit: asyncio.Event) -> Generator[None]:
    def pressed() -> None:
        keys = os.read(sys.stdin.fileno(), 100)
        if not keys or b"q" in keys or b"Q" in keys:
            quit.set()

    loop.add_reader(sys.stdin.fileno(), pressed)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin.fileno())
