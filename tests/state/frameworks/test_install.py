"""Installing sessions on a server, with and without FastMCP beside the SDK."""

import subprocess
import sys

import pytest

import holdfast

WITHOUT_FASTMCP = """
import asyncio, sys
sys.modules["fastmcp"] = sys.modules["uncalled_for"] = None
import holdfast, mcp
from typing import Annotated
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

class Basket(holdfast.SessionState):
    items: list[str] = []

sessions = holdfast.Sessions(Basket)
server = MCPServer("shop")
sessions.install(server)

@server.tool()
@sessions.writes
async def add(item: str, basket: Basket, session: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> int:
    basket.items.append(item)
    return len(basket.items)

async def main():
    async with mcp.Client(server) as client:
        made = (await client.call_tool("create_basket", {})).structured_content
        added = await client.call_tool("add", {"item": "fig", "basket_id": made["basket_id"]})
        assert added.structured_content == {"result": 1}, added

asyncio.run(main())
try:
    sessions.install(object())
except holdfast.UsageError as error:
    print(error)
"""


@pytest.mark.promise("state.injection")
def test_without_fastmcp_sessions_work_on_the_sdk_and_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FASTMCP], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "must be a FastMCP or an MCPServer" in done.stdout
    assert 'pip install "holdfast[fastmcp]"' in done.stdout


@pytest.mark.promise("state.injection")
def test_a_server_of_another_framework_is_refused_with_a_way_out() -> None:
    class State(holdfast.SessionState):
        items: list[str] = []

    with pytest.raises(holdfast.UsageError, match="must be a FastMCP or an MCPServer, not a object; on another server"):
        holdfast.Sessions(State).install(object())
