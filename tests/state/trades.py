"""A shop and a game in processes of their own, for tests of calls that use everything at once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Annotated, Any

import mcp
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY

Call = Callable[..., Awaitable[tuple[bool, str]]]


class Cart(holdfast.SessionState):
    pears: int = 0


class Stock(holdfast.SessionState):
    pears: int = 0


class Game(holdfast.SessionState):
    moves: list[str] = []


@asynccontextmanager
async def client_of(server: "MCPServer[Any]") -> AsyncGenerator[Call]:
    """A function that calls a tool of the server, under a key if one is given."""
    async with mcp.Client(server) as client:

        async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
            meta: Any = {IDEMPOTENCY_KEY: key} if key else None
            answer = await client.call_tool(tool, arguments, meta=meta)
            return answer.is_error, "\n".join(getattr(part, "text", "") for part in answer.content)

        yield call


def carts_in(url: str) -> "holdfast.Sessions[Cart]":
    return holdfast.Sessions(Cart, url, turn_ttl=0.5)


def stock_in(url: str) -> "holdfast.Sessions[Stock]":
    return holdfast.Sessions(Stock, url, turn_ttl=0.5)


@asynccontextmanager
async def shop(carts: "holdfast.Sessions[Cart]", stocks: "holdfast.Sessions[Stock]") -> AsyncGenerator[Call]:
    server: MCPServer[Any] = MCPServer("shop")
    carts.install(server)
    stocks.install(server)

    @server.tool()
    @carts.writes
    @stocks.writes
    async def buy(cart: Cart, stock: Stock) -> int:
        cart.pears += 1  # kept only if there is one
        await asyncio.sleep(0)
        if stock.pears == 0:
            raise ToolError("sold out")
        stock.pears -= 1
        return stock.pears

    @server.tool()
    @carts.reads
    @stocks.reads
    async def both(cart: Cart, stock: Stock) -> int:
        return cart.pears + stock.pears

    async with client_of(server) as call:
        yield call


async def buy_for_ever(pipe: Connection, url: str, cart: str, stock: str) -> None:
    """Buy pears until killed; send each answer."""
    carts, stocks = carts_in(url), stock_in(url)
    async with shop(carts, stocks) as call:
        pipe.send("ready")
        pipe.recv()
        while True:
            pipe.send(await call("buy", cart_id=cart, stock_id=stock))


@asynccontextmanager
async def table(games: "holdfast.Sessions[Game]") -> AsyncGenerator[Call]:
    """A game whose moves are made in a lease, and taken back under a turn."""
    server: MCPServer[Any] = MCPServer("game")
    games.install(server)

    @server.tool()
    async def move(what: str, game: Annotated[holdfast.Session[Game], Resolve(games)], game_id: str = "") -> int:
        async with game.lease("move", ttl=30) as draft:
            await asyncio.sleep(0.001)
            draft.moves.append(what)
        return len(game.state.moves)

    @server.tool()
    @games.writes
    async def take_back(game: holdfast.Session[Game]) -> int:
        return len((await game.undo()).moves)

    async with client_of(server) as call:
        yield call


async def play(pipe: Connection, url: str, game: str, player: int, moves: int) -> None:
    """Make each move twice at once under its key, take one more move back, and send how often an answer differed."""
    games = holdfast.Sessions(Game, url)
    async with table(games) as call:
        pipe.send("ready")
        pipe.recv()
        differed: list[Any] = []
        for number in range(moves):
            twice = [call("move", f"{player}-{number}", what=f"{player}.{number}", game_id=game) for _ in range(2)]
            one, other = await asyncio.gather(*twice)
            if one[0] or one != other:
                differed.append((one, other))
        pipe.send(differed)
