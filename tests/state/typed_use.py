"""What an author writes, with the types that a checker must see in it. Read by pyright, and run as it is."""

from typing import Annotated, assert_type

from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast


class Basket(holdfast.SessionState, version=2):
    items: list[str] = []
    count: int = 0

    @holdfast.state.migrate(from_version=1)
    @staticmethod
    def _from_1(raw: dict[str, object]) -> dict[str, object]:
        return raw


sessions = holdfast.Sessions(
    Basket, "memory:", identity=[holdfast.state.FromArgument(), holdfast.state.FromPrincipal()]
)
assert_type(sessions, holdfast.Sessions[Basket])
server, official = FastMCP("typed"), MCPServer("typed")
sessions.install(server)


@server.tool
async def add(item: str, basket_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
    assert_type(basket, holdfast.Session[Basket])
    assert_type(basket.state, Basket)
    async with basket.edit("add") as draft:
        assert_type(draft, Basket)
        draft.items.append(item)
    assert_type(await basket.update(lambda state: state.items.append(item)), Basket)
    assert_type(await basket.once("key", lambda state: len(state.items)), int)
    async with basket.lease() as turn:
        assert_type(turn, Basket)
    assert_type(await basket.at(1), Basket)
    assert_type(await basket.fork(), holdfast.Session[Basket])
    assert_type(await basket.undo(), Basket)
    return basket.rev


@official.tool()
@sessions.writes
async def take(item: str, basket: Basket) -> list[str]:
    assert_type(basket, Basket)
    return basket.items


@official.tool()
async def put(item: str, basket: Annotated[holdfast.Session[Basket], Resolve(sessions)], basket_id: str = "") -> int:
    return (await basket.read()).count


@official.prompt()
async def ask(ctx: Context) -> str:
    basket = await sessions(ctx)
    assert_type(basket, holdfast.Session[Basket])
    return basket.handle


class Trace:
    steps: int = 0


trace = holdfast.state.RequestScope(Trace)
figures = holdfast.state.ServerScope(Trace)


def scopes() -> None:
    assert_type(trace.get(), Trace)
    with figures.edit() as draft:
        assert_type(draft, Trace)
