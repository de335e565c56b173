"""The demo: three servers behind a gateway, one of which is killed while a session goes on. What `make run` does.

It starts the demo's processes, prints what happens, and leaves no process behind.
"""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.client.runs.scope import run
from holdfast.client.server import Server
from holdfast.core.eras import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.calls.results import ERROR
from holdfast.gateway.config.file import Config, load_config
from holdfast.gateway.server import Program

START_SECONDS = 30.0  # for a demo server to listen
Say = Callable[[str], None]


class Demo:
    """Two HTTP servers in processes of their own; the third, a notebook, is the gateway's own child."""

    def __init__(self, folder: Path, port: int) -> None:
        self.ports = {"counter": _free_port(), "almanac": _free_port()}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.config_file = folder / "gateway.yaml"
        self.config_file.write_text(_yaml(self.ports, port, folder))

    async def start(self, name: str) -> None:
        self.processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"holdfast.gateway.demo.{name}", str(self.ports[name])
        )
        async with asyncio.timeout(START_SECONDS):
            while not _listens(self.ports[name]):
                await asyncio.sleep(0.05)

    async def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def stop(self) -> None:
        for name in list(self.processes):
            await self.kill(name)


@asynccontextmanager
async def started(port: int = 0) -> AsyncGenerator[tuple[Demo, Config]]:
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(Path(folder), port)
        try:
            await asyncio.gather(demo.start("counter"), demo.start("almanac"))
            yield demo, load_config(demo.config_file)
        finally:
            await demo.stop()


async def serve(say: Say, port: int) -> None:
    """Serve until the program is interrupted."""
    say("starting three small servers …")
    async with started(port) as (_, config):

        def ready(program: Program) -> None:
            entry = json.dumps({"mcpServers": {"holdfast": {"type": "http", "url": program.url}}}, indent=2)
            say(f"the gateway listens at {program.url}, in front of notebook, counter and almanac")
            say(f"for your client, an mcp.json:\n{entry}")
            say("call a tool, with that file:\n  holdfast call mcp.json holdfast counter__count")
            say("press Ctrl-C to end it")

        await Program(config).serve(ready)


async def check(say: Say) -> bool:
    """Call each server in both eras, kill one, and check that the session goes on. False: something failed."""
    say("starting three small servers and a gateway …")
    good = True

    def expect(what: str, got: object, wanted: object) -> None:
        nonlocal good
        fine = got == wanted
        good = good and fine
        say(f"{'ok  ' if fine else 'FAIL'} {what}: {got}" + ("" if fine else f", not {wanted}"))

    async with started() as (demo, config), Program(config).running() as program:
        url = program.url
        holdfast = Server("gateway", url=url, era="2025")
        async with run():
            names = {tool.name for tool in await holdfast.list_tools()}
            expect("tools of all three", len(names & TOOLS), len(TOOLS))
            expect(
                "2025 notebook, first note",
                await _say(holdfast, "notebook__write", {"text": "moss"}),
                "noted, 1 so far",
            )
            expect("2025 counter", await _say(holdfast, "counter__count"), "1")
            expect("2025 almanac", await _say(holdfast, "almanac__weekday", {"date": "2026-11-16"}), "Monday")
            for tool, arguments, wanted in (
                (
                    "notebook__write",
                    {"text": "fern"},
                    "noted, 1 so far",
                ),  # a session of its own, and the notice says so
                ("counter__count", {}, "1"),
                ("almanac__weekday", {"date": "2026-11-17"}, "Tuesday"),
            ):
                expect(f"2026 {tool}", await asyncio.to_thread(_post_2026, url, tool, arguments), wanted)
            expect("2025 counter goes on", await _say(holdfast, "counter__count"), "2")
            say("     killing the counter …")
            await demo.kill("counter")
            expect("notebook while the counter is dead", await _say(holdfast, "notebook__read"), "moss")
            expect(
                "counter while it is dead",
                (await _error_of(holdfast, "counter__count")).get("family"),
                "Unavailable",
            )
            await demo.start("counter")
            expect("counter back: the loss is reported once", await _until_back(holdfast), "SessionReplaced")
            expect("and the call after that counts", await _say(holdfast, "counter__count"), "1")
            expect(
                "the notebook was not affected",
                await _say(holdfast, "notebook__write", {"text": "lichen"}),
                "noted, 2 so far",
            )
            sessions = len(program.gateway.sessions.live) if program.gateway is not None else 0
            expect("one session from start to end", sessions, 1)
    say("all of it held" if good else "something did not hold")
    return good


TOOLS = {"notebook__write", "notebook__read", "counter__count", "counter__look", "almanac__weekday"}


async def _say(server: Server, tool: str, arguments: dict[str, Any] | None = None) -> str:
    result = await server.call_tool(tool, arguments)
    return str(getattr(result.content[0], "text", "")) if result.content else ""


async def _error_of(server: Server, tool: str) -> Mapping[str, Any]:
    """The error of a call as the gateway describes it to programs; empty if the call was made."""
    result = await server.call_tool(tool)
    return members((result.meta or {}).get(ERROR))


async def _until_back(server: Server) -> object:
    """The kind of the first error that is not "try again": the gateway tries a dead backend again after a pause."""
    async with asyncio.timeout(START_SECONDS):
        while (error := await _error_of(server, "counter__count")).get("family") == "Unavailable":
            await asyncio.sleep(0.2)
    return error.get("kind")


def _post_2026(url: str, tool: str, arguments: dict[str, Any]) -> str:
    """Make one call without a session, in plain HTTP."""
    meta: dict[str, Any] = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
    params: dict[str, Any] = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["result"]["content"][0]["text"])
    except (OSError, KeyError, ValueError, HoldfastError) as error:
        return f"{error!r}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _yaml(ports: dict[str, int], port: int, folder: Path) -> str:
    return f"""\
listen: {{port: {port}}}
store: sqlite:///{folder}/sessions.db
mcpServers:
  notebook:
    command: {sys.executable}
    args: ["-m", "holdfast.gateway.demo.notebook"]
    era: "2025"
  counter:
    url: http://127.0.0.1:{ports["counter"]}/mcp
    era: "2025"
  almanac:
    url: http://127.0.0.1:{ports["almanac"]}/mcp
    era: "2026"
"""
