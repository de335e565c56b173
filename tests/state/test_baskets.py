"""The basket examples over real HTTP: both frameworks, both eras, two processes on one store, restarts, strangers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateways import gateway
from tests.state.replicas import FRAMEWORKS, Replica, replicas

pytestmark = pytest.mark.anyio

ERAS = {"2025": "legacy", "2026": "auto"}


@asynccontextmanager
async def client(url: str, era: str, token: str | None = None) -> AsyncGenerator[mcp.Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=ERAS[era]) as session:  # type: ignore[arg-type]
            yield session


async def text(session: mcp.Client, tool: str, **arguments: Any) -> str:
    answer = await session.call_tool(tool, arguments)
    said = "\n".join(getattr(part, "text", "") for part in answer.content)
    if answer.is_error:
        raise AssertionError(said)
    return said


async def value(session: mcp.Client, tool: str, **arguments: Any) -> Any:
    answer = await session.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refusal(session: mcp.Client, tool: str, **arguments: Any) -> str:
    answer = await session.call_tool(tool, arguments)
    assert answer.is_error
    said = str(getattr(answer.content[0], "text", ""))
    return said.removeprefix(f"Error executing tool {tool}: ")


def count(items: dict[str, Any], article: str = "apple") -> int:
    return int(items.get("result", items)[article])


@pytest.mark.promise("state.real")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_twenty_parallel_calls_in_two_processes_are_twenty(framework: str, url: str) -> None:
    async with replicas(Replica(framework, url), Replica(framework, url)) as (one, other):
        for era in ERAS:
            async with client(one.url, era) as here, client(other.url, era) as there:
                basket = (await value(here, "create_basket", note="weekend"))["basket_id"]
                both = (here, there)
                await asyncio.gather(
                    *(text(both[number % 2], "add", article="apple", basket_id=basket) for number in range(20)),
                    *(text(both[number % 2], "add", article=f"pear {number}", basket_id=basket) for number in range(4)),
                    text(here, "note", text="soon", basket_id=basket),
                )
                held = (await value(there, "resume_basket", basket_id=basket))["state"]
                assert held["items"] == {"apple": 20, **{f"pear {number}": 1 for number in range(4)}}
                assert held["note"] == "soon"


@pytest.mark.promise("state.real")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_state_survives_restarts_and_alternating_replicas_and_eras(framework: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/b.db"
    async with replicas(Replica(framework, store), Replica(framework, store)) as both:
        async with client(both[0].url, "2026") as first:
            basket = (await value(first, "create_basket"))["basket_id"]
        for number in range(1, 5):
            replica, era = both[number % 2], list(ERAS)[number % 2]
            async with client(replica.url, era) as session:
                assert count(await value(session, "add", article="apple", basket_id=basket)) == number
            await replica.restart()
        async with client(both[0].url, "2025") as session:
            about = await value(session, "resume_basket", basket_id=basket)
            assert about["rev"] == 5
            assert [step["label"] for step in about["last"]] == ["add"] * 4
        assert await both[0].stop() in (0, -15)  # nothing keeps the process from ending


@pytest.mark.promise("state.identity")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_without_a_handle_a_2025_session_names_the_basket_and_2026_begins_one(
    framework: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/b.db"
    async with replicas(Replica(framework, store, tokens=True), Replica(framework, store, tokens=True)) as (one, other):
        async with client(one.url, "2025", "alice-token") as old:
            assert [count(await value(old, "add", article="apple")) for _ in range(3)] == [1, 2, 3]
            handle = await text(old, "where")
            async with client(one.url, "2025", "alice-token") as another:
                assert count(await value(another, "add", article="apple")) == 1  # another session of the same caller
            async with client(other.url, "2026", "alice-token") as new:
                assert count(await value(new, "add", article="apple", basket_id=handle)) == 4  # the same, by its handle
                told = await refusal(new, "add", article="apple")  # another conversation of hers, perhaps
                assert "call create_basket to begin one" in told
            mine = await text(old, "where")
            await value(old, "end_basket", basket_id=mine)
            assert count(await value(old, "add", article="apple")) == 1  # what stood for it begins anew
            assert await text(old, "where") != mine
    async with replicas(Replica(framework, store)) as (one,):
        async with client(one.url, "2026") as nobody:
            told = await refusal(nobody, "add", article="apple")
            assert "basket_id" in told
            assert "call create_basket to begin one" in told


@pytest.mark.promise("state.owners")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_stolen_handle_gets_what_an_unknown_one_gets(framework: str, tmp_path: Path) -> None:
    async with replicas(Replica(framework, f"sqlite:///{tmp_path}/b.db", tokens=True)) as (server,):
        for era in ERAS:
            async with client(server.url, era, "alice-token") as alice, client(server.url, era, "bob-token") as bob:
                mine = (await value(alice, "create_basket"))["basket_id"]
                ended = (await value(alice, "create_basket"))["basket_id"]
                await value(alice, "end_basket", basket_id=ended)
                for tool, extra in (
                    ("add", {"article": "x"}),
                    ("resume_basket", {}),
                    ("fork_basket", {}),
                    ("end_basket", {}),
                ):
                    stolen = await refusal(bob, tool, basket_id=mine, **extra)
                    assert stolen == await refusal(bob, tool, basket_id="s_never", **extra)
                    assert stolen == await refusal(bob, tool, basket_id="odd\x01\u2028 " + "x" * 5000, **extra)
                    assert stolen == await refusal(bob, tool, basket_id=ended, **extra)
                    assert "ended" in await refusal(alice, tool, basket_id=ended, **extra)
                with pytest.raises(mcp.MCPError) as by_uri:
                    await bob.read_resource(f"basket://{mine}")
                with pytest.raises(mcp.MCPError) as unknown:
                    await bob.read_resource("basket://s_never")
                assert (by_uri.value.code, by_uri.value.message) == (unknown.value.code, unknown.value.message)
                listed = (await value(alice, "list_baskets"))["baskets"]
                assert mine in {each["basket_id"] for each in listed}
                assert mine not in {each["basket_id"] for each in (await value(bob, "list_baskets"))["baskets"]}


@pytest.mark.promise("state.end")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_over_http_an_end_wins_and_a_failure_leaves_the_state_as_before(framework: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/b.db"
    async with replicas(Replica(framework, store), Replica(framework, store)) as (one, other):
        async with client(one.url, "2026") as here, client(other.url, "2025") as there:
            basket = (await value(here, "create_basket"))["basket_id"]
            await text(here, "add", article="apple", basket_id=basket)
            failed = await here.call_tool("slow", {"article": "pear", "basket_id": basket, "fail": True})
            assert failed.is_error
            assert (await value(there, "resume_basket", basket_id=basket))["state"]["items"] == {"apple": 1}
            both = await asyncio.gather(
                here.call_tool("slow", {"article": "fig", "basket_id": basket}),
                there.call_tool("slow", {"article": "fig", "basket_id": basket}),
            )
            told = [getattr(each.content[0], "text", "") for each in both if each.is_error]
            held = (await value(there, "resume_basket", basket_id=basket))["state"]["items"]
            assert held["fig"] == 2 - len(told)  # whoever lost was told
            answers = await asyncio.gather(
                *(here.call_tool("add", {"article": "apple", "basket_id": basket}) for _ in range(10)),
                there.call_tool("end_basket", {"basket_id": basket}),
                *(there.call_tool("add", {"article": "apple", "basket_id": basket}) for _ in range(10)),
            )
            assert not answers[10].is_error
            for late in (here, there):
                assert "ended" in await refusal(late, "add", article="apple", basket_id=basket)


@pytest.mark.promise("state.injection")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_sessions_reach_tools_resources_and_prompts_and_no_schema(framework: str, tmp_path: Path) -> None:
    async with replicas(Replica(framework, f"sqlite:///{tmp_path}/b.db")) as (server,):
        for era in ERAS:
            async with client(server.url, era) as session:
                tools = {tool.name: tool for tool in (await session.list_tools()).tools}
                assert set(tools["add"].input_schema["properties"]) == {"article", "basket_id"}
                for name in ("create_basket", "list_baskets", "resume_basket", "fork_basket"):
                    assert "1 day after its last use, at most 30 days" in str(tools[name].description)
                assert set(tools["create_basket"].input_schema["properties"]) == {"note", "title"}
                made = await value(session, "create_basket", note="for Sunday", title="Sunday")
                basket = made["basket_id"]
                await text(session, "add", article="apple", basket_id=basket)
                read = await session.read_resource(f"basket://{basket}")
                assert getattr(read.contents[0], "text", "") == "1 x apple"
                prompt = await session.get_prompt("checkout", {"basket_id": basket})
                assert "apple" in str(prompt.messages[0].content)
                forked = await value(session, "fork_basket", basket_id=basket, rev=1)
                assert forked["forked_from"] == {"basket_id": basket, "rev": 1}
                held = await value(session, "resume_basket", basket_id=forked["basket_id"])
                assert held["state"] == {"items": {}, "note": "for Sunday"}
                assert held["title"] == "Sunday"
                assert "sessions can't be listed" in await refusal(session, "list_baskets")


@pytest.mark.promise("state.gateway")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_through_the_gateway_a_basket_holds(framework: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/b.db"
    async with replicas(Replica(framework, store)) as (server,):
        async with gateway(tmp_path, {"shop": {"url": server.url}}) as program:
            baskets = []
            for era in ERAS:
                async with client(program.url, era) as session:
                    made = await value(session, "shop__create_basket")
                    baskets.append(made["basket_id"])
                    advice = await refusal(session, "shop__add", article="apple", basket_id="unknown")
                    assert "; call shop__create_basket to begin one" in advice  # as the gateway names it
                    for number in range(1, 4):
                        held = await value(session, "shop__add", article="apple", basket_id=baskets[-1])
                        assert count(held) == number
            await server.restart()
            for era, basket in zip(ERAS, reversed(baskets), strict=True):  # each era goes on with the other's
                async with client(program.url, era) as session:
                    assert count(await value(session, "shop__add", article="apple", basket_id=basket)) == 4
            async with client(program.url, "2025") as session:
                if not (await session.call_tool("shop__add", {"article": "apple"})).is_error:
                    assert count(await value(session, "shop__add", article="apple")) == 2
