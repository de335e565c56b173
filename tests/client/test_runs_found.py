"""Faults that a hunt found in the first runs, one test each, so that none comes back."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from langchain_core.tools import ToolException
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast import Callbacks, Server
from holdfast.client import calls
from holdfast.client.runs import pool
from holdfast.integrations.langchain import tools
from holdfast.testing import Fault, FaultServer
from tests.client.test_runs import FASTER, at, count, said
from tests.links.kit import until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.callbacks")
async def test_a_kept_link_asks_the_run_that_uses_it_now() -> None:
    told: list[str] = []

    def answering(name: str) -> Callbacks:
        async def elicit(params: Any) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"who": name})

        return Callbacks(elicit=elicit)

    asked = {"params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}}
    async with FaultServer(answers="sse") as http:
        server = at(http, reuse="process")
        for name in ("first", "second"):
            async with holdfast.run(callbacks=answering(name), on_replaced=lambda _, name=name: told.append(name)):
                assert name in said(await server.call_tool("ask", asked))
                if name == "second":
                    http.sessions.sessions.clear()
                    await server.list_tools()
        assert told == ["second"]
        async with holdfast.run():  # promises nothing, so it may not use a link that does
            await server.call_tool("echo")
            assert pool.statistics().open_links == 2
        await pool.close()


@pytest.mark.promise("run.scope")
async def test_after_an_abandoned_generator_calls_outside_a_run_work() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run():
                while True:
                    yield await count(server)

        async for _ in agent():
            break
        gc.collect()
        await until(lambda: not http.sessions.sessions)
        assert await count(server) == 1  # on its own


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


@pytest.mark.promise("run.typed")
async def test_a_servers_output_schema_makes_us_fetch_nothing_and_raises_ours() -> None:
    for schema in ({"$ref": "http://127.0.0.1:1/secret"}, {"type": "wibble"}, {"$ref": "#/nope"}, {"type": "string"}):
        tool = types.Tool(name="t", input_schema={"type": "object"}, output_schema=schema)
        result = types.CallToolResult(content=[], structured_content={"a": 1})
        with pytest.raises(holdfast.BadAnswer):
            calls._checked(Server("s", url="http://h/"), tool, result)


@pytest.mark.promise("run.callbacks")
async def test_input_rounds_are_bounded_by_the_timeout_and_raise_ours() -> None:
    server = Server("s", url="http://h/")

    class RequestContext:
        sharers = ()

        def __init__(self, question: Any) -> None:
            self.question = question

        async def request(self, method: str, params: Any, *, timeout: float | None, **_: Any) -> dict[str, Any]:
            assert timeout is None or timeout <= 0.3
            return {"resultType": "input_required", "inputRequests": {"q": self.question}}

    for question in (
        "oops",
        {"method": "sampling/createMessage"},
        {"method": "elicitation/create", "params": {"x": 1}},
    ):
        with pytest.raises(holdfast.Rejected) as caught:
            await calls._rounds(server, RequestContext(question), "tools/call", {"name": "x"}, timeout=0.3)  # type: ignore[arg-type]
        assert caught.value.server == "s"


@pytest.mark.promise("pool.limits")
async def test_a_cancelled_first_caller_harms_no_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as http:
        server, release = at(http, max_links=1), asyncio.Event()

        async def hold() -> None:
            async with holdfast.run():
                await count(server)
                await release.wait()

        holder = asyncio.ensure_future(hold())
        await until(lambda: http.sessions.sessions)
        async with holdfast.run():
            first, second = (asyncio.ensure_future(count(server)) for _ in range(2))
            await until(lambda: pool._queue)  # it waits for room
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
                while not go.is_set():
                    await asyncio.sleep(0.01)

        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await until(held.is_set)
        async with holdfast.run():
            waiting = asyncio.ensure_future(count(server))
            await until(lambda: pool._queue)
            go.set()
            assert await asyncio.wait_for(waiting, 4) == 1
        await until(lambda: not thread.is_alive())


@pytest.mark.promise("run.durable")
async def test_an_ended_run_takes_no_more_calls_and_leaves_no_record() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http)
        async with holdfast.run("talk", store=store):
            await count(server)
        async with holdfast.run("talk", store=store) as run:
            await run.end()
            with pytest.raises(holdfast.Ended):
                await count(server)
        assert not (await store.scan(kind="link")).records


@pytest.mark.promise("integrations.langchain")
async def test_langchain_arguments_of_any_name_arrive_and_errors_raise_if_asked() -> None:
    app, seen = MCPServer("app"), list[dict[str, Any]]()

    @app.tool()
    def take(config: str = "", run_manager: str = "", name: str = "") -> str:
        seen.append({"config": config, "run_manager": run_manager, "name": name})
        return "taken"

    @app.tool()
    def boom() -> str:
        raise ValueError("boom")

    server = Server("app", app=app, limits=FASTER)
    async with holdfast.run():
        taking, booming = await tools([server], errors="raise")
        given = {"config": "c", "run_manager": "r", "name": "n"}
        assert await taking.ainvoke(given) == "taken"
        assert seen == [given]
        assert set(booming.args) == set()
        with pytest.raises(ToolException):
            await booming.ainvoke({})


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


@pytest.mark.promise("run.typed")
async def test_a_session_does_not_keep_its_link_alive() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run() as run:
            await server.session()
            link = weakref.ref(await run.link(server))
        await until(lambda: gc.collect() is not None and link() is None)


@pytest.mark.promise("files.wrong")
def test_values_that_are_none_are_refused_and_what_is_off_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for entry in ('"era": "1999"', '"timeout": -1', '"proxy": 5', '"enabled": "false"'):
        file.write_text('{"mcpServers": {"a": {"url": "http://h/", ENTRY}}}'.replace("ENTRY", entry))
        with pytest.raises(holdfast.ConfigError):
            holdfast.load_servers(file)
    text = (
        '{"mcpServers": {"a": {"command": "x", "env": {"P": 80, "K": "${NO}"}, "disabled": true, "disabledTools": []}}}'
    )
    file.write_text("\ufeff" + text)
    assert holdfast.load_servers(file, env={})["a"].disabled
    file.write_text("[" * 100_000)
    with pytest.raises(holdfast.ConfigError):
        holdfast.load_servers(file)


@pytest.mark.promise("run.scope")
async def test_current_run_is_none_in_a_thread_without_a_loop() -> None:
    found: list[Any] = []
    async with FaultServer() as http, holdfast.run():
        http.plan(Fault.CLOSE, method="nothing")
        import contextvars

        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(holdfast.current_run)))
        thread.start()
        thread.join(5)
    assert found == [None]
    assert Server("a", url="http://h/", callbacks=Callbacks(roots=["x:1"])) == Server(
        "a", url="http://h/", callbacks=Callbacks(roots=["x:1"])
    )


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
