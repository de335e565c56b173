"""Results kept for repeated calls: written with the call, bounded, and each caller's own."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import mcp
import pytest
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitResult
from pydantic import BaseModel

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.identity import Identity
from holdfast.state.storage.entries import RESULTS
from tests.state.frameworks.test_taking import Server, both_frameworks
from tests.state.replicas import FRAMEWORKS, Replica, replicas
from tests.state.test_baskets import client

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
        assert await attempt("k") == 1  # seventy other keys push none out
        kept = [each for each in (await store.scan(kind=RESULTS)).records if each.id.startswith(begun.handle)]
        assert len(kept) == 81
        with pytest.raises(holdfast.UsageError, match="at least one character"):
            await attempt("")
        session = await sessions.find(begun.handle)
        with pytest.raises(holdfast.UsageError, match="used for another call of 'once'"):
            await session.once("k", put, "another")
        assert len((await session.read()).items) == 81


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
async def test_a_huge_result_is_refused_and_nothing_is_written() -> None:
    sessions = holdfast.Sessions(Basket, max_bytes=100_000)
    session = await sessions.begin()
    for number in range(20):
        assert len(await session.once(f"k{number}", lambda _: "x" * 50_000)) == 50_000
    with pytest.raises(holdfast.errors.LimitReached):
        await session.once("big", lambda state: (state.items.append("?"), "x" * 300_000)[1])
    assert (await session.read()).items == []


@both_frameworks
@pytest.mark.promise("state.once")
async def test_once_in_a_call_is_kept_with_the_call_or_not_at_all(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)

    @shop.tool
    @baskets.writes
    async def pay(basket: holdfast.Session[Basket], fail: bool = False) -> list[int]:
        def work(state: Basket) -> int:
            state.items.append("paid")
            return len(state.items)

        paid = [await basket.once("payment", work) for _ in range(2)]
        if fail:
            raise ValueError("no")
        return paid

    async with shop.running() as call:
        begun = await baskets.begin()
        assert (await call("pay", fail=True, basket_id=begun.handle))[0]
        assert (await begun.read()).items == []
        for _ in range(2):
            assert not (await call("pay", basket_id=begun.handle))[0]
        assert (await begun.read()).items == ["paid"]


@both_frameworks
@pytest.mark.promise("state.keys")
async def test_lifecycle_tools_under_a_key_are_executed_once(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)

    async with shop.running() as call:

        async def made(key: str, **arguments: str) -> str:
            failed, said = await call("create_basket", key, **arguments)
            assert not failed, said
            return str(json.loads(said)["basket_id"])

        handles = await asyncio.gather(*(made("k", title="mine") for _ in range(10)))
        assert len(set(handles)) == 1
        assert await made("other", title="mine") != handles[0]
        failed, said = await call("create_basket", "k", title="another")
        assert failed
        assert "used for another call of 'create_basket'" in said
        forks = {str(await call("fork_basket", "fork", basket_id=handles[0])) for _ in range(3)}
        assert len(forks) == 1
        assert handles[0] in forks.pop()
        ends = [await call("end_basket", "end", basket_id=handles[0]) for _ in range(3)]
        assert ends == [ends[0]] * 3
        assert "true" in ends[0][1]
        assert (await call("end_basket", "again", basket_id=handles[0]))[0]


@pytest.mark.promise("state.keys")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_over_http_a_key_belongs_to_its_user_and_nobody_gets_anothers_session(
    framework: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    meta: Any = {IDEMPOTENCY_KEY: "k"}

    async def create(url: str, token: str | None) -> Any:
        async with client(url, "2026", token) as asking:
            return await asking.call_tool("create_basket", {}, meta=meta)

    async with replicas(Replica(framework, store, tokens=True), Replica(framework, store)) as (known, anonymous):
        answers = [await create(known.url, f"{user}-token") for user in ("alice", "bob", "alice")]
        handles = [each.structured_content["basket_id"] for each in answers]
        assert handles[0] == handles[2] != handles[1]
        refused = await create(anonymous.url, None)
        assert refused.is_error
        assert "an idempotency key needs an authenticated caller here" in refused.content[0].text
        async with client(anonymous.url, "2025") as one, client(anonymous.url, "2025") as other:
            made = [await each.call_tool("create_basket", {}, meta=meta) for each in (one, other, one)]
            handles = [each.structured_content["basket_id"] for each in made]  # type: ignore[index]
            assert handles[0] == handles[2] != handles[1]


@both_frameworks
@pytest.mark.promise("state.keys")
async def test_a_tool_with_a_session_of_its_own_or_a_lease_honours_a_key(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)
    runs: list[str] = []

    async def work(how: str, basket: holdfast.Session[Basket], fail: bool) -> dict[str, Any]:
        runs.append(how)
        match how:
            case "lease":
                async with basket.lease("turn", ttl=60) as draft:
                    await asyncio.sleep(0)
                    draft.items.append(how)
            case "edit":
                async with basket.edit() as draft:
                    draft.items.append(how)
            case _:
                await basket.update(lambda state: state.items.append(how))
        if fail:
            raise ValueError("no")
        return {"items": basket.state.items}

    if framework == "fastmcp":

        @shop.tool
        async def change(
            how: str,
            fail: bool = False,
            basket_id: str = "",
            basket: holdfast.Session[Basket] = Depends(baskets),
        ) -> dict[str, Any]:
            return await work(how, basket, fail)

    else:

        @shop.tool
        async def change(
            how: str,
            basket: Annotated[holdfast.Session[Basket], Resolve(baskets)],
            fail: bool = False,
            basket_id: str = "",
        ) -> dict[str, Any]:
            return await work(how, basket, fail)

    async with shop.running() as call:
        for how in ("lease", "edit", "update"):
            begun = await baskets.begin()
            assert (await call("change", "failing", how=how, fail=True, basket_id=begun.handle))[0]
            assert (await begun.read()).items == []
            answers = await asyncio.gather(*(call("change", "k", how=how, basket_id=begun.handle) for _ in range(20)))
            assert answers == [answers[0]] * 20
            assert not answers[0][0]
            assert (await begun.read()).items == [how]
            assert begun.rev == 2
            assert not (await call("change", how=how, basket_id=begun.handle))[0]  # without a key as ever
            assert (await begun.read()).items == [how, how]
    assert len(runs) == 9


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
