"""Sessions injected into tools, resources and prompts, and who the caller is."""

from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, Context, FastMCP
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.state.frameworks.injection import principal_of

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []


@pytest.mark.promise("state.injection")
async def test_a_nested_call_means_its_own_session() -> None:
    sessions = holdfast.Sessions(Basket)
    official: MCPServer[Any] = MCPServer("shop")
    sessions.install(official, tools=False)

    @official.tool(name="add")
    async def put(item: str, b: Annotated[holdfast.Session[Basket], Resolve(sessions)], basket_id: str = "") -> str:
        await b.update(lambda state: state.items.append(item))
        return "ok"

    @official.tool()
    async def copy_to(basket_id: str, other: str, ctx: SdkContext[Any, Any]) -> str:
        with holdfast.state.nested_scope():
            await ctx.mcp_server.call_tool("add", {"item": "copied", "basket_id": other}, ctx)
        return "ok"

    @official.tool()
    @sessions.reads
    async def whose(b: holdfast.Session[Basket]) -> str:
        return b.handle

    fast = FastMCP("shop")
    sessions.install(fast)

    @fast.tool
    async def add(item: str, basket_id: str, ctx: Context) -> str:
        b = await sessions(ctx)  # type: ignore[arg-type]
        await (await sessions()).update(lambda state: state.items.append(item))
        return b.handle

    @fast.tool
    async def copy(basket_id: str, other: str, ctx: Context) -> str:
        await ctx.fastmcp.call_tool("add", {"item": "copied", "basket_id": other})
        return "ok"

    one, other = await sessions.begin(), await sessions.begin()
    async with mcp.Client(official) as client:
        done = await client.call_tool("copy_to", {"basket_id": one.handle, "other": other.handle})
        assert not done.is_error, done.content
    async with mcp.Client(official, mode="legacy") as client:
        assert not (await client.call_tool("whose", {})).is_error  # by its 2025 session
    async with Client(fast) as asking:
        await asking.call_tool("copy", {"basket_id": one.handle, "other": other.handle})
    assert (await one.read()).items == []
    assert (await other.read()).items == ["copied", "copied"]


@pytest.mark.promise("state.injection")
async def test_reads_takes_resources_and_prompts_as_people_write_them() -> None:
    sessions = holdfast.Sessions(Basket)
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server, tools=False)

    @server.resource("one://{basket_id}/{place}")
    @sessions.reads
    async def one(place: str, b: holdfast.Session[Basket]) -> str:
        return f"{place} {b.handle}"

    @server.prompt()
    @sessions.reads
    def two(b: holdfast.Session[Basket], ctx: SdkContext[Any, Any] | None = None) -> str:
        assert ctx is not None
        return str(b.handle)

    begun = await sessions.begin()
    async with mcp.Client(server) as client:
        read = await client.read_resource(f"one://{begun.handle}/here")
        assert read.contents[0].text == f"here {begun.handle}"  # type: ignore[union-attr]
        prompt = await client.get_prompt("two", {"basket_id": begun.handle})
        assert prompt.messages[0].content.text == begun.handle  # type: ignore[union-attr]
    with pytest.raises(holdfast.UsageError, match="no parameter for reads to fill"):
        sessions.reads(lambda: None)


@pytest.mark.promise("state.owners")
def test_no_two_callers_are_taken_for_one() -> None:
    def caller(client: str, issuer: str | None, subject: str | None) -> str:
        claims = {"iss": issuer} if issuer else {}
        token = AccessToken(token="t", client_id=client, scopes=[], subject=subject, claims=claims)
        request = type("Request", (), {"scope": {"user": AuthenticatedUser(token)}})()
        return principal_of(request)

    known = {
        caller("app", "https://i", "alice"),
        caller("app", None, "https://i alice"),
        caller("app https://i alice", None, None),
        caller("app", "https://i", None),
        caller("app", None, "https://i"),
    }
    assert len(known) == 5
