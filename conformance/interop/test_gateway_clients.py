"""Clients of other projects through the gateway: each lists, calls, counts, reads, gets a prompt, answers a question."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from fastmcp import Client as FastClient
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.prebuilt import create_react_agent
from mcp import Client

import holdfast
from conformance.interop.conftest import NPM, stage
from holdfast.integrations.langchain import tools as langchain_tools

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


async def printed(*command: str, cwd: Path) -> Any:
    """The last line that a program printed, as JSON."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    assert process.returncode == 0, (out[-1500:], err[-1500:])
    return out.decode()


def check(got: dict[str, Any], asked: bool = True) -> None:
    assert {"real__add", "counter__count"} <= set(got["tools"])
    assert got["add"] == "5"
    assert got["counts"] == ["1", "2", "3"]
    assert got["progress"] == [1, 2, 3]
    assert got["resource"] == "note one"
    assert "moss" in got["prompt"]
    if asked:
        assert got["booked"] == "row 7 is yours"


@pytest.mark.parametrize("line", ["v1", "v2"])
async def test_the_typescript_sdk(tmp_path: Path, line: str) -> None:
    async with stage(tmp_path) as (program, http):
        got = json.loads((await printed("node", str(HERE / "ts_client.mjs"), line, program.url, cwd=NPM)).strip())
        check(got)
        assert http.sessions.handshakes == 2  # the client's, and the gateway's own for lists


async def test_the_sdks_first_line(tmp_path: Path, old_python: Path) -> None:
    async with stage(tmp_path) as (program, _):
        check(json.loads(await printed(str(old_python), str(HERE / "mcp1_client.py"), program.url, cwd=tmp_path)))


async def elicit(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"row": 7})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client(tmp_path: Path, mode: Any) -> None:
    progress: list[float] = []

    async def told(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with stage(tmp_path) as (program, _), Client(program.url, mode=mode, elicitation_callback=elicit) as client:

        async def call(name: str, **arguments: Any) -> str:
            first = (await client.call_tool(name, arguments)).content[0]
            assert isinstance(first, types.TextContent)
            return first.text

        got: dict[str, Any] = {
            "tools": [tool.name for tool in (await client.list_tools()).tools],
            "add": await call("real__add", a=2, b=3),
            "counts": [await call("counter__count") for _ in range(3)],
        }
        await client.call_tool("real__steps", {"count": 3}, progress_callback=told)
        got["progress"] = progress
        got["booked"] = await call("real__book")
        got["resource"] = (await client.read_resource("note://one")).contents[0].text  # type: ignore[union-attr]
        got["prompt"] = str((await client.get_prompt("real__greet", {"name": "moss"})).messages[0].content)
        check(got)


async def test_the_sdks_client_pinned_to_2026_with_a_handle(tmp_path: Path) -> None:
    settings = {"handles": True}
    async with stage(tmp_path, sessions=settings) as (program, _), Client(program.url, mode="2026-07-28") as client:
        opened = await client.call_tool("holdfast__open_session", {})
        assert opened.structured_content is not None
        handle = opened.structured_content["holdfast_session"]
        counts = [
            (await client.call_tool("counter__count", {"holdfast_session": handle})).content[0].text  # type: ignore[union-attr]
            for _ in range(3)
        ]
        assert counts == ["1", "2", "3"]
        assert (await client.call_tool("real__add", {"a": 2, "b": 3})).content[0].text == "5"  # type: ignore[union-attr]
        assert (await client.read_resource("note://one")).contents[0].text == "note one"  # type: ignore[union-attr]
        assert "moss" in str((await client.get_prompt("real__greet", {"name": "moss"})).messages)
        assert any(tool.name == "real__book" for tool in (await client.list_tools()).tools)


async def test_fastmcps_client(tmp_path: Path) -> None:
    progress: list[float] = []

    async def told(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def row(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return {"row": 7}

    async with stage(tmp_path) as (program, _), FastClient(program.url, elicitation_handler=row) as client:

        async def call(name: str, **arguments: Any) -> str:
            return (await client.call_tool(name, arguments)).content[0].text  # type: ignore[union-attr]

        got: dict[str, Any] = {
            "tools": [tool.name for tool in await client.list_tools()],
            "add": await call("real__add", a=2, b=3),
            "counts": [await call("counter__count") for _ in range(3)],
        }
        await client.call_tool("real__steps", {"count": 3}, progress_handler=told)
        got["progress"] = progress
        got["booked"] = await call("real__book")
        got["resource"] = (await client.read_resource("note://one"))[0].text  # type: ignore[union-attr]
        got["prompt"] = str((await client.get_prompt("real__greet", {"name": "moss"})).messages[0].content)
        check(got)


class Scripted(GenericFakeChatModel):
    """A model that says what it is told to."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


@pytest.mark.filterwarnings("ignore:create_react_agent")
async def test_a_langgraph_agent(tmp_path: Path) -> None:
    """One session at the gateway, and behind it one at the counter, for the whole graph run."""
    async with stage(tmp_path) as (program, http):
        server = holdfast.Server("gw", url=program.url)
        async with holdfast.run():
            tools = await langchain_tools([server])
            count = next(tool.name for tool in tools if "counter__count" in tool.name)
            calls = [AIMessage("", tool_calls=[{"name": count, "args": {}, "id": str(number)}]) for number in range(3)]
            model = Scripted(messages=iter([*calls, AIMessage("counted")]))
            agent = create_react_agent(model, tools)
            done = await agent.ainvoke({"messages": [HumanMessage("count to three")]})
        counted = [message.content for message in done["messages"] if isinstance(message, ToolMessage)]
        assert [str(text) if isinstance(text, str) else text[0]["text"] for text in counted] == ["1", "2", "3"]
        assert http.sessions.handshakes == 2


async def test_the_inspectors_command_line(tmp_path: Path) -> None:
    inspector = str(NPM / "node_modules" / ".bin" / "mcp-inspector")
    async with stage(tmp_path) as (program, _):

        async def ask(*arguments: str) -> Any:
            command = (inspector, "--cli", program.url, "--transport", "http", *arguments)
            return json.loads(await printed(*command, cwd=NPM))

        assert "real__add" in [tool["name"] for tool in (await ask("--method", "tools/list"))["tools"]]
        added = await ask(
            "--method", "tools/call", "--tool-name", "real__add", "--tool-arg", "a=2", "--tool-arg", "b=3"
        )
        assert added["content"][0]["text"] == "5"
        read = await ask("--method", "resources/read", "--uri", "note://one")
        assert read["contents"][0]["text"] == "note one"
        prompt = await ask("--method", "prompts/get", "--prompt-name", "real__greet", "--prompt-args", "name=moss")
        assert "moss" in str(prompt)
