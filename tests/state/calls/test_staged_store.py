"""What a call gathers and writes at its end: ends of sessions, uses of them, sessions that it has not taken."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp
import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast.errors import Ended, NotFound, StoreDown
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience
from tests.state.frameworks.test_taking import Server, both_frameworks

pytestmark = pytest.mark.anyio
Call = Callable[..., Awaitable[tuple[bool, str]]]


class Cart(holdfast.SessionState):
    pears: int = 0


@asynccontextmanager
async def shop(carts: "holdfast.Sessions[Cart]", *tools: Callable[..., Any]) -> AsyncGenerator[Call]:
    server: MCPServer[Any] = MCPServer("shop")
    carts.install(server, tools=False)
    for each in tools:
        server.tool()(each)
    async with mcp.Client(server) as client:

        async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
            meta: Any = {IDEMPOTENCY_KEY: key} if key else None
            answer = await client.call_tool(tool, arguments, meta=meta)
            return answer.is_error, "\n".join(getattr(part, "text", "") for part in answer.content)

        yield call


async def _down(*given: object, **how: object) -> object:
    raise StoreDown("the store went down", store="test")


@pytest.mark.promise("state.call")
async def test_a_session_that_a_call_ends_is_over_in_the_step_that_keeps_its_result(url: str) -> None:
    async with holdfast.open_store(url) as store:
        carts = holdfast.Sessions(Cart, store)

        @carts.writes
        async def close(cart: Cart, session: Session[Cart]) -> str:
            cart.pears += 1
            return str(await session.end())

        begun, other = await carts.begin(state=Cart(pears=3)), await carts.begin()
        async with shop(carts, close) as call:
            end, store.end = store.end, _down  # type: ignore[method-assign]  # it goes down right after the commit
            assert await call("close", "k", cart_id=begun.handle) == (False, "True")
            assert await call("close", "k", cart_id=begun.handle) == (False, "True")  # kept, and not done again
            store.end = end  # type: ignore[method-assign]
            with pytest.raises(NotFound):
                await carts.find(begun.handle)
            assert (await call("close", cart_id=begun.handle))[0]
            assert await store.holder(KIND, begun.handle) is None
            assert await call("close", cart_id=other.handle) == (False, "True")
        with pytest.raises(Ended):
            await carts.find(other.handle)
        assert await store.log(KIND, other.handle) == []


@pytest.mark.promise("state.call")
async def test_a_session_that_a_failed_call_would_have_ended_lives_on(url: str) -> None:
    async with holdfast.open_store(url) as store:
        carts = holdfast.Sessions(Cart, store)

        @carts.writes
        async def close(cart: Session[Cart]) -> str:
            await cart.end()
            raise RuntimeError("half-way")

        begun = await carts.begin(state=Cart(pears=3))
        async with shop(carts, close) as call:
            assert (await call("close", cart_id=begun.handle))[0]
        assert (await begun.read()).pears == 3


@pytest.mark.promise("state.call")
async def test_a_call_that_is_written_does_not_fail_because_a_use_could_not_be_noted() -> None:
    async with holdfast.open_store("memory:") as store:
        carts = holdfast.Sessions(Cart, store)
        kept = await carts.begin()

        @carts.writes
        async def buy(cart: Cart) -> int:
            await kept.record.slide(now=True)
            cart.pears += 1
            return cart.pears

        begun = await carts.begin()
        async with shop(carts, buy) as call:
            store.touch = _down  # type: ignore[method-assign]
            assert await call("buy", "k", cart_id=begun.handle) == (False, "1")
            assert await call("buy", "k", cart_id=begun.handle) == (False, "1")
        assert (await begun.read()).pears == 1
        assert await store.holder(KIND, begun.handle) is None


@both_frameworks
@pytest.mark.promise("state.call")
async def test_a_nested_call_that_ends_a_session_and_fails_takes_nothing_of_the_outer_one(framework: str) -> None:
    carts = holdfast.Sessions(Cart)
    begun = await carts.begin(state=Cart(pears=1))
    shop = Server(framework)
    carts.install(shop.server, tools=False)

    @shop.tool
    @carts.writes
    async def close(cart: Cart, session: Session[Cart]) -> str:
        cart.pears += 10
        await session.end()
        raise RuntimeError("half-way")

    @shop.tool
    @carts.writes
    async def fill(cart: Cart) -> int:
        cart.pears += 1
        with holdfast.state.nested_scope(cart_id=begun.handle), pytest.raises(Exception, match="close"):
            await shop.server.call_tool("close", {"cart_id": begun.handle})
        cart.pears += 1
        return cart.pears

    async with shop.running() as call:
        assert await call("fill", cart_id=begun.handle) == (False, "3")
    assert (await carts.find(begun.handle)).state.pears == 3


@pytest.mark.promise("state.call")
async def test_a_session_that_a_call_finds_and_writes_waits_for_the_call_that_has_its_turn(url: str) -> None:
    async with holdfast.open_store(url) as store:
        carts = holdfast.Sessions(Cart, store)
        one, other = sorted([(await carts.begin()).handle for _ in range(2)])
        inside, go, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @carts.writes
        async def slow(cart: Cart) -> int:
            inside.set()
            await go.wait()
            cart.pears += 1
            return cart.pears

        @carts.writes
        async def give(to: str, cart: Cart) -> int:
            cart.pears -= 1
            found = await carts.find(to)
            asked.set()
            return (await found.update(lambda state: setattr(state, "pears", state.pears + 1))).pears

        async with shop(carts, slow, give) as call, asyncio.timeout(patience(30)):
            slowly = asyncio.ensure_future(call("slow", cart_id=other))
            await inside.wait()
            giving = asyncio.ensure_future(call("give", to=other, cart_id=one))
            await asked.wait()
            assert not (await asyncio.wait([giving], timeout=0.1))[0]
            go.set()
            assert await slowly == (False, "1")
            assert await giving == (False, "2")
        assert [(await carts.find(each)).state.pears for each in (one, other)] == [-1, 2]
        assert [await store.holder(KIND, each) for each in (one, other)] == [None, None]
