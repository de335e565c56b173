"""Writes of no call beside calls under a turn: they wait for it, and never make it do its work again."""

import asyncio
from typing import Any

import mcp
import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast.errors import Busy
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience
from tests.state.shops import Account, accounts_in, bank

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.call")
async def test_an_update_outside_of_calls_waits_for_their_turns_and_all_are_kept(url: str) -> None:
    accounts, replica = accounts_in(url), accounts_in(url)
    begun = await accounts.begin()
    async with bank(accounts) as call:
        other = await replica.find(begun.handle)

        def up(state: Account) -> None:
            state.cents += 1

        async def edit() -> None:
            for _ in range(40):
                try:
                    async with other.edit() as draft:
                        draft.cents += 1
                except holdfast.errors.Conflict:
                    await other.read()
                else:
                    return

        calls = [call("pay", account_id=begun.handle, pause=0.01) for _ in range(10)]
        updates = [begun.update(up), *(other.update(up) for _ in range(8)), other.log.add("noted"), edit()]
        async with asyncio.timeout(patience(60)):
            answers, _ = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*updates))
        assert [said for failed, said in answers if failed] == []
        state = await begun.read()
        assert state.calls == 10
        assert state.cents in (19, 20)  # an edit may be refused for good, and says so
        assert await (await accounts.open()).holder(KIND, begun.handle) is None
    await accounts.close()
    await replica.close()


@pytest.mark.promise("state.call")
async def test_an_update_is_busy_after_the_wait_for_a_turn_and_passes_a_lease() -> None:
    async with holdfast.open_store("memory:") as store:
        accounts = holdfast.Sessions(Account, store, turn_wait=0.05)
        begun = await accounts.begin()
        held = await store.claim(KIND, begun.handle, owner="turn-of-another-process", ttl=60)
        with pytest.raises(Busy, match="nothing was done"):
            await begun.update(lambda state: setattr(state, "cents", 1))
        await store.release(held)
        await begun.update(lambda state: setattr(state, "cents", 2))
        other = await accounts.find(begun.handle)
        with pytest.raises(holdfast.errors.Conflict):
            async with begun.lease() as draft:
                draft.calls = 1
                await other.update(lambda state: setattr(state, "cents", 3))
        assert (await begun.read()) == Account(cents=3)
        assert await store.holder(KIND, begun.handle) is None


@pytest.mark.promise("state.call")
async def test_an_older_object_of_a_session_that_the_call_has_taken_waits_for_nobody() -> None:
    async with holdfast.open_store("memory:") as store:
        accounts = holdfast.Sessions(Account, store)
        begun = await accounts.begin()

        server: MCPServer[Any] = MCPServer("bank")
        accounts.install(server, tools=False)

        @server.tool()
        @accounts.writes
        async def both(account: Account) -> int:
            account.calls += 1
            await begun.log.add("noted", account.calls)
            return account.calls

        async with mcp.Client(server) as client, asyncio.timeout(patience(10)):
            answer = await client.call_tool("both", {"account_id": begun.handle})
        assert answer.is_error  # two writes of one call, the second without the first: refused, and not waited for
        assert (await begun.read()).calls == 0
        assert await store.holder(KIND, begun.handle) is None
