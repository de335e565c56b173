"""Log messages of a server whose link several callers share: each gets its own part."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Scripted

LEVEL = "io.modelcontextprotocol/logLevel"
SAID = ("debug", "info", "warning", "error")
MESSAGE = "notifications/message"


def talking(era: Era = "2025") -> Scripted:
    """A server that says something of each level in every call."""
    server = Scripted(era, logging__setLevel={})
    server.capabilities["logging"] = {}
    server.before = [{"method": MESSAGE, "params": {"level": level, "data": level}} for level in SAID]
    return server


@asynccontextmanager
async def shared(
    folder: Path, server: Scripted, *levels: str | None, reuse: str = "shared"
) -> AsyncGenerator[tuple[Program, list[RawClient]]]:
    """A 2025 client for each level that is set; None sets none."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server.serving())
        entry = {**server.entry, "reuse": reuse}
        program = await stack.enter_async_context(gateway(folder, {"s": entry}, sessions={"steer": False}))
        await until(lambda: program.gateway is not None and program.gateway.table.tools)
        clients: list[RawClient] = []
        for level in levels:
            client = await stack.enter_async_context(RawClient(program.url))
            await client.initialize()
            if level is not None:
                assert (await client.ask("logging/setLevel", {"level": level})).result == {}
            clients.append(client)
        yield program, clients


def heard(answer: Answer) -> list[str]:
    assert "content" in answer.result
    return [each["params"]["level"] for each in answer.messages if each.get("method") == MESSAGE]


def asked_for(server: Scripted) -> list[str]:
    return [params["level"] for params in server.params_of("logging/setLevel")]


@pytest.mark.promise("gateway.log-levels")
async def test_each_caller_of_a_shared_server_hears_its_own_level(tmp_path: Path) -> None:
    server = talking()
    async with shared(tmp_path, server, "error", "debug", "warning", None) as (program, clients):
        for _ in range(2):
            answers = await asyncio.gather(*(client.call("s__t") for client in clients[:3]))
            assert [heard(answer) for answer in answers] == [["error"], [*SAID], ["warning", "error"]]
        assert heard(await clients[3].call("s__t")) == ["info", "warning", "error"]
        levels = asked_for(server)
        assert levels[-1] == "debug"
        assert levels == sorted(levels, key=("error", "warning", "debug").index)  # never raised for one of them
        async with RawClient(program.url) as modern:
            params = {"name": "s__t", "arguments": {}}
            assert heard(await modern.ask_2026("tools/call", params)) == []
            wanted = {**params, "_meta": {LEVEL: "warning"}}
            assert heard(await modern.ask_2026("tools/call", wanted)) == ["warning", "error"]
        assert asked_for(server) == levels


@pytest.mark.promise("gateway.log-levels")
async def test_a_2026_call_sets_the_level_of_a_shared_server(tmp_path: Path) -> None:
    server = talking()
    async with shared(tmp_path, server, None) as (_, [client]):
        assert heard(await client.call("s__t")) == [*SAID]  # nobody has set anything: what the server sends
        assert asked_for(server) == []
        wanted = {"name": "s__t", "_meta": {LEVEL: "notice"}}
        assert heard(await client_2026(client).ask_2026("tools/call", wanted)) == ["warning", "error"]
        assert asked_for(server) == ["notice"]


def client_2026(client: RawClient) -> RawClient:
    client.session = None
    return client


@pytest.mark.promise("gateway.log-levels")
async def test_messages_on_the_servers_own_stream_reach_the_only_call_under_way(tmp_path: Path) -> None:
    server = talking()
    server.before = []
    async with shared(tmp_path, server, "warning", "debug") as (_, clients):
        await until(lambda: server.listening)
        gate = server.gates["tools/call"] = asyncio.Event()

        def say(data: str) -> None:
            for level in SAID:
                server.push(MESSAGE, {"level": level, "data": data})

        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "s__t"}}
        async with clients[0].stream("POST", body) as events:
            await until(lambda: server.open_calls == 1)
            say("mine")
            assert [(await events.next(20))["params"]["level"] for _ in range(2)] == ["warning", "error"]
            other = asyncio.create_task(clients[1].call("s__t"))
            await until(lambda: server.open_calls == 2)
            say("whose?")  # nobody knows, and another caller's is not to be read
            server.push("notifications/resources/list_changed")
            await until(lambda: server.count("resources/list") >= 2)
            gate.set()
            assert "result" in await events.next(20)
            assert heard(await other) == []


@pytest.mark.promise("gateway.log-levels")
async def test_a_call_that_is_cancelled_while_its_level_is_set_leaves_it_to_the_next(tmp_path: Path) -> None:
    server = talking()
    async with shared(tmp_path, server, "debug", "info") as (_, clients):
        gate = server.gates["logging/setLevel"] = asyncio.Event()
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "s__t"}}
        call = asyncio.create_task(clients[0].send(body))
        await until(lambda: server.count("logging/setLevel") == 1)
        other = asyncio.create_task(clients[1].call("s__t"))
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        await clients[0].send(cancel)
        assert (await call).error["code"] == -32800
        gate.set()
        assert heard(await other) == ["info", "warning", "error"]
        assert asked_for(server) == ["debug", "info"]
        assert heard(await clients[0].call("s__t")) == [*SAID]


@pytest.mark.promise("gateway.log-levels")
async def test_each_request_to_a_shared_2026_server_names_the_level_of_its_client(tmp_path: Path) -> None:
    server = talking("2026")
    server.results["tools/call"] = {"content": [], "resultType": "complete"}
    async with shared(tmp_path, server, "error", "debug", None) as (_, clients):
        for client in clients:
            await client.call("s__t")
        assert [params["_meta"].get(LEVEL) for params in server.params_of("tools/call")] == ["error", "debug", None]
        assert heard(await clients[0].call("s__t")) == ["error"]
        assert asked_for(server) == []
