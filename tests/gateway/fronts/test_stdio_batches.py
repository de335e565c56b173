"""Batches of 2025-03-26 over stdio: several messages in one line, and their answers in one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.fronts.batches import MESSAGES
from tests.deadlines import until
from tests.gateway.fronts.test_stdio import HELLO, META_2026, Client, served
from tests.gateway.parking.asking_backend import asking_backend
from tests.gateway.scripted_backend import Scripted

OLD = {**HELLO, "protocolVersion": "2025-03-26"}
PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}


def call(id: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "s__t", "arguments": {}, **params}}


def cancel(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@asynccontextmanager
async def scripted(
    folder: Path, backend: Scripted, hello: dict[str, Any] = OLD, **clients: Any
) -> AsyncGenerator[Client]:
    async with backend.serving(), served(folder, {"s": backend.entry}, hello=hello, **clients) as client:
        await until(lambda: backend.count("tools/list"))
        yield client


def arrays(client: Client) -> list[list[dict[str, Any]]]:
    return [each for each in client.read() if isinstance(each, list)]


async def answers(client: Client, count: int) -> list[dict[str, Any]]:
    await until(lambda: sum(map(len, arrays(client))) >= count)
    return [each for array in arrays(client) for each in array]


@pytest.mark.promise("gateway.batches")
async def test_a_line_with_an_array_is_answered_by_one(tmp_path: Path) -> None:
    async with scripted(tmp_path, Scripted()) as client:
        odd: list[Any] = [7, [PING], {"jsonrpc": "2.0", "id": "x", "method": 5}]
        start = {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": OLD}
        modern = call("m", _meta=META_2026)
        note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        client.write([call("a"), note, start, modern, PING, *odd], PING)
        came = await answers(client, 7)
        assert len(arrays(client)) == 1
        good = {each["id"]: each["result"] for each in came if "result" in each}
        assert good == {"a": {"content": []}, "p": {}}
        failed = sorted(str((each["id"], each["error"]["code"])) for each in came if "error" in each)
        assert failed == ["('i', -32600)", "('m', -32600)", "('x', -32600)", "(None, -32600)", "(None, -32600)"]
        client.write([note], [{"jsonrpc": "2.0", "id": "not-asked", "result": {}}], {**PING, "id": "last"})
        await until(lambda: client.has("last"))
        assert len(arrays(client)) == 1  # nothing answers what is no request


@pytest.mark.promise("gateway.batches")
async def test_a_script_that_sends_all_its_lines_at_once_has_its_batch(tmp_path: Path) -> None:
    async with Scripted().serving() as backend, served(tmp_path, {"s": backend.entry}, hello=None) as client:
        client.write({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OLD}, [PING, call("a")])
        assert {each["id"] for each in await answers(client, 2)} == {"p", "a"}


@pytest.mark.promise("gateway.batches")
async def test_refused_batches_get_one_error_and_nothing_of_them_is_executed(tmp_path: Path) -> None:
    backend = Scripted()
    async with scripted(tmp_path, backend) as client:
        client.write([], [call(n) for n in range(MESSAGES + 1)])
        await until(lambda: len(client.read()) >= 3)
        assert [(each["id"], each["error"]["code"]) for each in client.read()[1:]] == [(None, -32600)] * 2
    async with scripted(tmp_path, other := Scripted(), HELLO) as client:
        client.write([call(1)])
        await until(lambda: len(client.read()) >= 2)
        assert "2025-03-26 only" in client.read()[1]["error"]["message"]
    async with Scripted().serving() as http, served(tmp_path, {"s": http.entry}, hello=None) as client:
        client.write([call(1)])
        await until(lambda: client.read())
        assert client.read()[0]["error"]["code"] == -32600
    assert backend.count("tools/call") + other.count("tools/call") == 0


@pytest.mark.promise("gateway.batches")
async def test_a_call_of_a_batch_is_cancelled_and_the_others_are_answered(tmp_path: Path) -> None:
    backend, gate = Scripted(), asyncio.Event()
    backend.gates["tools/call"] = gate
    async with scripted(tmp_path, backend) as client:
        client.write([call("a"), call("b"), call("b"), cancel("c")], cancel("a"))
        await until(lambda: backend.answered + backend.open_calls)
        gate.set()
        came = await answers(client, 3)
        assert len(arrays(client)) == 1
        by_id = {each["id"]: each for each in came}
        assert by_id["a"]["error"]["code"] == -32800
        assert by_id["b"]["result"] == {"content": []}
        assert by_id[None]["error"]["code"] == -32600  # the second of one id


@pytest.mark.promise("gateway.batches")
async def test_answers_that_are_large_together_come_in_several_lines(tmp_path: Path) -> None:
    large = Scripted(tools__call={"content": [{"type": "text", "text": "x" * 30_000}]})
    async with scripted(tmp_path, large, stream_bytes=100_000) as client:
        client.write([call(n) for n in range(20)])
        came = await answers(client, 20)
        assert sorted(each["id"] for each in came) == list(range(20))
        assert all("result" in each for each in came)
        assert all(len(array) <= 4 for array in arrays(client))


@pytest.mark.promise("gateway.batches")
async def test_questions_of_a_batch_are_answered_by_a_batch(tmp_path: Path) -> None:
    form = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    hello = {**OLD, "capabilities": {"elicitation": {}}}
    async with asking_backend() as backend, served(tmp_path, {"s": {"url": backend.url}}, hello=hello) as client:
        client.write([call(n, name="s__ask", arguments={"rounds": [[form]]}) for n in ("a", "b")])

        def asked() -> list[dict[str, Any]]:
            return [each for each in client.read() if isinstance(each, dict) and "method" in each]

        await until(lambda: len(asked()) == 2)
        client.write([{"jsonrpc": "2.0", "id": each["id"], "result": {"action": "decline"}} for each in asked()])
        assert {each["id"] for each in await answers(client, 2)} == {"a", "b"}


@pytest.mark.promise("gateway.batches")
async def test_a_batch_under_way_when_its_client_leaves_is_answered_whole(tmp_path: Path) -> None:
    backend, gate = Scripted(), asyncio.Event()
    backend.gates["tools/call"] = gate
    async with scripted(tmp_path, backend) as client:
        client.write([call("a"), PING, call("b")])
        await until(lambda: backend.open_calls == 2)
        client.stdin.feed_eof()
        gate.set()
        assert {each["id"] for each in await answers(client, 3)} == {"a", "b", "p"}
        await client.front
