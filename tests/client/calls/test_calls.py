"""Calls as an agent's author makes them: what rides along, how long they may take, what is known of the tools."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as types
import pytest
from mcp.server.mcpserver import Context, MCPServer

import holdfast
from holdfast import Callbacks, Server
from holdfast.links.wires.base import ANSWER_SECONDS
from holdfast.testing import FaultServer
from tests.client.servers import FASTER, at, said
from tests.client.test_callbacks import asking
from tests.deadlines import patience

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.meta")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_meta_rides_on_the_call_beside_what_is_ours(era: Any) -> None:
    async with FaultServer(era=era) as http:
        async with holdfast.run():
            await at(http).call_tool("echo", {"text": "x"}, meta={"example.com/trace": {"id": 7}}, silence=5)
            for wrong in (["x"], {"progressToken": 1}):
                with pytest.raises(holdfast.UsageError):
                    await at(http).call_tool("echo", meta=wrong)  # type: ignore[arg-type]
        [called] = [request.message for request in http.requests if request.method == "tools/call"]
    assert called is not None
    meta = called["params"]["_meta"]
    assert meta["example.com/trace"] == {"id": 7}
    assert "progressToken" in meta


@pytest.mark.promise("run.silence")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_progress_extends_silence_and_not_the_timeout(era: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, real, ahead = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)  # hours pass in this test, and nobody waits
    going, told, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
    app = MCPServer("slow")

    @app.tool()
    async def work(context: Context[Any, Any], steps: int) -> str:
        for step in range(steps):
            begun.set()
            await going.wait()
            going.clear()
            await context.report_progress(step + 1, steps)
            told.set()
        begun.set()
        await going.wait()
        return "done"

    async def pass_time(seconds: float) -> None:
        nonlocal ahead
        await asyncio.wait_for(begun.wait(), patience(10))
        ahead += seconds
        begun.clear()

    server = Server("slow", app=app, era=era, limits=FASTER, silence=1000)
    async with holdfast.run():
        for spans in ({}, {"silence": 900, "timeout": 10_000}):
            call = asyncio.ensure_future(server.call_tool("work", {"steps": 3}, **spans))
            for _ in range(3):
                await pass_time(600)  # 1,800 in all
                told.clear()
                going.set()
                await asyncio.wait_for(told.wait(), patience(10))
            await asyncio.wait_for(begun.wait(), patience(10))
            going.set()
            assert said(await call) == "done"
            going.clear()
        for spans in ({}, {"silence": 30_000, "timeout": 1001}):
            begun.clear()
            call = asyncio.ensure_future(server.call_tool("work", {"steps": 0}, **spans))
            await pass_time(1001)
            with pytest.raises(holdfast.errors.AnswerTimeout):
                await call


@pytest.mark.promise("run.silence")
@pytest.mark.parametrize("how", ["object", "stream"])
async def test_a_server_may_be_silent_while_it_waits_for_our_answer(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, real, ahead = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def elicit(params: Any) -> types.ElicitResult:
        asked.set()
        await answer.wait()
        return types.ElicitResult(action="accept", content={"row": 4})

    async with AsyncExitStack() as stack:
        if how == "object":
            server, call = Server("it", app=asking(), era="2025", limits=FASTER), ("book", {})
        else:
            http = await stack.enter_async_context(FaultServer(answers="sse"))
            question = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
            server, call = at(http), ("ask", {"params": question})
        await stack.enter_async_context(holdfast.run(callbacks=Callbacks(elicit=elicit)))
        await server.list_tools()

        async def after(seconds: float, **spans: float) -> "asyncio.Task[types.CallToolResult]":
            nonlocal ahead
            asked.clear()
            answer.clear()
            calling = asyncio.ensure_future(server.call_tool(*call, **spans))
            await asyncio.wait_for(asked.wait(), patience(10))
            ahead += seconds
            for _ in range(20):  # rounds of the loop, in which a limit that has passed would strike
                await asyncio.sleep(0)
            answer.set()
            return calling

        assert "4" in said(await (await after(900, silence=300)))
        for seconds, spans in ((900, {"silence": 300, "timeout": 800}), (ANSWER_SECONDS + 301, {"silence": 300})):
            with pytest.raises(holdfast.errors.AnswerTimeout):
                await (await after(seconds, **spans))


@pytest.mark.promise("run.silence")
async def test_the_time_that_a_person_takes_in_a_2026_input_round_counts_toward_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, real, ahead = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    asked = asyncio.Event()

    async def elicit(params: Any) -> types.ElicitResult:
        nonlocal ahead
        asked.set()
        ahead += 1000
        return await asyncio.Event().wait()  # type: ignore[return-value]

    server = Server("it", app=asking(), era="2026", limits=FASTER, callbacks=Callbacks(elicit=elicit))
    async with holdfast.run():
        with pytest.raises(holdfast.errors.AnswerTimeout, match="was not given within the call's timeout"):
            await asyncio.wait_for(server.call_tool("book", timeout=900), patience(1010))
        assert asked.is_set()


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
