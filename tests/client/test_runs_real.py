"""Runs against real servers in processes of their own: transactions per session, questions, idling, expiry, ending."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast import Server
from holdfast.client.callbacks import Callbacks
from holdfast.client.runs import pool
from holdfast.testing import FaultServer
from tests.links.kit import FAST
from tests.links.real import RealServer

HOLDFAST = str(Path(sys.executable).parent / "holdfast")


def said(result: types.CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, types.TextContent)
    return first.text


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


@pytest.mark.promise("run.callbacks")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_real_server_asks_and_the_run_answers(era: Any) -> None:
    asked: list[str] = []

    async def elicit(params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"row": 7})

    async with RealServer("sdk") as real:
        server = Server("seats", url=real.url, era=era, limits=FAST)
        async with holdfast.run(callbacks=Callbacks(elicit=elicit)) as run:
            assert said(await server.call_tool("book")) == "row 7 is yours"
            assert (await run.link(server)).era is not None
        assert asked == ["Which row?"]
        async with holdfast.run():  # nobody answers: told with the server's name, not hung
            try:
                refused = await server.call_tool("book")
            except holdfast.HoldfastError as error:
                assert error.server == "seats"
            else:
                assert refused.is_error


@pytest.mark.promise("pool.keep")
async def test_a_link_that_idled_inside_a_long_run_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = holdfast.ManualClock()
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


@pytest.mark.promise("run.durable")
async def test_a_durable_run_expires_and_use_keeps_it_alive() -> None:
    clock = holdfast.ManualClock()
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
            with pytest.raises(holdfast.Ended):
                async with holdfast.run("last", store=store):
                    pass


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
