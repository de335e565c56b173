"""Runs: sessions that live as long as the agent's work, whoever calls, however it ends."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import anyio
import pytest

import holdfast
from holdfast import Server
from holdfast.client.runs.pool import pool
from holdfast.testing import Fault, FaultServer
from tests.client.servers import at, count, program, said
from tests.deadlines import until
from tests.links.quick_links import FAST
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.share")
async def test_calls_of_a_run_share_one_session_and_the_root_ends_it() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run() as run:
            assert holdfast.current_run() is run
            assert [await count(server) for _ in range(3)] == [1, 2, 3]
            assert len(http.sessions.sessions) == 1
        assert holdfast.current_run() is None
        assert not http.sessions.sessions
        assert run.statistics()["it"].calls == 3
        assert pool.statistics().open_links == 0


@pytest.mark.promise("run.share")
@pytest.mark.parametrize("end", ["well", "error", "cancelled", "timeout"])
async def test_a_root_and_ten_sub_agents_on_three_servers_have_one_session_each(end: str) -> None:
    async with FaultServer(era="2025") as old, FaultServer(era="2026") as new:
        servers = [at(old, "old"), at(new, "new"), program()]

        async def sub_agent(number: int) -> None:
            async with holdfast.run():  # joins
                for turn in range(34 if end == "well" else 3):  # a hundred calls each
                    await asyncio.gather(*(server.call_tool("count") for server in servers))
                    if end == "error" and number == 3 and turn == 1:
                        raise RuntimeError("a sub-agent's own fault")
                if end in ("cancelled", "timeout"):
                    await servers[0].call_tool("wait", {"call": "w"})

        async def root() -> None:
            async with holdfast.run():
                if end == "timeout":
                    with anyio.fail_after(60) as scope:
                        timed.append(scope)
                        await asyncio.gather(*(sub_agent(number) for number in range(10)))
                else:
                    await asyncio.gather(*(sub_agent(number) for number in range(10)))

        timed: list[anyio.CancelScope] = []
        task = asyncio.ensure_future(root())
        if end in ("cancelled", "timeout"):
            await until(lambda: old.effects["w"] >= 1)
            if end == "cancelled":
                task.cancel()
            else:
                timed[0].deadline = anyio.current_time()  # the time is over
        expected = {"well": None, "error": RuntimeError, "cancelled": asyncio.CancelledError, "timeout": TimeoutError}[
            end
        ]
        if expected is None:
            await task
        else:
            with pytest.raises(expected):
                await task
        await until(lambda: pool.statistics().open_links == 0)
        assert old.sessions.handshakes == 1
        assert not old.sessions.sessions
        assert new.sessions.handshakes == 1


@pytest.mark.promise("run.share")
async def test_a_timeout_scope_around_the_whole_run_still_releases_everything() -> None:
    async with FaultServer() as http:
        server = at(http)
        with anyio.move_on_after(0.3):
            async with holdfast.run():
                await server.call_tool("count")
                await server.call_tool("wait", {"call": "w"})
        assert not http.sessions.sessions
        assert pool.statistics().open_links == 0


@pytest.mark.promise("run.isolation")
async def test_two_runs_at_once_and_two_principals_never_share_a_session() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent(principal: str) -> list[int]:
            async with holdfast.run(principal=principal):
                return [await count(server) for _ in range(3)]

        assert await asyncio.gather(*(agent(name) for name in ("alice", "bob", "alice"))) == [[1, 2, 3]] * 3
        assert http.sessions.handshakes == 3


@pytest.mark.promise("run.isolation")
async def test_kept_links_are_kept_apart_by_principal_and_reused_by_later_runs() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="process")
        for principal, expected in (("alice", 1), ("alice", 2), ("bob", 1), ("alice", 3)):
            async with holdfast.run(principal=principal):
                assert await count(server) == expected
        assert pool.statistics().open_links == 2
        await pool.close()
        assert pool.statistics().open_links == 0
        assert not http.sessions.sessions


@pytest.mark.promise("run.isolation")
async def test_two_event_loops_in_two_threads_never_share_a_link() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run():
            assert await count(server) == 1
            counts: list[int] = []

            async def elsewhere() -> None:
                async with holdfast.run():
                    counts.append(await count(server))
                counts.append(await count(server))  # outside a run, there

            thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
            thread.start()
            await until(lambda: not thread.is_alive())
            assert counts == [1, 1]
            assert await asyncio.to_thread(lambda: asyncio.run(count(server))) == 1
            assert await count(server) == 2
        asyncio.get_running_loop().set_default_executor(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.promise("run.scope")
async def test_a_hanging_close_keeps_no_other_open() -> None:
    async with FaultServer() as slow, FaultServer() as quick:
        slow_one, quick_one = at(slow, "slow"), at(quick, "quick")
        slow.plan(Fault.HANG, method="DELETE")
        async with holdfast.run() as run:
            await asyncio.gather(slow_one.call_tool("count"), quick_one.call_tool("count"))
        assert not quick.sessions.sessions
        assert run.statistics()["slow"].close_failures == 0  # counted when the link closed, after this snapshot
        assert pool.statistics().close_failures >= 1


@pytest.mark.promise("run.state-loss")
async def test_a_transaction_holds_over_a_run_and_its_loss_is_told() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run():
            assert [await count(server) for _ in range(3)] == [1, 2, 3]
            await http.restart()
            with pytest.raises(holdfast.SessionReplaced):
                await count(server)
            assert await count(server) == 1


@pytest.mark.promise("run.founding")
async def test_a_transaction_per_session_over_http_holds_for_the_run_and_no_longer(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE notes (text)")
    db.commit()

    def notes() -> list[str]:
        return [text for (text,) in db.execute("SELECT text FROM notes")]

    async with RealServer("ledger", file=str(file)) as real:
        ledger = Server("ledger", url=real.url, era="2025", limits=FAST)
        async with holdfast.run():
            await ledger.call_tool("begin")
            await ledger.call_tool("insert", {"text": "kept"})
            await asyncio.gather(*(ledger.call_tool("add", {"a": 1, "b": 2}) for _ in range(5)))
            assert notes() == []
            assert said(await ledger.call_tool("commit")) == "committed"
        assert notes() == ["kept"]
        with pytest.raises(RuntimeError, match="changed its mind"):
            async with holdfast.run():
                await ledger.call_tool("begin")
                await ledger.call_tool("insert", {"text": "lost with the run"})
                raise RuntimeError("the agent changed its mind")
        # Ending the session rolled it back, so the file is free for the next writer.
        db.execute("INSERT INTO notes VALUES ('ours')")
        db.commit()
        assert notes() == ["kept", "ours"]
        async with holdfast.run() as run:
            await ledger.call_tool("begin")
            await ledger.call_tool("insert", {"text": "lost with the server"})
            await real.restart()
            with pytest.raises(holdfast.SessionReplaced) as told:
                await ledger.call_tool("commit")
            assert told.value.server == "ledger"
            assert run.statistics()["ledger"].replacements == 1
        assert notes() == ["kept", "ours"]
    db.close()
