"""What a server says to us: requests, notifications, progress, and what is malformed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast
from holdfast.core.clock import SYSTEM
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.inbound import ANSWERS_BYTES, Inbound
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation, Message, Reply
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import Notifications, link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.reverse")
@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
async def test_a_server_may_ask_in_the_middle_of_a_call(method: str) -> None:
    asked: list[tuple[str, Any]] = []

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        asked.append((method, params))
        return {"said": "yes"}

    capabilities = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}
    async with (
        FaultServer(answers="sse") as server,
        link_to(server.url, on_request=answer, capabilities=capabilities) as link,
    ):
        results = await asyncio.gather(
            *(link.request("tools/call", tool("ask", method=method, params={"n": n})) for n in range(5))
        )
        assert {text_of(result) for result in results} == {"{'said': 'yes'}"}
        assert sorted(params["n"] for _, params in asked) == [0, 1, 2, 3, 4]
        initialized = next(r.message for r in server.requests if r.method == "initialize")
        assert initialized is not None
        assert initialized["params"]["capabilities"] == capabilities


@pytest.mark.promise("link.reverse")
async def test_a_handler_that_fails_or_is_absent_answers_with_an_error_and_the_call_goes_on() -> None:
    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        if params["how"] == "declined":
            raise holdfast.errors.ErrorAnswer("no", message="not today", code=-32042, data={"why": 1})
        raise RuntimeError("a bug of ours")

    async with FaultServer(answers="sse") as server, link_to(server.url, on_request=answer) as link:
        declined = text_of(await link.request("tools/call", tool("ask", params={"how": "declined"})))
        assert declined == "{'code': -32042, 'message': 'not today', 'data': {'why': 1}}"
        failed = text_of(await link.request("tools/call", tool("ask", params={"how": "bug"})))
        assert "-32603" in failed
        assert "a bug of ours" not in failed
        link.inbound.handle(None, None)
        assert "-32601" in text_of(await link.request("tools/call", tool("ask", params={})))
        assert text_of(await link.request("tools/call", tool("ask", method="ping"))) == "{}"


@pytest.mark.promise("link.reverse")
async def test_a_server_may_ask_on_its_own_stream_and_take_it_back() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with FaultServer() as server, link_to(server.url, on_request=answer) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        server.push({"jsonrpc": "2.0", "id": 7, "method": "roots/list"})
        await asyncio.wait_for(begun.wait(), patience(5))
        server.push({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await asyncio.wait_for(ended.wait(), patience(5))


@pytest.mark.promise("link.progress")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_progress_reaches_its_own_call_in_order(era: Any) -> None:
    async with FaultServer(era=era, answers="sse") as server, link_to(server.url) as link:
        taken: dict[int, list[float]] = {n: [] for n in range(5)}

        async def call(n: int) -> None:
            async def progress(done: float, total: float | None, message: str | None) -> None:
                taken[n].append(done)
                assert total == n + 1

            await link.request("tools/call", tool("progress", steps=n + 1), on_progress=progress)

        await asyncio.gather(*(call(n) for n in range(5)))
        assert taken == {n: [float(step + 1) for step in range(n + 1)] for n in range(5)}


@pytest.mark.promise("link.progress")
async def test_a_progress_callback_that_raises_harms_no_call() -> None:
    async def progress(done: float, total: float | None, message: str | None) -> None:
        raise RuntimeError("a bug of the caller")

    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        await link.request("tools/call", tool("progress", steps=2), on_progress=progress)
        assert link.statistics().strays == 2


@pytest.mark.promise("link.notifications")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_notifications_on_an_answer_stream_are_handed_on(era: Any) -> None:
    handlers = Notifications()
    async with FaultServer(era=era, answers="sse") as server, link_to(server.url, on_notification=handlers) as link:
        await link.request("tools/call", tool("log", text="hello"))
        assert handlers.heard == [("notifications/message", {"level": "info", "data": "hello"})]


@pytest.mark.promise("link.reverse")
async def test_a_handlers_result_that_is_not_json_is_answered() -> None:
    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        return {"x": object()}

    async with FaultServer(answers="sse") as server, link_to(server.url, on_request=answer) as link:
        assert "-32603" in text_of(await link.request("tools/call", tool("ask"), timeout=3))


@pytest.mark.promise("stdio.flood")
async def test_requests_that_wait_for_answers_are_bounded_in_bytes_whatever_ids_they_have() -> None:
    under_way, answered, go_on = 0, 0, asyncio.Event()

    async def ask(method: str, params: Any, id: str | int) -> dict[str, Any]:
        nonlocal under_way
        under_way += 1
        await go_on.wait()
        return {"roots": []}

    class Telling:
        async def deliver(self, generation: Generation, message: Message, seconds: float) -> Reply:
            nonlocal answered
            answered += 1
            return Reply()

    generation = cast("Generation", SimpleNamespace(wire=Telling()))
    inbound = Inbound(BackgroundTasks(lambda what, error: None), LinkReporter("it", None, SYSTEM), 1.0)
    inbound.handle(ask, None)
    receive = inbound.receiver(generation)
    asked = {"jsonrpc": "2.0", "id": "same", "method": "roots/list", "params": {"text": "x" * 900_000}}
    reading = [asyncio.ensure_future(receive(asked)) for _ in range(200)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert under_way == ANSWERS_BYTES // 900_000
    go_on.set()
    await asyncio.gather(*reading)
    await until(lambda: answered == 200)
