"""Closing: from any task, in any order, twice, at any moment, under cancellation; then use again. Nothing stays."""

import asyncio
import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.lifecycle import LinkState
from holdfast.links import Limits
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import FAMILIES, FAST, link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.close")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_close_ends_the_session_and_a_closed_link_starts_over(era: Any) -> None:
    async with FaultServer(era=era) as server:
        link = link_to(server.url)
        await link.close()  # never opened
        for turn in range(1, 4):
            assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"
            assert link.phase is LinkState.READY
            await link.close()
            await link.close()
            assert link.phase is LinkState.CLOSED
            assert link.session_id is None
            assert not server.sessions.sessions
            assert server.sessions.deletes == (turn if era == "2025" else 0)
        assert link.statistics().opens == 3


@pytest.mark.promise("link.close")
async def test_links_are_closed_by_other_tasks_first_in_first_out() -> None:
    async with FaultServer() as server:
        links = [link_to(server.url) for _ in range(5)]
        await asyncio.gather(*(link.request("tools/list") for link in links))
        for link in links:
            await asyncio.ensure_future(link.close())
        assert server.sessions.deletes == 5


@pytest.mark.promise("link.close")
async def test_ten_tasks_close_at_once() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        await link.request("tools/list")
        await asyncio.gather(*(link.close() for _ in range(10)))
        assert server.sessions.deletes == 1


@pytest.mark.promise("link.close")
@pytest.mark.parametrize("stage", ["server/discover", "initialize", "notifications/initialized", "tools/call"])
async def test_close_during_open_handshake_or_a_call(stage: str) -> None:
    async with FaultServer(era="2026" if stage == "server/discover" else "2025") as server:
        link = link_to(server.url)
        server.plan(Fault.HANG, method=stage)
        call = asyncio.ensure_future(link.request("tools/call", tool("effect", call="x")))
        await until(lambda: any(request.method == stage for request in server.requests))
        await asyncio.wait_for(link.close(), patience(5))
        with pytest.raises(holdfast.HoldfastError) as caught:
            await asyncio.wait_for(call, patience(5))
        sent = stage == "tools/call"
        assert isinstance(caught.value, holdfast.OutcomeUnknown if sent else holdfast.Unavailable)
        server.lift()
        assert text_of(await link.request("tools/call", tool("echo", text="again"))) == "again"
        await link.close()


@pytest.mark.promise("link.close")
async def test_close_during_recovery() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        await link.request("tools/list")
        server.sessions.sessions.clear()
        server.plan(Fault.HANG, method="initialize")
        calls = [asyncio.ensure_future(link.request("tools/list")) for _ in range(5)]
        await until(lambda: sum(request.method == "initialize" for request in server.requests) == 2)
        await asyncio.wait_for(link.close(), patience(5))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, FAMILIES)
        server.lift()
        await link.request("tools/list")
        await link.close()


@pytest.mark.promise("link.close")
async def test_a_cancelled_close_still_closes() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        await link.request("tools/list")
        server.plan(Fault.HANG, method="DELETE")
        closing = asyncio.ensure_future(link.close())
        await until(lambda: any(request.verb == "DELETE" for request in server.requests))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: link.phase is LinkState.CLOSED)
        assert link.statistics().close_failures == 1  # the DELETE that hung
        await link.request("tools/list")
        await link.close()


@pytest.mark.promise("link.close")
async def test_a_task_cancelled_inside_the_block_still_ends_the_session() -> None:
    async with FaultServer() as server:

        async def work() -> None:
            async with link_to(server.url) as link:
                await link.request("tools/call", tool("wait", call="w"))

        task = asyncio.ensure_future(work())
        await until(lambda: server.effects["w"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.sessions.deletes == 1


@pytest.mark.promise("link.close")
async def test_a_use_during_closing_waits_and_starts_over() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        await link.request("tools/list")
        closing = asyncio.ensure_future(link.close())
        await asyncio.sleep(0)
        assert (await link.request("tools/list"))["tools"]
        await closing
        assert link.generation == 2
        await link.close()


@pytest.mark.promise("link.close")
async def test_closing_a_link_whose_server_is_gone_is_quick() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        await link.request("tools/list")
        await server.refuse()
        loop = asyncio.get_running_loop()
        start = loop.time()
        await link.close()
        assert loop.time() - start < FAST.close
        assert link.statistics().close_failures == 1


@pytest.mark.promise("link.nothing-left")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_nothing_is_left_after_two_hundred_opens(era: Any) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with FaultServer(era=era) as server:
        async with link_to(server.url) as link:
            await link.request("tools/list")
        gc.collect()
        files, tasks = descriptors(), len(asyncio.all_tasks())
        for turn in range(0, 200, 10):
            links = [link_to(server.url) for _ in range(10)]
            for number, link in enumerate(links):
                if (turn + number) % 4 == 3:
                    server.plan(list(Fault)[(turn + number) % 4], method="tools/call")
                with contextlib.suppress(holdfast.HoldfastError):
                    await link.request("tools/call", tool("effect"), timeout=0.2)
                server.lift()
            await asyncio.gather(*(link.close() for link in links))
        await until(lambda: descriptors() <= files)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert not server.sessions.sessions


@pytest.mark.promise("link.idle-socket")
async def test_an_event_loop_blocked_longer_than_keep_alive_sends_the_next_call_on_a_fresh_connection() -> None:
    """The real thing: uvicorn closes idle connections after a second, while our loop is blocked and can't see it."""
    from tests.links.server_process import RealServer

    async with RealServer("sdk", keep_alive=1) as server, link_to(server.url, stream=False) as link:
        await link.request("tools/call", tool("add", a=1, b=2))
        block(2.5)
        assert text_of(await link.request("tools/call", tool("add", a=1, b=2))) == "3"
        assert link.statistics().unknown_outcomes == 0


def block(seconds: float) -> None:
    """Hold the event loop, as a careless callback would."""
    import time

    time.sleep(seconds)


@pytest.mark.promise("link.close")
async def test_a_close_at_any_step_of_coming_up_leaves_a_link_that_works_and_no_session() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        for steps in range(45):
            opening = asyncio.ensure_future(link.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            await link.close()
            await asyncio.gather(opening, return_exceptions=True)
            if link.phase is not LinkState.CLOSED:
                await link.close()  # the opening began after the close
            assert not server.sessions.sessions, steps
        assert (await link.request("tools/list"))["tools"]
        await link.close()


@pytest.mark.promise("link.close")
async def test_a_session_whose_handshake_was_never_finished_is_ended() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        server.plan(Fault.HANG, method="notifications/initialized")
        call = asyncio.ensure_future(link.request("tools/list"))
        await until(lambda: server.sessions.sessions)
        await link.close()
        await asyncio.gather(call, return_exceptions=True)
        assert not server.sessions.sessions


@pytest.mark.promise("link.close")
async def test_a_call_that_waits_to_try_again_does_not_reopen_a_closed_link() -> None:
    limits = Limits(backoff=0.3, close=1)
    async with FaultServer() as server:
        link = link_to(server.url, limits=limits)
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=500)
        call = asyncio.ensure_future(link.request("tools/list"))
        await until(lambda: link.statistics().unknown_outcomes)
        await link.close()
        with pytest.raises(holdfast.Unavailable):
            await call
        assert link.phase is LinkState.CLOSED
        assert not server.sessions.sessions
