"""Sessions that stand for a caller, under `writes`: their expiry is reported once, on whatever replica."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp
import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast.state.storage.entries import KIND
from holdfast.stores.contract import Store
from tests.state.basket import Basket

pytestmark = pytest.mark.anyio
EXPIRED = "has expired, and what it held is gone; do it again"


@asynccontextmanager
async def replica(store: Store, quota: int | None = None) -> AsyncGenerator[Callable[[], Awaitable[tuple[bool, str]]]]:
    """One of several servers over one store: a function that calls its tool."""
    sessions = holdfast.Sessions(
        Basket, store, identity=[holdfast.state.ForEveryone()], idle=60.0, max_age=None, quota=quota
    )
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server, tools=False)

    @server.tool()
    @sessions.writes
    async def add(basket: Basket) -> int:
        basket.items.append("x")
        return len(basket.items)

    async with mcp.Client(server) as client:

        async def call() -> tuple[bool, str]:
            answer = await client.call_tool("add", {})
            return answer.is_error, str(getattr(answer.content[0], "text", ""))

        yield call


@pytest.mark.promise("state.told")
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_expiry_is_reported_once_for_all_replicas_and_again_next_time(url: str, restarted: bool) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(url, clock=clock) as one, holdfast.open_store(url, clock=clock) as two:
        await one.erase("anonymous")  # the server has had other tests
        async with replica(one, 1) as first, replica(two, 1) as second:
            assert [await first(), await second(), await first()] == [(False, "1"), (False, "2"), (False, "3")]
            for round in range(2):
                old = [record.id for record in (await one.scan(kind=KIND, principal="anonymous")).records]
                clock.advance(61)
                if restarted:
                    async with replica(one, 1) as third, replica(two, 1) as fourth:
                        answers = [await third(), await fourth(), await third()]
                else:
                    answers = [await second(), await first(), await second()]
                assert answers[0][0], round
                assert EXPIRED in answers[0][1]
                assert answers[1:] == [(False, "1"), (False, "2")]
                for handle in old:
                    assert await one.log(KIND, handle) == []
                    assert await one.get(KIND, handle) is None
        await one.erase("anonymous")
