"""Durable runs: what one process leaves is continued by the next, and what can't be continued is told."""

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast import Callbacks, Server, events
from holdfast.client.runs import kept_sessions
from holdfast.client.runs.durable import RunRecord
from holdfast.client.runs.pool import pool
from holdfast.testing import FaultServer, stdio_target
from tests.client.servers import FASTER, at, count, program
from tests.deadlines import patience
from tests.links.quick_links import FAST

pytestmark = pytest.mark.anyio


KILLED = """
import asyncio, os, signal, sys, holdfast
async def main():
    url, command, *args = sys.argv[1:]
    async with holdfast.run("talk", store=url):
        await holdfast.Server("program", command=command, args=args).call_tool("count")
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def replacements(heard: list[Any]) -> list[events.LinkSessionReplaced]:
    return [event for event in heard if isinstance(event, events.LinkSessionReplaced)]


@pytest.mark.promise("run.durable-loss")
async def test_nobody_continues_a_program_of_a_killed_process_without_being_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, target = f"sqlite:///{tmp_path}/runs.db", stdio_target()
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, target.command, *target.args)
    assert await killed.wait() == -signal.SIGKILL
    heard: list[Any] = []
    child = program()
    async with holdfast.run("talk", store=url, on_event=heard.append) as run:
        with caplog.at_level(logging.WARNING, "holdfast.links"):
            await child.list_tools()  # harmless, so it may run in the new program
            assert len(replacements(heard)) == 1
            with pytest.raises(holdfast.SessionReplaced, match="what it kept is gone") as told:
                await count(child)
        assert told.value.server == "program"
        assert any("was replaced" in record.getMessage() for record in caplog.records)
        assert run.statistics()["program"].replacements == 1
        assert [await count(child) for _ in range(2)] == [1, 2]  # told once


@pytest.mark.promise("run.durable")
@pytest.mark.parametrize("how", ["hangs", "raises"])
async def test_a_store_that_fails_at_the_end_keeps_no_run_from_releasing_its_links(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def touch(*_: Any) -> Any:
        if how == "raises":
            raise RuntimeError("no error of ours")
        await asyncio.Event().wait()

    monkeypatch.setattr(kept_sessions, "STORE_SECONDS", 0.05)
    child = program()
    async with FaultServer() as http, holdfast.open_store("memory:") as store, asyncio.timeout(patience(20)):
        async with holdfast.run("talk", store=store):
            assert [await count(at(http)), await count(child)] == [1, 1]
            before = pool.statistics().open_links
            monkeypatch.setattr(RunRecord, "touch", touch)
        assert (before, pool.statistics().open_links) == (2, 0)
    assert "run talk could not be recorded" in caplog.text


@pytest.mark.promise("run.durable-loss")
@pytest.mark.parametrize(("stateful", "era"), [(True, "2025"), (True, "2026"), (True, "auto"), (False, "2025")])
async def test_an_object_of_another_process_is_told_as_replaced(stateful: bool, era: Any) -> None:
    def served() -> Server:
        app = MCPServer("app")
        made: list[int] = []

        @app.tool(name="count")
        def counted() -> str:
            made.append(1)
            return str(len(made))

        return Server("app", app=app, era=era, stateful=stateful, limits=FASTER)

    async with holdfast.open_store("memory:") as store:
        async with holdfast.run("talk", store=store):
            assert await count(served()) == 1
        heard: list[Any] = []
        told: list[holdfast.Replacement] = []
        async with holdfast.run("talk", store=store, on_event=heard.append, on_replaced=told.append):
            server = served()  # as in another process
            if stateful:
                with pytest.raises(holdfast.SessionReplaced):
                    await count(server)
            assert await count(server) == 1
        assert len(replacements(heard)) == len(told) == 1


@pytest.mark.promise("run.durable-loss")
@pytest.mark.parametrize("lost", ["gone", "garbage", "capabilities", "store down"])
async def test_a_session_that_can_not_be_gone_on_with_is_told_as_replaced(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http)
        promised = Callbacks(roots=["file:///a"]) if lost == "capabilities" else Callbacks()
        async with holdfast.run("talk", store=store, callbacks=promised):
            assert await count(server) == 1
        [link] = (await store.scan(kind="link")).records
        if lost == "gone":
            await store.end("link", link.id)
            await store.reap(ended_for=0)
        elif lost == "garbage":
            await store.commit(link.with_data({"session": 7}), expect=link.rev)
        heard: list[Any] = []
        async with holdfast.run("talk", store=store, on_event=heard.append):
            if lost == "store down":
                get = store.get

                async def down(kind: str, id: str, *, dead: bool = False) -> Any:
                    if kind == "link":
                        raise holdfast.errors.StoreDown("as if")
                    return await get(kind, id, dead=dead)

                monkeypatch.setattr(store, "get", down)
            with pytest.raises(holdfast.SessionReplaced):
                await count(server)
            assert await count(server) == 1
        assert len(replacements(heard)) == 1
        if lost in ("gone", "garbage", "capabilities"):
            async with holdfast.run("talk", store=store, on_event=heard.append):
                assert await count(server) == 2  # the new one was saved
            assert len(replacements(heard)) == 1


@pytest.mark.promise("run.durable-loss")
async def test_a_first_use_that_can_not_be_written_is_told_and_the_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    async with holdfast.open_store("memory:") as store:
        commit = store.commit

        async def down(record: Any, *args: Any, **more: Any) -> Any:
            if record.kind == "run" and record.rev:
                raise holdfast.errors.StoreDown("as if")
            return await commit(record, *args, **more)

        child = program()
        async with holdfast.run("talk", store=store, on_event=heard.append):
            with monkeypatch.context() as patched:
                patched.setattr(store, "commit", down)
                assert await count(child) == 1
            assert any(isinstance(event, events.MemoryFailed) for event in heard)
        async with holdfast.run("talk", store=store):  # it was written when the run was left
            with pytest.raises(holdfast.SessionReplaced):
                await count(child)


@pytest.mark.promise("run.durable")
@pytest.mark.parametrize("reaped", [True, False])
@pytest.mark.parametrize("span", ["idle", "max_age"])
async def test_an_expired_id_begins_anew_whether_or_not_it_was_reaped(reaped: bool, span: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with FaultServer() as http, holdfast.open_store("memory:", clock=clock) as store:
        server = at(http)
        limits: dict[str, Any] = {span: 100}
        async with holdfast.run("talk", store=store, **limits) as run:
            assert not run.continued
            assert await count(server) == 1
        clock.advance(101)
        if reaped:
            await store.reap()
        heard: list[Any] = []
        async with holdfast.run("talk", store=store, principal="bob", on_event=heard.append) as run:
            assert not run.continued
            assert await count(server) == 1  # nothing of the old one's is continued
        assert not replacements(heard)
        async with holdfast.run("talk", store=store, principal="bob") as run:
            assert run.continued
            assert await count(server) == 2


@pytest.mark.promise("run.durable")
async def test_a_session_that_no_memory_keeps_is_ended_with_its_run() -> None:
    async with FaultServer() as http:
        async with holdfast.run("talk", memory=lambda *_: None):
            assert await count(at(http)) == 1
        assert not http.sessions.sessions


@pytest.mark.promise("run.durable")
async def test_a_record_of_an_ended_run_tells_its_end_to_its_principal_alone() -> None:
    async with holdfast.open_store("memory:") as store:
        async with holdfast.run("talk", store=store, principal="alice") as run:
            await run.end()
        with pytest.raises(holdfast.UsageError, match="this principal has no run"):
            async with holdfast.run("talk", store=store, principal="mallory"):
                raise AssertionError("not reached")


@pytest.mark.promise("run.durable-loss")
async def test_a_second_process_on_one_run_is_told_that_its_program_is_another() -> None:
    async with holdfast.open_store("memory:") as store:
        one, two = program(), program()

        async def process(server: Server, ready: asyncio.Event, go: asyncio.Event, told: list[Any]) -> None:
            async with holdfast.run("talk", store=store, on_replaced=told.append):
                ready.set()
                await go.wait()
                try:
                    await count(server)
                except holdfast.SessionReplaced:
                    assert told

        first, second = list[Any](), list[Any]()
        ready = [asyncio.Event(), asyncio.Event()]
        go = [asyncio.Event(), asyncio.Event()]
        a = asyncio.ensure_future(process(one, ready[0], go[0], first))
        b = asyncio.ensure_future(process(two, ready[1], go[1], second))
        await asyncio.gather(*(each.wait() for each in ready))  # both have opened the run
        go[0].set()
        await a
        go[1].set()
        await b
        assert (len(first), len(second)) == (0, 1)


@pytest.mark.promise("run.durable")
async def test_a_durable_run_is_continued_by_another_and_ended_for_good(tmp_path: Any) -> None:
    async with FaultServer() as http, holdfast.open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        server = at(http)
        for expected in (1, 2, 3):  # as three processes would
            async with holdfast.run("talk-7", store=store):
                assert await count(server) == expected
            assert len(http.sessions.sessions) == 1  # detached, not deleted
        assert http.sessions.handshakes == 1
        async with holdfast.run("talk-7", store=store) as run:
            assert await count(server) == 4
            await run.end()
        assert not http.sessions.sessions
        with pytest.raises(holdfast.errors.Ended):
            async with holdfast.run("talk-7", store=store):
                pass


@pytest.mark.promise("run.durable")
async def test_whoever_continues_is_told_when_the_server_had_forgotten() -> None:
    told: list[holdfast.Replacement] = []
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server, child = at(http), program()
        async with holdfast.run("talk", store=store):
            await count(server)
            await count(child)
        http.sessions.sessions.clear()
        async with holdfast.run("talk", store=store, on_replaced=told.append):
            with pytest.raises(holdfast.SessionReplaced):
                await count(server)
            assert await count(server) == 1
            with pytest.raises(holdfast.SessionReplaced):
                await count(child)
            assert await count(child) == 1
        assert {replaced.server.name for replaced in told} == {"it", "program"}


@pytest.mark.promise("run.durable")
async def test_two_processes_on_one_run_do_not_corrupt_it() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        one, two = at(http, "one"), at(http, "two")

        async def process(server: Server) -> None:
            async with holdfast.run("talk", store=store):
                for _ in range(5):
                    await count(server)

        await asyncio.gather(*(process(server) for server in (one, two, one, two)))
        record = await store.get("run", "talk")
        assert record is not None
        assert isinstance(record.data, dict)
        assert record.data["servers"] == ["one", "two"]
        assert len(http.sessions.sessions) == 2


@pytest.mark.promise("run.durable")
async def test_an_ended_run_takes_no_more_calls_and_leaves_no_record() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http)
        async with holdfast.run("talk", store=store):
            await count(server)
        async with holdfast.run("talk", store=store) as run:
            await run.end()
            with pytest.raises(holdfast.errors.Ended):
                await count(server)
        assert not (await store.scan(kind="link")).records


PROCESS = """
import asyncio, sys, holdfast
async def main():
    url, name = sys.argv[1:]
    async with holdfast.open_store("sqlite:///runs.db") as store, holdfast.run("talk", store=store):
        server = holdfast.Server(name, url=url)
        for _ in range(20):
            await server.call_tool("count")
asyncio.run(main())
"""


@pytest.mark.promise("run.durable")
async def test_four_processes_on_one_run_share_its_sessions_and_lose_no_count(tmp_path: Path) -> None:
    async with FaultServer() as http:
        names = ("one", "two", "one", "two")
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, http.url, name, cwd=tmp_path)
            for name in names
        ]
        assert await asyncio.gather(*(process.wait() for process in processes)) == [0] * 4
        async with holdfast.open_store(f"sqlite:///{tmp_path}/runs.db") as store:
            record = await store.get("run", "talk")
            assert record is not None
            assert isinstance(record.data, dict)
            assert record.data["servers"] == ["one", "two"]
        # A session that lost the race was ended unused; both processes of a name counted in the other.
        assert [session.count for session in http.sessions.sessions.values()] == [40, 40]


HOLDFAST = str(Path(sys.executable).parent / "holdfast")


@pytest.mark.promise("run.durable")
async def test_a_durable_run_expires_and_use_keeps_it_alive() -> None:
    clock = holdfast.stores.ManualClock()
    async with FaultServer() as http, holdfast.open_store("memory:", clock=clock) as store:
        server = Server("counter", url=http.url, limits=FAST)
        for _ in range(4):  # each use is another beginning of the span
            async with holdfast.run("talk", store=store, idle=100):
                await server.call_tool("count")
            clock.advance(60)
        async with holdfast.run("talk", store=store) as run:
            assert run.continued
        clock.advance(101)
        async with holdfast.run("talk", store=store) as run:
            assert not run.continued
        with pytest.raises(holdfast.UsageError, match="store="):
            holdfast.run("talk", idle=5)


@pytest.mark.promise("run.durable")
async def test_ending_a_run_ends_what_an_earlier_process_left(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with FaultServer() as http, FaultServer() as other:
        counter = Server("counter", url=http.url, limits=FAST)
        second = Server("second", url=other.url, limits=FAST)
        async with holdfast.open_store(url) as store:
            async with holdfast.run("talk", store=store):
                await counter.call_tool("count")
                await second.call_tool("count")
            assert len(http.sessions.sessions) == len(other.sessions.sessions) == 1
            async with holdfast.run("talk", store=store) as run:
                await run.end(counter, second)
            assert not http.sessions.sessions
            assert not other.sessions.sessions
            async with holdfast.run("more", store=store):
                await counter.call_tool("count")
        (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {{"counter": {{"url": "{http.url}"}}}}}}')
        command = [HOLDFAST, "runs", "end", "more", "--store", url, "--servers", "mcp.json"]
        ended = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert not http.sessions.sessions
        assert http.sessions.handshakes == 2  # none was begun in order to end one
        # A server that is gone keeps nobody from ending the run.
        async with holdfast.open_store(url) as store:
            async with holdfast.run("last", store=store):
                await second.call_tool("count")
            await other.refuse()
            async with holdfast.run("last", store=store) as run:
                await run.end(second)
            with pytest.raises(holdfast.errors.Ended):
                async with holdfast.run("last", store=store):
                    pass
