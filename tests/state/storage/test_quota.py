"""A quota holds also where sessions are written with the call that begins them."""

import asyncio
import secrets
from typing import Any

import mcp
import pytest
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast.core.models import Principal
from holdfast.state.frameworks.injection import principal_of
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.identity import Identity
from holdfast.state.storage.quota import counting
from tests.deadlines import patience

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []


class Desk(holdfast.SessionState):
    calls: int = 0


def shop(baskets: "holdfast.Sessions[Basket]", desks: "holdfast.Sessions[Desk]", owner: Principal) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("shop")
    baskets.install(server)
    desks.install(server, tools=False)

    @server.tool()
    @desks.writes
    async def several(number: int, desk: Desk, failing: bool = False) -> int:
        desk.calls += 1
        for _ in range(number):
            await baskets.begin(owner)
        if failing:
            raise RuntimeError("half-way")
        return number

    @server.tool()
    @desks.writes
    async def swap(basket: str, desk: Desk) -> str:
        desk.calls += 1
        await (await baskets.find(basket, owner)).end()
        return (await baskets.begin(owner)).handle

    return server


@pytest.mark.promise("state.quota")
async def test_a_quota_holds_in_parallel_calls_with_keys_over_two_replicas(url: str) -> None:
    token = AuthenticatedUser(AccessToken(token="t", client_id=f"c-{secrets.token_hex(4)}", scopes=[], subject="alice"))
    async with holdfast.open_store(url) as one, holdfast.open_store(url) as two:
        places = [holdfast.Sessions(Basket, store, quota=4) for store in (one, two)]
        servers = [shop(each, holdfast.Sessions(Desk, each.table.store._unopened), Principal("x")) for each in places]
        was = auth_context_var.set(token)
        try:
            async with mcp.Client(servers[0]) as first, mcp.Client(servers[1]) as second:
                keyed = [
                    (first, second)[n % 2].call_tool("create_basket", {}, meta={IDEMPOTENCY_KEY: f"k{n}"})
                    for n in range(16)
                ]
                async with asyncio.timeout(patience(30)):
                    answers = await asyncio.gather(*keyed)
            assert await one.holder(*counting("Basket", principal_of(None))) is None
            await one.erase(principal_of(None))
        finally:
            auth_context_var.reset(was)
        refused = [each.content[0].text for each in answers if each.is_error]
        assert len(refused) == 12, refused
        assert all("4 of 4 sessions of this caller are open" in text for text in refused)


@pytest.mark.promise("state.quota")
async def test_sessions_that_one_call_begins_and_ends_count_for_it(url: str) -> None:
    owner = Principal(f"alice-{secrets.token_hex(4)}")
    async with holdfast.open_store(url) as store:
        baskets, desks = holdfast.Sessions(Basket, store, quota=3), holdfast.Sessions(Desk, store)
        desk = await desks.begin()

        async with mcp.Client(shop(baskets, desks, owner)) as client:

            async def call(tool: str, **arguments: Any) -> tuple[bool, str]:
                answer = await client.call_tool(tool, {"desk_id": desk.handle, **arguments})
                return answer.is_error, answer.content[0].text  # type: ignore[union-attr]

            assert (await call("several", number=4))[0]
            assert await baskets.all(owner) == []
            assert (await call("several", number=3, failing=True))[0]
            assert await baskets.all(owner) == []
            assert await call("several", number=3) == (False, "3")
            assert (await call("several", number=1))[0]
            ended = (await baskets.all(owner))[0].handle
            failed, begun = await call("swap", basket=ended)  # its place is free for the call that ends it
            assert not failed, begun
            assert len(await baskets.all(owner)) == 3
            assert begun in [each.handle for each in await baskets.all(owner)]
        with pytest.raises(holdfast.errors.LimitReached):
            await baskets.begin(owner)  # and nobody holds the count
        await store.erase(owner)


@pytest.mark.promise("state.quota")
async def test_a_call_that_has_begun_a_session_can_begin_the_caller_s_own_as_well() -> None:
    owner = Principal(f"alice-{secrets.token_hex(4)}")
    async with holdfast.open_store("memory:") as store:
        chain = [holdfast.state.FromArgument(), holdfast.state.FromPrincipal()]
        baskets = holdfast.Sessions(Basket, store, quota=2, identity=chain)
        desks = holdfast.Sessions(Desk, store)
        desk = await desks.begin()
        server = shop(baskets, desks, owner)

        @server.tool()
        @desks.writes
        async def pair(desk: Desk) -> int:
            desk.calls += 1
            await baskets.begin(owner)
            await baskets.find_for(Identity(owner))
            return desk.calls

        async with mcp.Client(server) as client, asyncio.timeout(patience(10)):
            answer = await client.call_tool("pair", {"desk_id": desk.handle})
            assert not answer.is_error, answer.content
            again = await client.call_tool("pair", {"desk_id": desk.handle})
            assert again.is_error
            assert len(await baskets.all(owner)) == 2
            for each in await baskets.all(owner):
                await each.end()
            baskets.table._quota = 1
            both = await client.call_tool("pair", {"desk_id": desk.handle})
            assert both.is_error  # the one that the call begins is counted
        assert await baskets.all(owner) == []
