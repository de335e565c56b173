"""Runs: sessions that live as long as the agent's work, whoever calls, however it ends."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import Callbacks, Server
from holdfast.client.runs import pool
from holdfast.testing import Fault, FaultServer, stdio_target
from tests.links.kit import FAST, until

pytestmark = pytest.mark.anyio

FASTER = holdfast.Limits(
    **{**{name: getattr(FAST, name) for name in FAST.__dataclass_fields__}, "exit": 0.5, "handshake": 5}
)


def at(server: FaultServer, name: str = "it", **more: Any) -> Server:
    return Server(name, url=server.url, limits=FASTER, **more)


def program(name: str = "program", **more: Any) -> Server:
    target = stdio_target()
    return Server(name, command=target.command, args=target.args, limits=FASTER, **more)


def said(result: types.CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


async def count(server: Server) -> int:
    return int(said(await server.call_tool("count")))


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
                    with anyio.fail_after(1):
                        await asyncio.gather(*(sub_agent(number) for number in range(10)))
                else:
                    await asyncio.gather(*(sub_agent(number) for number in range(10)))

        task = asyncio.ensure_future(root())
        if end == "cancelled":
            await until(lambda: old.effects["w"] >= 1)
            task.cancel()
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
async def test_gather_children_with_no_outer_run_are_roots_of_their_own() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def root() -> holdfast.Run:
            async with holdfast.run() as run:
                await count(server)
                return run

        runs = await asyncio.gather(root(), root())
        assert runs[0] is not runs[1]
        assert http.sessions.handshakes == 2


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
        with pytest.raises(holdfast.LeaseClosed, match="outlived its run"):
            await task
        with pytest.raises(holdfast.LeaseClosed):
            await run.link(server)
        assert not http.sessions.sessions


@pytest.mark.promise("run.scope")
async def test_an_abandoned_async_generator_cancels_nobody_and_leaks_nothing() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run():
                while True:
                    yield await count(server)

        async for number in agent():
            if number == 2:
                break
        import gc

        gc.collect()
        await until(lambda: not http.sessions.sessions)
        assert holdfast.current_run() is None
        generator = agent()
        assert await anext(generator) == 1
        await asyncio.ensure_future(generator.aclose())  # type: ignore[attr-defined] # in another task and context
        await until(lambda: not http.sessions.sessions)


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


@pytest.mark.promise("run.scope")
async def test_eager_servers_are_open_before_the_first_call() -> None:
    async with FaultServer() as http:
        async with holdfast.run(eager=[at(http)]):
            assert len(http.sessions.sessions) == 1
        assert not http.sessions.sessions
        await http.refuse()
        with pytest.raises(holdfast.ConnectFailed):
            async with holdfast.run(eager=[at(http)]):
                raise AssertionError("not reached")
        assert holdfast.current_run() is None


@pytest.mark.promise("run.typed")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_typed_calls_in_both_eras(era: Any) -> None:
    steps: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async with FaultServer(era=era, answers="sse") as http:
        server = at(http)
        async with holdfast.run():
            tools = await server.list_tools()
            assert isinstance(tools[0], types.Tool)
            before = len(http.requests)
            await server.call_tool("echo", {"text": "x"}, on_progress=progress)
            assert sum(request.verb == "POST" for request in http.requests[before:]) == 1  # a call costs one request
            await server.call_tool("progress", {"steps": 2}, on_progress=progress)
            assert steps == [1, 2]
            await server.ping()
            session = await server.session()
            assert said(await session.call_tool("echo", {"text": "raw"})) == "raw"
            assert await server.session() is session


@pytest.mark.promise("run.share")
@pytest.mark.parametrize("reuse", ["run", "process"])
async def test_the_sdks_session_ends_with_what_lent_it_and_opens_nothing_again(reuse: Any) -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http, reuse=reuse)
        for more in ({}, {"id": "talk", "store": store}):
            http.sessions.sessions.clear()
            async with holdfast.run(**more):
                session = await server.session()
                assert said(await session.call_tool("count")) == "1"
            await pool.close()
            sent, sessions = len(http.requests), len(http.sessions.sessions)
            with pytest.raises(MCPError, match=r"LeaseClosed: .* after its run had ended"):
                await session.call_tool("count")
            assert (len(http.requests), len(http.sessions.sessions)) == (sent, sessions)


@pytest.mark.promise("run.bad-input")
async def test_what_is_declared_wrong_is_refused_when_it_is_declared() -> None:
    async def hear(event: Any) -> None: ...

    class Hears:
        async def __call__(self, event: Any) -> None: ...

    server = Server("it", url="http://127.0.0.1:9/mcp")
    wrong: list[dict[str, Any]] = [
        {name: value} for name in ("on_event", "on_replaced") for value in (hear, Hears(), lambda: None, "x")
    ]
    for each in (*wrong, {"callbacks": {"elicit": hear}}, {"principal": 5}, {"eager": ["it"]}):
        with pytest.raises(holdfast.UsageError, match=rf"run(: |\(){next(iter(each))}=") as caught:
            holdfast.run(**each)
        assert caught.value.remedy
    for each in ({"callbacks": {}}, {"limits": 5}, {"stateful": "no"}):
        with pytest.raises(holdfast.ConfigError, match=f"{next(iter(each))}= is a"):
            server.with_(**each)
    async with holdfast.run():
        with pytest.raises(holdfast.UsageError, match=r"definition= .* is a dict"):
            await server.call_tool("x", definition={"name": "x"})  # type: ignore[arg-type]


@pytest.mark.promise("run.typed")
async def test_everything_else_is_typed_too() -> None:
    app = MCPServer("app")

    @app.resource("note://{name}")
    def note(name: str) -> str:
        return f"note {name}"

    @app.resource("fixed://one")
    def fixed() -> str:
        return "one"

    @app.prompt()
    def ask(topic: str) -> str:
        return f"tell me about {topic}"

    @app.tool()
    def divide(a: int, b: int) -> float:
        return a / b

    server = Server("app", app=app, limits=FASTER)
    for era in ("2025", "2026"):
        async with holdfast.run():
            of_era = server.with_(name=f"app-{era}", era=era)
            assert [str(each.uri) for each in await of_era.list_resources()] == ["fixed://one"]
            assert [each.uri_template for each in await of_era.list_resource_templates()] == ["note://{name}"]
            assert "note x" in str((await of_era.read_resource("note://x")).contents[0])
            assert [each.name for each in await of_era.list_prompts()] == ["ask"]
            assert "moss" in str((await of_era.get_prompt("ask", {"topic": "moss"})).messages[0].content)
            assert (await of_era.call_tool("divide", {"a": 1, "b": 2})).structured_content == {"result": 0.5}
            failed = await of_era.call_tool("divide", {"a": 1, "b": 0})
            assert failed.is_error  # an answer, not an exception
            with pytest.raises(holdfast.Rejected):
                await of_era.read_resource("nowhere://x")


@pytest.mark.promise("run.callbacks")
async def test_elicitation_sampling_and_roots_in_both_eras() -> None:
    async def elicit(params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "moss"})

    async with FaultServer(answers="sse") as http:
        server = at(http)
        async with holdfast.run(callbacks=Callbacks(elicit=elicit, roots=["file:///a"])):
            asked = {"params": {"message": "name?", "requestedSchema": {"type": "object", "properties": {}}}}
            assert "moss" in said(await server.call_tool("ask", asked))
            assert "file:///a" in said(await server.call_tool("ask", {"method": "roots/list"}))
            assert "-32601" in said(await server.call_tool("ask", {"method": "sampling/createMessage"}))
    initialized = next(request.message for request in http.requests if request.method == "initialize")
    assert initialized is not None
    assert set(initialized["params"]["capabilities"]) == {"elicitation", "roots"}

    app = MCPServer("asks")

    @app.tool()
    async def name(answer: str = "", context: Any = None) -> str:
        return "unused"

    rounds: list[dict[str, Any]] = []

    class RequestContext:
        """A 2026 server's input round, as the wire has it."""

        sharers = ()

        async def request(self, method: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
            rounds.append(params)
            if "inputResponses" not in params:
                question = {"method": "elicitation/create", "params": asked["params"]}
                return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "sealed"}
            text = str(params["inputResponses"]["q"]["content"])
            return {"resultType": "complete", "content": [{"type": "text", "text": text}]}

    from holdfast.client import calls

    server = Server("asks", app=app, callbacks=Callbacks(elicit=elicit))
    result = await calls._rounds(server, RequestContext(), "tools/call", {"name": "x"})  # type: ignore[arg-type]
    assert "moss" in result["content"][0]["text"]
    assert rounds[1]["requestState"] == "sealed"
    endless = RequestContext()
    endless.request = lambda *_, **__: asyncio.sleep(0, {"resultType": "input_required", "requestState": "x"})  # type: ignore[method-assign]
    with pytest.raises(holdfast.LimitReached):
        await calls._rounds(server, endless, "tools/call", {"name": "x"})  # type: ignore[arg-type]


@pytest.mark.promise("run.annotations")
async def test_a_tool_that_says_it_is_harmless_is_replayed_once_it_was_listed() -> None:
    effects: list[str] = []
    app = MCPServer("app")

    @app.tool(annotations=types.ToolAnnotations(idempotent_hint=True))
    def note(text: str) -> str:
        effects.append(text)
        return text

    server = Server("app", app=app, limits=FASTER)
    async with holdfast.run() as run:
        await server.list_tools()
        link = await run.link(server)
        seen: list[Any] = []
        real = link.request

        async def spy(method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            seen.append(kwargs.get("safe"))
            return await real(method, *args, **kwargs)

        link.request = spy  # type: ignore[method-assign]
        await server.call_tool("note", {"text": "a"})
        await server.call_tool("note", {"text": "b"}, idempotent=False)
        assert seen == [True, False]


@pytest.mark.promise("run.typed")
async def test_a_tool_that_wants_parameters_in_headers_is_listed_once_and_called_again() -> None:
    async with FaultServer(era="2026") as http:
        server = at(http)
        async with holdfast.run():
            await server.ping()
            mismatch = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"Mcp-Param-Region is missing"}}'
            http.plan(Fault.STATUS, method="tools/call", status=400, body=mismatch)
            before = len(http.requests)
            assert said(await server.call_tool("echo", {"text": "x"})) == "x"
            assert [request.method for request in http.requests[before:]] == ["tools/call", "tools/list", "tools/call"]
            http.plan(Fault.STATUS, method="tools/call", status=400, body=mismatch, times=2)
            with pytest.raises(holdfast.ErrorAnswer):
                await server.call_tool("echo", {"text": "x"})


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
        with pytest.raises(holdfast.Ended):
            async with holdfast.run("talk-7", store=store):
                pass


@pytest.mark.promise("run.durable")
async def test_whoever_continues_is_told_when_the_server_had_forgotten() -> None:
    told: list[holdfast.Replaced] = []
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
            with pytest.raises(holdfast.PoolFull, match="2 of 2 links to 'it' are leased"):
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
    clock = holdfast.ManualClock()
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


@pytest.mark.promise("run.bad-input")
async def test_bad_declarations_and_misuse_are_told() -> None:
    for wrong in (
        {"name": "x"},
        {"name": "x", "url": "http://h/", "command": "y"},
        {"name": "", "url": "http://h/"},
        {"name": "a b", "url": "http://h/"},
        {"name": "x", "url": "nonsense"},
        {"name": "x", "url": "http://h/", "reuse": "always"},
        {"name": "x", "url": "http://h/", "args": ["y"]},
        {"name": "x", "command": "y", "headers": {"a": "b"}},
        {"name": "x", "command": "y", "args": "--flag"},
    ):
        with pytest.raises(holdfast.ConfigError):
            Server(**wrong)  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="needs an id"):
        async with holdfast.open_store("memory:") as store:
            holdfast.run(store=store)
    async with FaultServer() as http:
        server = at(http)
        assert server == at(http)
        assert hash(server) == hash(at(http))
        assert server != at(http, "other")
        async with holdfast.run():
            await server.call_tool("echo")
            with pytest.raises(holdfast.ConfigError, match="two different servers"):
                await at(http, timeout=5).call_tool("echo")
            with pytest.raises(holdfast.ConfigError, match="disabled"):
                await at(http, "off", disabled=True).call_tool("echo")
            with pytest.raises(holdfast.UsageError):
                await server.call_tool("echo", [1])  # type: ignore[arg-type]
        scope = holdfast.run()
        async with scope:
            pass
        with pytest.raises(holdfast.UsageError, match="entered already"):
            await scope.__aenter__()
        await scope.__aexit__(None, None, None)  # closed twice is fine
        with pytest.raises(holdfast.UsageError):
            await server.session()
