"""Servers that offer both eras, as SDK 2.x and FastMCP 4 do, in runs: the session holds, and a question is answered."""

from typing import Any

import pytest
from fastmcp import FastMCP
from mcp import Client, ClientSession
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitResult

import holdfast
from holdfast import Callbacks, Server
from holdfast.integrations.fastmcp import holdfast_transport
from holdfast.testing import FaultServer
from tests.links.quick_links import link_to
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


async def seat(params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"row": 7})


async def turns(server: Server, times: int = 3) -> list[str]:
    return [(await server.call_tool("turn")).content[0].text for _ in range(times)]  # type: ignore[union-attr]


@pytest.mark.promise("run.eras")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_real_server_counts_on_in_a_run_and_in_a_durable_one(kind: Any) -> None:
    async with RealServer(kind, json=False) as real, holdfast.open_store("memory:") as store:
        server = Server("real", url=real.url)
        async with holdfast.run(callbacks=Callbacks(elicit=seat)):
            assert await turns(server) == ["1", "2", "3"]
            booked = await server.call_tool("book")
            assert booked.content[0].text == "row 7 is yours"  # type: ignore[union-attr]
        async with holdfast.run("talk", store=store):
            assert await turns(server) == ["1", "2", "3"]
        async with holdfast.run("talk", store=store):
            assert await turns(server) == ["4", "5", "6"]
        async with holdfast.run():
            assert await turns(server.with_(stateful=False)) == ["1", "1", "1"]


def sdk_app() -> Any:
    app = MCPServer("app")

    @app.tool()
    async def turn(ctx: Context) -> int:
        state = ctx.session._connection.state  # pyright: ignore[reportPrivateUsage]
        state["turn"] = state.get("turn", 0) + 1
        return state["turn"]

    return app


def fastmcp_app() -> Any:
    from fastmcp import Context as FastContext

    app = FastMCP("app")

    @app.tool()
    async def turn(ctx: FastContext) -> int:
        number = (await ctx.get_state("turn") or 0) + 1
        await ctx.set_state("turn", number)
        return number

    return app


@pytest.mark.promise("run.eras")
@pytest.mark.parametrize("make", [sdk_app, fastmcp_app])
async def test_an_object_counts_on_in_a_run_and_under_fastmcps_client(make: Any) -> None:
    async with holdfast.run():
        assert await turns(Server("app", app=make())) == ["1", "2", "3"]
    from fastmcp import Client as FastClient

    async with FastClient(holdfast_transport(make())) as client:
        assert [(await client.call_tool("turn")).content[0].text for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.promise("link.era")
async def test_an_sdk_session_gets_the_era_that_it_asks_for() -> None:
    async with FaultServer(era="both") as server:
        for asks, era in (("initialize", "2025"), ("discover", "2026")):
            async with link_to(server.url, stream=False) as link:
                async with ClientSession(dispatcher=holdfast.links.LinkDispatcher(link)) as session:
                    await getattr(session, asks)()
                    await session.call_tool("count", {})
                assert link.statistics().era == era
        for mode, era in (("auto", "2025"), ("legacy", "2025"), ("2026-07-28", "2026")):
            link = link_to(server.url, stream=False)
            async with Client(holdfast.links.LinkTransport(link), mode=mode) as client:
                counted = [(await client.call_tool("count", {})).content[0].text for _ in range(2)]  # type: ignore[union-attr]
            assert counted == (["1", "2"] if era == "2025" else ["", ""])
