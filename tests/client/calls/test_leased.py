"""The link for one call: of the run, of the process, or of the call alone."""

import asyncio
import logging

import pytest

import holdfast
from holdfast.client.runs.pool import pool
from holdfast.testing import FaultServer
from tests.client.servers import at, count, said

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.scope")
async def test_outside_a_run_a_call_opens_a_session_of_its_own_and_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FaultServer() as http:
        server = at(http, "warned-once")
        with caplog.at_level(logging.WARNING, "holdfast.client"):
            assert [await count(server) for _ in range(3)] == [1, 1, 1]
        assert sum("outside a run" in record.message for record in caplog.records) == 1
        assert not http.sessions.sessions


@pytest.mark.promise("run.scope")
async def test_reuse_per_call_and_per_tool() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="call")
        kept = at(http, "kept", tool_reuse={"count": "call"})
        async with holdfast.run():
            assert [await count(server) for _ in range(2)] == [1, 1]
            assert [await count(kept) for _ in range(2)] == [1, 1]
            await kept.call_tool("echo")
            await kept.call_tool("echo")
            assert said(await server.call_tool("count", reuse="run")) == "1"
            assert said(await server.call_tool("count", reuse="run")) == "2"


@pytest.mark.promise("run.scope")
async def test_a_task_that_outlives_its_root_is_told() -> None:
    async with FaultServer() as http:
        server, ended = at(http), asyncio.Event()

        async def stray() -> None:
            await ended.wait()
            assert holdfast.current_run() is None
            await server.call_tool("count")

        async with holdfast.run() as run:
            await server.call_tool("count")
            task = asyncio.ensure_future(stray())
        ended.set()
        with pytest.raises(holdfast.errors.LeaseClosed, match="outlived its run"):
            await task
        with pytest.raises(holdfast.errors.LeaseClosed):
            await run.link(server)
        assert not http.sessions.sessions


@pytest.mark.promise("run.scope")
async def test_reuse_of_a_tool_goes_both_ways() -> None:
    async with FaultServer() as http:
        kept, single = (
            at(http, "kept", reuse="process", tool_reuse={"count": "run"}),
            at(http, "single", tool_reuse={"count": "process"}),
        )
        for expected in (1, 2):
            async with holdfast.run():
                assert await count(kept) == 1
                assert await count(single) == expected
        await pool.close()
