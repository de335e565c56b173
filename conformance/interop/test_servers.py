"""Servers of other projects over stdio: three from npm, one on the SDK's 1.x line, one on FastMCP 4."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import holdfast
from conformance.interop.conftest import NPM
from holdfast import Link
from holdfast.core.lifecycle import LinkState
from holdfast.links import CommandTarget, Limits, Options

pytestmark = pytest.mark.anyio

LIMITS = Limits(exit=1, close=3)


def npm_server(name: str, *args: str, env: Any = None) -> CommandTarget:
    return CommandTarget(str(NPM / "node_modules" / ".bin" / f"mcp-server-{name}"), args, env=env)


def link_to(target: CommandTarget, **options: Any) -> Link:
    return Link(target, Options(limits=LIMITS, **options))


async def call(link: Link, name: str, **arguments: Any) -> Any:
    result = await link.request("tools/call", {"name": name, "arguments": arguments})
    assert not result.get("isError"), result
    return result["content"][0].get("text")


async def test_server_everything() -> None:
    """Tools, progress, resources, prompts, completion, and the server's questions to us."""
    asked: list[str] = []

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        asked.append(method)
        if method == "roots/list":
            return {"roots": [{"uri": "file:///nowhere"}]}
        if method == "elicitation/create":
            return {"action": "decline"}
        return {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "none"}

    steps: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    capabilities = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
    async with link_to(npm_server("everything"), on_request=answer, capabilities=capabilities) as link:
        tools = {tool["name"] for tool in (await link.request("tools/list"))["tools"]}
        assert "echo" in await call(link, "echo", message="echo me")
        summing = "get-sum" if "get-sum" in tools else "add"
        assert "5" in await call(link, summing, a=2, b=3)
        longest = next(name for name in tools if "long" in name.lower())
        await link.request(
            "tools/call", {"name": longest, "arguments": {"duration": 1, "steps": 3}}, on_progress=progress
        )
        assert steps == sorted(steps)
        assert len(steps) >= 2
        assert (await link.request("resources/list"))["resources"]
        assert (await link.request("prompts/list"))["prompts"]
        sampler = next((name for name in tools if "sampl" in name.lower()), None)
        if sampler is not None:
            await call(link, sampler, prompt="hello", maxTokens=5)
            assert "sampling/createMessage" in asked
        assert link.statistics().opens == 1


async def test_server_memory_keeps_its_graph_and_survives_its_own_death(tmp_path: Path) -> None:
    target = npm_server("memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")})
    pids: list[int] = []

    def heard(event: Any) -> None:
        if type(event).__name__ == "ChildStarted":
            pids.append(event.pid)

    async with link_to(target, on_event=heard) as link:
        entity = {"name": "Holdfast", "entityType": "plant", "observations": ["holds fast"]}
        await call(link, "create_entities", entities=[entity])
        assert "Holdfast" in await call(link, "read_graph")
        era = link.era
        assert era is not None
        os.kill(pids[0], 9)
        async with asyncio.timeout(5):
            while link.phase is LinkState.READY:
                await asyncio.sleep(0.01)
        if era.value == "2025":
            # The program is gone, and with it the session: the next unsafe call gets the report, and the one after works.
            with pytest.raises(holdfast.SessionReplaced):
                await call(link, "read_graph")
        assert "Holdfast" in await call(link, "read_graph")  # it kept its graph in a file
        assert len(pids) == 2


async def test_server_filesystem(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello from a file")
    async with link_to(npm_server("filesystem", str(tmp_path))) as link:
        assert await call(link, "read_text_file", path=str(tmp_path / "note.txt")) == "hello from a file"
        results = await asyncio.gather(
            *(call(link, "write_file", path=str(tmp_path / f"{n}.txt"), content=str(n)) for n in range(20))
        )
        assert len(results) == 20
        assert sorted(int(path.stem) for path in tmp_path.glob("[0-9]*.txt")) == list(range(20))


OLD = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("old")
@server.tool()
def add(a: int, b: int) -> int: return a + b
server.run()
"""
NEW = """
from fastmcp import FastMCP
server = FastMCP("new")
@server.tool()
def add(a: int, b: int) -> int: return a + b
server.run(show_banner=False)
"""


async def test_a_server_on_the_sdks_first_line(old_python: Path) -> None:
    async with link_to(CommandTarget(str(old_python), ["-c", OLD])) as link:
        assert await call(link, "add", a=2, b=3) == "5"
        assert link.era is not None
        assert link.era.value == "2025"


@pytest.mark.parametrize(("era", "taken"), [("auto", "2025"), ("2026", "2026")])
async def test_a_server_on_fastmcp_offers_both_eras(era: Literal["auto", "2026"], taken: str) -> None:
    async with link_to(CommandTarget(sys.executable, ["-c", NEW]), era=era) as link:
        assert await call(link, "add", a=2, b=3) == "5"
        assert link.era is not None
        assert link.era.value == taken
