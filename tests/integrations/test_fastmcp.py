"""FastMCP's client over a link: it works in both eras, and heals where FastMCP's own transports do not."""

import asyncio
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from mcp.shared.exceptions import MCPError

from holdfast.integrations.fastmcp import holdfast_transport
from holdfast.links import Options
from holdfast.testing import Fault, FaultServer, stdio_target
from tests.links.quick_links import FAST, link_to

pytestmark = pytest.mark.anyio

OPTIONS = Options(limits=FAST, stateful=False)


@pytest.mark.promise("integrations.fastmcp")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_a_fastmcp_client_over_a_link_heals(era: Any, form: Any) -> None:
    async with FaultServer(era=era, answers=form) as server:
        async with Client(holdfast_transport(server.url, OPTIONS)) as client:
            assert {tool.name for tool in await client.list_tools()} >= {"echo", "count"}
            assert (await client.call_tool("echo", {"text": "hi"})).content[0].text == "hi"
            await server.restart()  # here FastMCP's own transport is done for
            assert (await client.call_tool("echo", {"text": "again"})).content[0].text == "again"
            server.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(MCPError):
                await client.call_tool("echo", {"text": "cut"})
            results = await asyncio.gather(*(client.call_tool("echo", {"text": str(n)}) for n in range(10)))
            assert [result.content[0].text for result in results] == [str(n) for n in range(10)]
        assert not server.sessions.sessions


@pytest.mark.promise("integrations.fastmcp")
async def test_a_program_and_an_object_are_targets_too() -> None:
    app = FastMCP("app")

    @app.tool()
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(holdfast_transport(app)) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
    async with Client(holdfast_transport(stdio_target(), OPTIONS)) as client:
        assert (await client.call_tool("count")).content[0].text == "1"
        assert (await client.call_tool("count")).content[0].text == "2"


@pytest.mark.promise("integrations.fastmcp")
async def test_a_link_that_was_given_stays_open_and_keeps_its_session() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        for turn in ("1", "2"):
            async with Client(holdfast_transport(link)) as client:
                assert (await client.call_tool("count")).content[0].text == turn
        assert server.sessions.handshakes == 1
        assert server.sessions.deletes == 0
