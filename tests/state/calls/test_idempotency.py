"""Answers kept for repeated calls: written with the state, bounded, and each caller's own."""

import asyncio
from typing import Annotated, Any

import mcp
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitResult
from pydantic import BaseModel

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.identity import Identity
from holdfast.state.storage.entries import KIND

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []
    note: str = ""


@pytest.mark.promise("state.once")
async def test_once_keeps_the_result_in_the_same_write(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()

        def put(state: Basket) -> int:
            state.items.append("apple")
            return len(state.items)

        async def attempt(key: str) -> int:
            return await (await sessions.find(begun.handle)).once(key, put)

        assert await asyncio.gather(*(attempt("k") for _ in range(10))) == [1] * 10
        assert sorted(await asyncio.gather(*(attempt(f"k{number}") for number in range(10)))) == list(range(2, 12))
        await begun.read()
        assert begun.rev == 12
        for number in range(70):
            await attempt(f"more {number}")
        record = await store.get(KIND, begun.handle)
        assert record is not None
        assert len(record.data["once"]) == 64  # type: ignore[index, call-overload, arg-type]
        with pytest.raises(holdfast.UsageError, match="at least one character"):
            await attempt("")


@pytest.mark.promise("state.once")
async def test_once_on_everyones_session_belongs_to_its_caller() -> None:
    sessions = holdfast.Sessions(Basket, identity=[holdfast.state.ForEveryone()])

    async def order(user: Principal) -> int:
        session = await sessions.find_for(Identity(user))
        return await session.once("order-1", lambda state: state.items.append(user) or len(state.items))

    assert [await order(Principal(user)) for user in ("alice", "bob", "alice")] == [1, 2, 1]
    with pytest.raises(holdfast.UsageError, match="needs an authenticated caller"):
        await order(ANONYMOUS)


@pytest.mark.promise("state.once")
async def test_kept_answers_leave_room_and_a_huge_one_is_refused() -> None:
    sessions = holdfast.Sessions(Basket)
    session = await sessions.begin()
    for number in range(20):
        assert len(await session.once(f"k{number}", lambda _: "x" * 30_000)) == 30_000
    await session.update(lambda state: setattr(state, "note", "y" * 500_000))
    with pytest.raises(holdfast.errors.LimitReached, match="too large to be stored"):
        await session.once("big", lambda state: (state.items.append("?"), "x" * 300_000)[1])
    assert (await session.read()).items == []


class Ok(BaseModel):
    sure: bool = True


@pytest.mark.promise("state.keys")
async def test_a_question_to_the_client_is_no_answer_to_keep() -> None:
    sessions = holdfast.Sessions(Basket)
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server)

    async def ask() -> Elicit[Ok]:
        return Elicit("sure?", Ok)

    @server.tool()
    @sessions.writes
    async def order(basket: Basket, ok: Annotated[Ok, Resolve(ask)]) -> str:
        basket.items.append("ordered")
        return "ordered"

    async def agree(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"sure": True})

    begun = await sessions.begin()
    async with mcp.Client(server, elicitation_callback=agree) as client:
        for _ in range(2):
            answer = await client.call_tool("order", {"basket_id": begun.handle}, meta={IDEMPOTENCY_KEY: "k"})
            assert str(answer.content[0].text) == "ordered"  # type: ignore[union-attr]
    assert (await begun.read()).items == ["ordered"]
