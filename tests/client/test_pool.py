"""The pool: caps where a link costs a process, turns for those who wait, and an end for what idles."""

import asyncio
import time
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import ManualClock
from holdfast.client.runs import pool
from holdfast.testing import FaultServer
from tests.client.test_runs import at, count, program
from tests.links.kit import until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("pool.limits")
async def test_over_http_any_number_of_runs_use_one_server_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "max_links", 20)  # of programs
    assert program().link_cap == 16
    async with FaultServer() as http:
        server, all_in = at(http), asyncio.Event()

        async def agent() -> int:
            async with holdfast.run():
                number = await count(server)
                if len(http.sessions.sessions) == 40:
                    all_in.set()
                await asyncio.wait_for(all_in.wait(), 20)
                return number

        assert await asyncio.gather(*(agent() for _ in range(40))) == [1] * 40
        assert not http.sessions.sessions


@pytest.mark.promise("pool.fair")
async def test_where_links_are_capped_runs_take_turns_in_the_order_they_came() -> None:
    async with FaultServer() as http:
        server, order, go = at(http, max_links=1), list[int](), asyncio.Event()

        async def agent(number: int) -> None:
            async with holdfast.run():
                await count(server)
                order.append(number)
                if not number:
                    await go.wait()

        agents = [asyncio.ensure_future(agent(0))]
        await until(lambda: order)
        for number in range(1, 8):
            agents.append(asyncio.ensure_future(agent(number)))
            await until(lambda number=number: len(pool._queue) == number)
        agents[3].cancel()  # who gives up is in nobody's way
        go.set()
        late = asyncio.ensure_future(agent(8))  # and who comes now waits behind them
        await asyncio.gather(*agents, late, return_exceptions=True)
        assert order == [0, 1, 2, 4, 5, 6, 7, 8]
        assert not pool._queue


@pytest.mark.promise("pool.fair")
async def test_a_call_waits_for_room_within_its_own_deadline() -> None:
    async with FaultServer() as http:
        server = at(http, max_links=1)
        async with holdfast.run():
            await count(server)

            async def waits(timeout: float) -> Any:
                async with holdfast.run(principal="other"):
                    return await server.call_tool("count", timeout=timeout)

            began = time.monotonic()
            with pytest.raises(holdfast.PoolFull, match=r"1 of 1 links to 'it' are leased, waited 0.1 s"):
                await asyncio.create_task(waits(0.1))
            assert time.monotonic() - began < 4
            patient = asyncio.create_task(waits(30))
            await until(lambda: pool._queue)
        assert not (await patient).is_error


@pytest.mark.promise("pool.fair")
async def test_of_two_calls_of_one_run_that_wait_each_keeps_its_own_deadline() -> None:
    async with FaultServer() as http:
        server, release = at(http, max_links=1), asyncio.Event()

        async def hold() -> None:
            async with holdfast.run():
                await count(server)
                await release.wait()

        holder = asyncio.ensure_future(hold())
        await until(lambda: http.sessions.sessions)
        async with holdfast.run():
            patient = asyncio.ensure_future(server.call_tool("count", timeout=30))
            with pytest.raises(holdfast.PoolFull):
                await server.call_tool("count", timeout=0.05)
            release.set()
            assert not (await patient).is_error
        await holder


@pytest.mark.promise("pool.keep")
async def test_a_kept_link_is_closed_when_it_has_idled_although_nobody_calls_again() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="process", idle=0.2)
        old = at(http, "old", reuse="process", max_age=0.2)
        used = at(http, "used", reuse="process", idle=60)
        async with holdfast.run():
            for each in (server, old, used):
                await count(each)
        assert pool.statistics().open_links == 3
        await until(lambda: len(http.sessions.sessions) == 1)
        assert pool.statistics().open_links == 1
        async with holdfast.run():
            assert await count(used) == 2
        await pool.close()


@pytest.mark.promise("pool.keep")
@pytest.mark.parametrize("meets", ["safe", "unsafe"])
async def test_each_run_that_shares_a_kept_link_is_told_of_its_loss(meets: str) -> None:
    replaced: list[str] = []
    async with FaultServer() as http:
        server = at(http, reuse="process")

        async def agent(name: str, barrier: asyncio.Barrier) -> list[int | str]:
            async with holdfast.run(on_replaced=lambda _: replaced.append(name)):
                found: list[int | str] = [await count(server)]
                await barrier.wait()
                if name == "a":
                    http.sessions.sessions.clear()
                    if meets == "safe":
                        await server.list_tools()
                    else:
                        await _told(found, server)
                await barrier.wait()
                for _ in range(2):
                    await _told(found, server)
                return found

        barrier = asyncio.Barrier(3)
        found = await asyncio.gather(*(agent(name, barrier) for name in "abc"))
        assert sorted(replaced) == ["a", "b", "c"]
        assert [one.count("told") for one in found] == [1, 1, 1]
        async with holdfast.run():
            assert await count(server) > 1  # who comes later is told of nothing: it had nothing there
        await pool.close()


@pytest.mark.promise("pool.keep")
async def test_a_run_is_told_through_the_sdk_session_of_a_kept_link_too() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="process")
        told = {"a": False, "b": False}

        async def agent(name: str, barrier: asyncio.Barrier) -> None:
            async with holdfast.run():
                session = await server.session()
                await session.call_tool("count")
                await barrier.wait()
                if name == "a":
                    http.sessions.sessions.clear()
                    await session.list_tools()
                await barrier.wait()
                with pytest.raises(MCPError) as caught:
                    await session.call_tool("count")
                told[name] = isinstance(caught.value.__cause__, holdfast.SessionReplaced)
                await session.call_tool("count")

        barrier = asyncio.Barrier(2)
        await asyncio.gather(*(agent(name, barrier) for name in told))
        assert all(told.values())
        await pool.close()


async def _told(found: list[int | str], server: holdfast.Server) -> None:
    try:
        found.append(await count(server))
    except holdfast.SessionReplaced:
        found.append("told")


@pytest.mark.promise("pool.keep")
async def test_a_loss_that_the_check_of_a_kept_link_finds_is_told_to_the_run_that_had_it_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, replaced = ManualClock(), list[holdfast.client.Replaced]()
    monkeypatch.setattr(pool, "clock", clock)
    async with FaultServer() as http:
        server = at(http, reuse="process", idle=1000)
        async with holdfast.run():
            await count(server)
        http.sessions.sessions.clear()
        clock.advance(70)
        for _ in range(2):
            async with holdfast.run(on_replaced=replaced.append):
                found: list[int | str] = []
                await _told(found, server)
        assert len(replaced) == 1
        await pool.close()
