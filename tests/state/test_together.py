"""Calls that use everything at once: two kinds of sessions, leases, undo and keys, in processes that are killed."""

import asyncio

import mcp
import pytest
from fastmcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPDeprecationWarning

import holdfast
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience
from tests.state.frameworks.test_taking import Server, both_frameworks
from tests.state.trades import Cart, Game, Stock, buy_for_ever, carts_in, play, shop, stock_in, table
from tests.stores.processes import Worker, workers

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.call")
async def test_a_checkout_over_cart_and_stock_loses_no_pear_when_processes_are_killed(url: str) -> None:
    carts, stocks = carts_in(url), stock_in(url)
    cart, stock = await carts.begin(), await stocks.begin(state=Stock(pears=60))
    shops = [Worker(buy_for_ever, url, cart.handle, stock.handle) for _ in range(3)]
    async with shop(carts, stocks) as call:
        with workers(*shops):
            for each in shops:
                assert each.receive() == "ready"
            for each in shops:
                each.pipe.send("go")
            for killed in shops:
                for _ in range(5):
                    assert await call("both", cart_id=cart.handle, stock_id=stock.handle) == (False, "60")
                    failed, said = await asyncio.to_thread(killed.receive)
                    assert not failed or "sold out" in said, said
                killed.kill()
        async with asyncio.timeout(patience(30)):
            while True:
                failed, said = await call("buy", cart_id=cart.handle, stock_id=stock.handle)
                if failed:
                    break
        assert "sold out" in said
        assert ((await cart.read()).pears, (await stock.read()).pears) == (60, 0)
    for sessions in (carts, stocks):
        await sessions.close()


@pytest.mark.promise("state.keys")
async def test_a_game_with_leases_undo_and_keys_in_two_processes_has_each_move_once(url: str) -> None:
    games = holdfast.Sessions(Game, url)
    game = await games.begin()
    players = [Worker(play, url, game.handle, number, 10) for number in range(2)]
    with workers(*players):
        for each in players:
            assert each.receive() == "ready"
        for each in players:
            each.pipe.send("go")
        assert [await asyncio.to_thread(each.receive) for each in players] == [[], []]
        for each in players:
            each.join()
    moves = (await game.read()).moves
    for number in range(2):
        own = [each for each in moves if each.startswith(f"{number}.")]
        assert own == [f"{number}.{move}" for move in range(10)]
    assert len(moves) == 20
    async with table(games) as call:
        backs = await asyncio.gather(*(call("take_back", "back", game_id=game.handle) for _ in range(5)))
        assert backs == [(False, "19")] * 5
        assert (await game.read()).moves == moves[:-1]
        assert await call("take_back", game_id=game.handle) == (False, "18")
        assert await call("move", "0-0", what="0.0", game_id=game.handle) != (True, "")  # known, and not made again
        assert (await game.read()).moves == moves[:-2]
    assert await (await games.open()).holder(KIND, game.handle) is None
    await games.close()


@both_frameworks
@pytest.mark.promise("state.call")
async def test_a_ping_and_a_read_are_answered_beside_a_long_call(framework: str) -> None:
    carts = holdfast.Sessions(Cart)
    server = Server(framework)
    carts.install(server.server)
    inside, go = asyncio.Event(), asyncio.Event()

    @server.tool
    @carts.writes
    async def fill(cart: Cart) -> int:
        inside.set()
        await go.wait()
        cart.pears += 1
        return cart.pears

    @server.tool
    @carts.reads
    async def look(cart: Cart) -> int:
        return cart.pears

    @server.tool
    async def ping() -> str:
        return "pong"

    async with server.running() as call:
        begun = await carts.begin()
        filling = asyncio.ensure_future(call("fill", cart_id=begun.handle))
        async with asyncio.timeout(patience(10)):
            await inside.wait()
            if isinstance(server.server, MCPServer):
                async with mcp.Client(server.server, mode="legacy") as old:
                    with pytest.warns(MCPDeprecationWarning):  # it is a method of 2025
                        await old.send_ping()
            else:
                async with Client(server.server, mode="legacy") as fast:
                    await fast.ping()
            assert await call("ping") == (False, "pong")
            assert await call("look", cart_id=begun.handle) == (False, "0")
            assert await call("ping", "k") == (False, "pong")
        assert not filling.done()
        go.set()
        assert await filling == (False, "1")


@both_frameworks
@pytest.mark.promise("state.call")
async def test_a_whole_session_that_is_only_read_refuses_every_change(framework: str) -> None:
    carts = holdfast.Sessions(Cart)
    server = Server(framework)
    carts.install(server.server)

    @server.tool
    @carts.reads
    async def spoil(how: str, cart: holdfast.Session[Cart]) -> str:
        match how:
            case "edit":
                async with cart.edit() as draft:
                    draft.pears = 7
            case "update":
                await cart.update(lambda state: setattr(state, "pears", 7))
            case "once":
                await cart.once("k", lambda state: setattr(state, "pears", 7))
            case "lease":
                async with cart.lease() as draft:
                    draft.pears = 7
            case "note":
                await cart.log.add("note")
            case "undo":
                await cart.undo()
            case "end":
                await cart.end()
            case _:
                return f"{cart.state.pears} of {len(await cart.log.last())}"
        return "done"

    async with server.running() as call:
        begun = await carts.begin()
        for how in ("edit", "update", "once", "lease", "note", "undo", "end"):
            failed, said = await call("spoil", how=how, cart_id=begun.handle)
            assert failed, how
            assert "this tool only reads its session" in said
        assert await call("spoil", how="", cart_id=begun.handle) == (False, "0 of 0")
