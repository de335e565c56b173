"""Servers of other projects behind the gateway: from npm, on both lines of the SDK, on FastMCP, and a browser."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from conformance.interop.conftest import NPM
from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def npm(name: str, *args: str, **env: str) -> dict[str, Any]:
    """A program of npm's, run by the Node of our wheel."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = str(NPM / "node_modules" / ".bin" / name)
    return {"command": command, "args": list(args), "env": {"PATH": path, **env}, "timeout": 60}


@asynccontextmanager
async def served(folder: Path, servers: dict[str, Any], **settings: Any) -> AsyncGenerator[tuple[Program, RawClient]]:
    settings.setdefault("sessions", {"start": 20.0})
    async with gateway(folder, servers, **settings) as program, RawClient(program.url) as client:
        await client.initialize()
        yield program, client


async def call(client: RawClient, tool: str, **arguments: Any) -> str:
    answer = await client.call(tool, **arguments)
    if answer.result.get("isError"):
        raise AssertionError(answer.text[-3000:])
    return "\n".join(part.get("text", "") for part in answer.result["content"])


async def test_everything_memory_and_filesystem_together(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello from a file")
    servers = {
        "everything": npm("mcp-server-everything"),
        "memory": npm("mcp-server-memory", MEMORY_FILE_PATH=str(tmp_path / "memory.json")),
        "files": npm("mcp-server-filesystem", str(tmp_path)),
    }
    async with served(tmp_path, servers) as (program, client):
        names = await client.tools()
        assert {name.split("__")[0] for name in names} == {"everything", "memory", "files"}
        assert "echo me" in await call(client, "everything__echo", message="echo me")
        entity = {"name": "Holdfast", "entityType": "plant", "observations": ["holds fast"]}
        await call(client, "memory__create_entities", entities=[entity])
        assert "Holdfast" in await call(client, "memory__read_graph")
        assert await call(client, "files__read_text_file", path=str(tmp_path / "note.txt")) == "hello from a file"
        longest = next(name for name in names if "long" in name)
        params = {"name": longest, "arguments": {"duration": 1, "steps": 3}, "_meta": {"progressToken": "p"}}
        told = await client.ask("tools/call", params)
        progress = [
            each["params"]["progress"] for each in told.messages[:-1] if each["method"] == "notifications/progress"
        ]
        assert progress == sorted(progress)
        assert len(progress) >= 2
        resources = (await client.ask("resources/list")).result["resources"]
        assert resources
        assert (await client.ask("resources/read", {"uri": resources[0]["uri"]})).result["contents"]
        prompts = (await client.ask("prompts/list")).result["prompts"]
        plain = next(each["name"] for each in prompts if not each.get("arguments"))
        assert (await client.ask("prompts/get", {"name": plain})).result["messages"]
        assert program.gateway is not None
        assert program.gateway.describe()["children"] == 3
        await client.delete()
        await until(lambda: program.gateway is not None and program.gateway.describe()["children"] == 0, 15)


OLD_HTTP = """
import sys
from mcp.server.fastmcp import FastMCP, Context
server = FastMCP("old", host="127.0.0.1", port=int(sys.argv[1]))
counts = {}
@server.tool()
def count(ctx: Context) -> int:
    key = id(ctx.session)
    counts[key] = counts.get(key, 0) + 1
    return counts[key]
server.run(transport="streamable-http")
"""
OLD_STDIO = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("old")
@server.tool()
def add(a: int, b: int) -> int: return a + b
server.run()
"""


async def test_both_lines_of_the_sdk_and_fastmcp(tmp_path: Path, old_python: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    old = await asyncio.create_subprocess_exec(
        str(old_python), "-c", OLD_HTTP, str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        await until(listens, 30)
        async with RealServer("sdk") as new, RealServer("fastmcp") as fast:
            servers = {
                "old": {"url": f"http://127.0.0.1:{port}/mcp"},
                "oldio": {"command": str(old_python), "args": ["-c", OLD_STDIO]},
                "new": {"url": new.url},
                "fast": {"url": fast.url},
            }
            async with served(tmp_path, servers) as (_, client):
                assert [await call(client, "old__count") for _ in range(3)] == ["1", "2", "3"]
                for name in ("oldio", "new", "fast"):
                    assert await call(client, f"{name}__add", a=2, b=3) == "5"
    finally:
        old.terminate()
        await old.wait()


PAGE = """<!doctype html><title>Moss</title><h1 id="h">Count: 0</h1>
<button onclick="n=(window.n||0)+1;window.n=n;document.getElementById('h').textContent='Count: '+n">Press me</button>"""


@asynccontextmanager
async def page_server() -> AsyncGenerator[str]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def browsers(marker: str) -> list[int]:
    """Processes of browsers that the test's own folder started."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"chrom" in line and marker.encode() in line:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(
    CHROMIUM is None and "HOLDFAST_CI" not in os.environ,
    reason="Debian's chromium is not installed; `.ci/run` installs it, and does not skip",
)
async def test_a_browser_stays_open_between_calls_and_goes_with_its_session(tmp_path: Path) -> None:
    """Navigate in one call, read and click the same page in later ones, two clients with two browsers."""
    with tempfile.TemporaryDirectory(prefix="hf") as short:  # a browser's socket needs a short path
        await _two_browsers(tmp_path, Path(short))


async def _two_browsers(tmp_path: Path, profile: Path) -> None:
    browser = npm(
        "playwright-mcp", "--headless", "--isolated", "--no-sandbox", "--executable-path", str(CHROMIUM),
        "--output-dir", str(tmp_path / "out"),
        TMPDIR=str(profile), HOME=str(tmp_path), PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD="1",
    )  # fmt: skip
    async with (
        page_server() as url,
        served(tmp_path, {"browser": browser}) as (program, one),
        RawClient(program.url) as two,
    ):
        await two.initialize()
        for client in (one, two):
            assert "Moss" in await call(client, "browser__browser_navigate", url=url)
        for presses in range(1, 4):
            snapshot = await call(one, "browser__browser_snapshot")
            assert f"Count: {presses - 1}" in snapshot
            line = next(line for line in snapshot.splitlines() if "button" in line and "Press me" in line)
            ref = line.partition("[ref=")[2].partition("]")[0]
            await call(one, "browser__browser_click", element="Press me", target=ref, ref=ref)
        assert "Count: 3" in await call(one, "browser__browser_snapshot")
        assert "Count: 0" in await call(two, "browser__browser_snapshot")  # another browser
        assert len(browsers(str(profile))) >= 2
        await one.delete()
        assert "Count: 0" in await call(two, "browser__browser_snapshot")
        await two.delete()
        await until(lambda: not browsers(str(profile)), 20)
