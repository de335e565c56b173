"""The known flaws of the founding designs, one test named after each: none of them is ours."""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Server, events
from holdfast.client.runs.pool import pool
from holdfast.testing import Fault, FaultServer
from tests.client.servers import FASTER, at, count, program, said
from tests.deadlines import until
from tests.links.wires.stdio.children import alive

pytestmark = pytest.mark.anyio


class Children:
    """Which children began, and how many ended."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.ended = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.ChildStarted):
            self.started.append(event.pid)
        self.ended += isinstance(event, events.ChildEnded)


@pytest.mark.promise("run.founding")
async def test_closing_in_a_different_task_cancels_nobody() -> None:
    async with FaultServer() as http:
        server = at(http)
        scope = holdfast.run()
        run = await asyncio.ensure_future(scope.__aenter__())
        link = await run.link(server)
        await link.request("tools/list")
        await asyncio.ensure_future(scope.__aexit__(None, None, None))
        assert not http.sessions.sessions
        await asyncio.sleep(0)  # we are alive, and were not cancelled


@pytest.mark.promise("run.founding")
async def test_five_parallel_first_calls_start_one_child_and_discard_none() -> None:
    children = Children()
    started = children.started

    server = program()
    async with holdfast.run(on_event=children):
        counts = await asyncio.gather(*(count(server) for _ in range(5)))
        assert sorted(counts) == [1, 2, 3, 4, 5]
    assert len(started) == 1


@pytest.mark.promise("run.founding")
async def test_a_cancelled_cleanup_leaves_no_orphan() -> None:
    children = Children()
    started = children.started

    async def agent() -> None:
        async with holdfast.run(on_event=children):
            await asyncio.gather(count(program("one")), count(program("two")))

    for ends in (0, 1, 2):  # cancelled while they start, and while the first or both are being closed
        task = asyncio.ensure_future(agent())
        await until(lambda: len(started) >= 2)
        if ends:
            await until(lambda ends=ends: children.ended >= ends - 1 and (ends == 1 or children.ended))
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not any(alive(pid) for pid in started))
        started.clear()
        children.ended = 0
    assert pool.statistics().open_links == 0


@pytest.mark.promise("run.founding")
async def test_a_dead_session_is_not_kept() -> None:
    children = Children()
    started = children.started

    server = program()
    async with holdfast.run(on_event=children):
        await count(server)
        os.kill(started[0], 9)
        await until(lambda: not alive(started[0]))
        with pytest.raises((holdfast.SessionReplaced, holdfast.OutcomeUnknown)):
            await count(server)
        for _ in range(2):
            try:
                assert await count(server) >= 1
                break
            except holdfast.SessionReplaced:
                continue
        assert len(started) == 2


@pytest.mark.promise("run.founding")
async def test_names_that_end_alike_are_different_servers() -> None:
    async with FaultServer() as http:
        servers = [at(http, name) for name in ("a", "b.a", "a-run")]
        async with holdfast.run("x--a", memory=lambda *_: None):
            for server in servers:
                assert await count(server) == 1
        assert http.sessions.handshakes == 3


@pytest.mark.promise("run.founding")
async def test_one_slow_server_holds_up_no_other() -> None:
    async with FaultServer() as slow, FaultServer() as quick:
        slow.plan(Fault.HANG, method="initialize")
        async with holdfast.run():
            waiting = asyncio.ensure_future(count(at(slow, "slow")))
            await until(lambda: slow.requests)
            assert await asyncio.wait_for(count(at(quick, "quick")), 2) == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.promise("run.founding")
async def test_close_failures_are_counted_not_only_logged() -> None:
    before = pool.statistics().close_failures
    async with FaultServer() as http:
        http.plan(Fault.STATUS, method="DELETE", status=500)
        async with holdfast.run():
            await count(at(http))
    assert pool.statistics().close_failures == before + 1


@pytest.mark.promise("run.founding")
async def test_a_call_that_may_have_run_is_not_replayed_blindly() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run():
            await count(server)
            http.plan(Fault.CLOSE, method="tools/call", effect=True)
            with pytest.raises(holdfast.OutcomeUnknown):
                await server.call_tool("effect", {"call": "x"})
            assert http.effects["x"] == 1


@pytest.mark.promise("run.founding")
async def test_a_dropped_connection_does_not_cost_a_live_session() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run():
            assert await count(server) == 1
            http.plan(Fault.RESET, method="tools/call")
            with pytest.raises(holdfast.OutcomeUnknown):
                await count(server)
            assert await count(server) == 2
        assert http.sessions.handshakes == 1


LEDGER = """
import sqlite3, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("ledger")
db = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
@server.tool()
def begin() -> str:
    db.execute("BEGIN")
    return "begun"
@server.tool()
def insert(text: str) -> str:
    db.execute("INSERT INTO notes VALUES (?)", (text,))
    return "inserted"
@server.tool()
def commit() -> str:
    db.execute("COMMIT")
    return "committed"
server.run()
"""


@pytest.mark.promise("run.founding")
async def test_a_transaction_spans_the_calls_of_a_run_and_is_rolled_back_with_it(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE notes (text)")
    db.commit()
    children = Children()
    started = children.started

    def notes() -> list[str]:
        return [text for (text,) in db.execute("SELECT text FROM notes")]

    ledger = Server("ledger", command=sys.executable, args=["-c", LEDGER, str(file)], era="2025", limits=FASTER)
    async with holdfast.run():
        await ledger.call_tool("begin")
        await ledger.call_tool("insert", {"text": "kept"})
        await ledger.list_tools()
        assert said(await ledger.call_tool("commit")) == "committed"
    assert notes() == ["kept"]
    with pytest.raises(RuntimeError, match="changed its mind"):
        async with holdfast.run():
            await ledger.call_tool("begin")
            await ledger.call_tool("insert", {"text": "lost with the run"})
            raise RuntimeError("the agent changed its mind")
    assert notes() == ["kept"]
    async with holdfast.run(on_event=children):
        await ledger.call_tool("begin")
        await ledger.call_tool("insert", {"text": "lost with the server"})
        os.kill(started[-1], 9)
        await until(lambda: not alive(started[-1]))
        with pytest.raises((holdfast.SessionReplaced, holdfast.OutcomeUnknown)):
            await ledger.call_tool("commit")
    assert notes() == ["kept"]
    db.close()
