"""Batches of 2025-03-26: each message on its own, all answers in one array, within bounds."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.gateway.fronts.batches import MESSAGES
from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import RawClient, messages_in
from tests.gateway.gateways import gateway
from tests.gateway.parking.asking_backend import asking_backend
from tests.gateway.scripted_backend import Scripted

OLD = "2025-03-26"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def call(id: Any, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "s__t", "arguments": arguments}}


@asynccontextmanager
async def session(
    folder: Path, backend: Scripted, version: str = OLD, **settings: Any
) -> AsyncGenerator[tuple[Program, RawClient]]:
    async with backend.serving():
        async with gateway(folder, {"s": backend.entry}, **settings) as program, RawClient(program.url) as client:
            await client.initialize(version=version)
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            yield program, client


@pytest.mark.promise("gateway.batches")
async def test_a_batch_is_answered_as_a_batch(tmp_path: Path) -> None:
    echo = Scripted(tools__call=lambda params: {"content": [{"type": "text", "text": params["arguments"]["n"]}]})
    async with session(tmp_path, echo) as (_, client):
        note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        odd: list[Any] = [7, [PING], {"jsonrpc": "2.0", "id": "x", "method": 5}]
        start = {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": {}}
        unknown = {"jsonrpc": "2.0", "id": "u", "method": "no/such"}
        answer = await client.send([PING, note, call("a", n="A"), call("b", n="B"), start, unknown, PING, *odd])
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        [answers] = answer.messages
        good = {each["id"]: each["result"] for each in answers if "result" in each}  # type: ignore[index]
        assert good[1] == {}
        assert [good[id]["content"][0]["text"] for id in "ab"] == ["A", "B"]
        failed = [(each["id"], each["error"]["code"]) for each in answers if "error" in each]  # type: ignore[index]
        expected = [("i", -32600), ("u", -32601), (None, -32600), (None, -32600), ("x", -32600)]
        assert sorted(failed, key=str) == sorted(expected, key=str)
        for nothing in ([note], [{"jsonrpc": "2.0", "id": "not-asked", "result": {}}]):
            assert (await client.send(nothing)).status == 202


@pytest.mark.promise("gateway.batches")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2024-11-05"])
async def test_other_revisions_have_no_batches(tmp_path: Path, version: str) -> None:
    async with session(tmp_path, Scripted(), version) as (_, client):
        refused = await client.send([PING])
        assert (refused.status, refused.error["code"]) == (400, -32600)
        headers = client.headers(mcp_protocol_version="2026-07-28", mcp_method="ping")
        assert (await client.send([PING], headers=headers)).status == 400


@pytest.mark.promise("gateway.batches")
async def test_a_batch_is_bounded_and_nothing_of_a_refused_one_is_executed(tmp_path: Path) -> None:
    backend = Scripted()
    async with session(tmp_path, backend) as (_, client):
        for batch in ([], [call(n) for n in range(MESSAGES + 1)]):
            refused = await client.send(batch)
            assert (refused.status, refused.error["code"]) == (400, -32600)
        client.session = "nobody-knows-me"
        assert (await client.send([call(1)])).status == 404
        assert backend.count("tools/call") == 0


@pytest.mark.promise("gateway.batches")
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "json-only"])
async def test_answers_that_are_too_large_together_come_one_by_one(tmp_path: Path, streams: bool) -> None:
    large = Scripted(tools__call={"content": [{"type": "text", "text": "x" * 30_000}]})
    async with session(tmp_path, large, clients={"stream_bytes": 100_000}) as (_, client):
        batch = [call(n) for n in range(20)]
        if streams:
            answer = await client.send(batch)
            assert sorted(each["id"] for each in answer.messages) == list(range(20))
            assert all("result" in each for each in answer.messages)
        else:
            answer = await client.send(batch, headers=client.headers(accept="application/json"))
            [answers] = answer.messages
            assert sorted(each["id"] for each in answers) == list(range(20))  # type: ignore[index]
            refused = [each["error"] for each in answers if "error" in each]  # type: ignore[index]
            assert 15 <= len(refused) < 20
            assert all(each["code"] == -32000 and "the call was made" in each["message"] for each in refused)
            assert len(answer.raw) < 150_000


@pytest.mark.promise("gateway.batches")
async def test_a_slow_batch_is_kept_alive_and_a_call_of_it_cancelled(tmp_path: Path) -> None:
    backend, gate = Scripted(), asyncio.Event()
    backend.gates["tools/call"] = gate
    async with session(tmp_path, backend, clients={"keep_alive": 0.05}) as (program, client):
        batch = [call("a"), call("b"), PING]
        async with aiohttp.request("POST", program.url, json=batch, headers=client.headers()) as response:
            came = await response.content.readany()
            assert response.content_type == "text/event-stream"
            await until(lambda: backend.count("tools/call") == 2)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}}
            assert (await client.send([cancel])).status == 202
            await until(lambda: backend.count("notifications/cancelled") == 1)
            gate.set()
            came += await response.read()
        answers = {each["id"]: each for each in messages_in(came, "text/event-stream")}
        assert answers["a"]["error"]["code"] == -32800
        assert "result" in answers["b"]
        assert answers[1]["result"] == {}


@pytest.mark.promise("gateway.batches")
async def test_questions_of_a_batch_are_answered_by_a_batch(tmp_path: Path) -> None:
    form = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    arguments = {"rounds": [[form]]}
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            await client.initialize({"elicitation": {}}, version=OLD)
            calls = [{**call(n), "params": {"name": "asks__ask", "arguments": arguments}} for n in ("a", "b")]
            async with client.stream("POST", calls) as events:  # type: ignore[arg-type]
                asked = [await events.next(20) for _ in calls]
                assert {each["method"] for each in asked} == {"elicitation/create"}
                said = [{"jsonrpc": "2.0", "id": each["id"], "result": {"action": "decline"}} for each in asked]
                assert (await client.send(said)).status == 202
                assert {(await events.next(20))["id"] for _ in calls} == {"a", "b"}
