"""The pool: caps where a link costs a process, turns for those who wait, and an end for what idles."""

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import Server
from holdfast.client.runs.pool import pool
from holdfast.stores import ManualClock
from holdfast.testing import FaultServer
from tests.client.servers import FASTER, at, count, program, said
from tests.deadlines import patience, until
from tests.links.quick_links import FAST

pytestmark = pytest.mark.anyio


async def hold(server: holdfast.Server, release: asyncio.Event) -> None:
    """A run that has the server's link until it is released."""
    async with holdfast.run():
        await count(server)
        await release.wait()


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
                await asyncio.wait_for(all_in.wait(), patience(20))
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
            await until(lambda number=number: len(pool.slots.queue) == number)
        agents[3].cancel()  # who gives up is in nobody's way
        go.set()
        late = asyncio.ensure_future(agent(8))  # and who comes now waits behind them
        await asyncio.gather(*agents, late, return_exceptions=True)
        assert order == [0, 1, 2, 4, 5, 6, 7, 8]
        assert not pool.slots.queue


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
            with pytest.raises(holdfast.errors.PoolFull, match=r"1 of 1 links to 'it' are leased, waited 0.1 s"):
                await asyncio.create_task(waits(0.1))
            assert time.monotonic() - began < 4
            patient = asyncio.create_task(waits(30))
            await until(lambda: pool.slots.queue)
        assert not (await patient).is_error


@pytest.mark.promise("pool.fair")
async def test_of_two_calls_of_one_run_that_wait_each_keeps_its_own_deadline() -> None:
    async with FaultServer() as http:
        server, release = at(http, max_links=1), asyncio.Event()
        holder = asyncio.ensure_future(hold(server, release))
        await until(lambda: http.sessions.sessions)
        async with holdfast.run():
            patient = asyncio.ensure_future(server.call_tool("count", timeout=30))
            with pytest.raises(holdfast.errors.PoolFull):
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
    clock, replaced = ManualClock(), list[holdfast.Replacement]()
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


@pytest.mark.promise("pool.limits")
async def test_a_full_pool_says_so_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "wait", 0.1)
    async with FaultServer() as http:
        server = at(http, max_links=2)
        async with AsyncExitStack() as stack:

            async def hold() -> None:
                async with holdfast.run():
                    await count(server)
                    await asyncio.Event().wait()

            holders = [asyncio.ensure_future(hold()) for _ in range(2)]
            await until(lambda: pool.statistics().leased == 2 and len(http.sessions.sessions) == 2)
            with pytest.raises(holdfast.errors.PoolFull, match="2 of 2 links to 'it' are leased"):
                async with holdfast.run():
                    await count(server)
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)
            await stack.aclose()
        async with holdfast.run():
            assert await count(server) == 1


@pytest.mark.promise("pool.keep")
async def test_kept_links_expire_are_checked_and_are_drained_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = holdfast.stores.ManualClock()
    monkeypatch.setattr(pool, "clock", clock)
    async with FaultServer() as http:
        server = at(http, reuse="process", idle=100, max_age=1000)

        async def once() -> int:
            async with holdfast.run():
                return await count(server)

        assert [await once(), await once()] == [1, 2]
        clock.advance(70)
        before = len(http.requests)
        assert await once() == 3
        assert "ping" in {request.method for request in http.requests[before:]}  # it idled, so it was asked first
        clock.advance(101)
        assert await once() == 1
        await until(lambda: len(http.sessions.sessions) == 1)
        http.sessions.sessions.clear()
        clock.advance(70)
        with pytest.raises(holdfast.SessionReplaced):  # the check met the lost session; what runs share there is gone
            await once()
        assert await once() == 1
        for _ in range(11):
            clock.advance(95)
            await once()
        await until(lambda: len(http.sessions.sessions) == 1)
        assert await once() < 11
        await pool.close()


@pytest.mark.promise("pool.keep")
async def test_a_full_pool_evicts_the_link_that_was_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as http:
        monkeypatch.setattr(pool, "max_links", 2)
        servers = [at(http, f"s{n}", reuse="process") for n in range(3)]
        for server in servers:
            async with holdfast.run():
                await count(server)
        await until(lambda: pool.statistics().open_links == 2)
        async with holdfast.run():
            assert await count(servers[2]) == 2
        assert pool.statistics().evictions >= 1
        await pool.close()


@pytest.mark.promise("pool.limits")
def test_links_kept_for_a_closed_loop_do_not_fill_the_pool() -> None:
    app = MCPServer("app")

    @app.tool()
    def one() -> int:
        return 1

    server = Server("kept", app=app, reuse="process", max_links=2, limits=FASTER)
    loops: list[asyncio.AbstractEventLoop] = []

    async def once() -> None:
        loops.append(asyncio.get_running_loop())
        async with holdfast.run():
            await server.call_tool("one")
        await holdfast.close_kept_links()

    for _ in range(4):
        asyncio.run(once())
    assert pool.statistics().open_links == 0


@pytest.mark.promise("pool.limits")
async def test_a_cancelled_first_caller_harms_no_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as http:
        server, release = at(http, max_links=1), asyncio.Event()
        holder = asyncio.ensure_future(hold(server, release))
        await until(lambda: http.sessions.sessions)
        async with holdfast.run():
            first, second = (asyncio.ensure_future(count(server)) for _ in range(2))
            await until(lambda: pool.slots.queue)  # it waits for room
            first.cancel()
            release.set()
            assert await second == 1
            await asyncio.gather(first, return_exceptions=True)
        await holder


@pytest.mark.promise("pool.limits")
async def test_a_link_given_back_in_another_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as http:
        server = at(http, max_links=1)
        held, go = threading.Event(), threading.Event()

        async def elsewhere() -> None:
            async with holdfast.run():
                await count(server)
                held.set()
                await until(go.is_set, 30)

        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await until(held.is_set)
        async with holdfast.run():
            waiting = asyncio.ensure_future(count(server))
            await until(lambda: pool.slots.queue)
            go.set()
            assert await asyncio.wait_for(waiting, 4) == 1
        await until(lambda: not thread.is_alive())


@pytest.mark.promise("pool.keep")
async def test_a_link_that_idled_inside_a_long_run_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = holdfast.stores.ManualClock()
    monkeypatch.setattr(pool, "clock", clock)

    def methods(http: FaultServer) -> list[str | None]:
        return [request.method for request in http.requests if request.method is not None]

    async with FaultServer() as http:
        keeps = Server("keeps", url=http.url, limits=FAST, era="2025", idle=900)
        plain = Server("plain", url=http.url, limits=FAST, era="2025", idle=900, stateful=False)
        async with holdfast.run():
            for server in (keeps, plain):
                await server.call_tool("count")
            clock.advance(61)
            before = len(methods(http))
            await asyncio.gather(*(keeps.call_tool("count") for _ in range(5)))
            assert methods(http)[before:].count("ping") == 1  # one question for all of them
            assert methods(http)[before:].count("tools/call") == 5
            clock.advance(901)
            assert said(await keeps.call_tool("count")) == "7"  # state is never cut
            assert said(await plain.call_tool("count")) == "1"  # no state: a new session
        assert http.sessions.handshakes == 3


LEAKY = """
import asyncio, logging, sys
import holdfast
logging.basicConfig(format="%(message)s")
leaky = holdfast.Server("leaky", url=sys.argv[1])

async def leak():
    await holdfast.run().__aenter__()
    await leaky.call_tool("count")

async def go_on():
    async with holdfast.run():
        await leaky.call_tool("count")

async def keep():
    async with holdfast.run():
        await leaky.with_(name="kept", reuse="process").call_tool("count")

asyncio.run(leak())
asyncio.run(go_on())
asyncio.run(keep())
asyncio.run(keep())
"""


@pytest.mark.promise("pool.keep")
async def test_a_run_that_was_never_left_is_told() -> None:
    async with FaultServer() as http:
        command = [sys.executable, "-W", "ignore", "-c", LEAKY, http.url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "a run still held leaky when its event loop ended" in done.stderr
    assert done.stderr.count("kept: a link that reuse='process' had kept was left") == 1  # the other ends with us
    assert "close_kept_links()" in done.stderr
    assert "async with holdfast.run()" in done.stderr
