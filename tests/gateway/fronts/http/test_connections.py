"""What clients may take of time and connections: who sends slowly, reads nothing or only sits there is hung up on."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.gateway.config.file import load_config
from holdfast.gateway.config.settings import ClientLimits
from holdfast.gateway.fronts.http import bodies
from holdfast.gateway.fronts.http.connections import most_connections, most_of_one_caller
from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_http
from tests.gateway.raw_wire import HOSTS, Wire, ping, post, wire

EVENTS = b"accept: text/event-stream\r\n"


async def listening(client: RawClient, line: Wire) -> bytes:
    """Open the client's own stream on this connection; returns the answer's head."""
    session = f"mcp-session-id: {client.session}\r\n"
    token = f"authorization: Bearer {client.token}\r\n" if client.token is not None else ""
    line.send(b"GET /mcp HTTP/1.1\r\n" + HOSTS + EVENTS + (session + token).encode() + b"\r\n")
    async with asyncio.timeout(patience(20)):
        return await line.reader.readuntil(b"\r\n\r\n")


@pytest.mark.promise("gateway.connections")
@pytest.mark.parametrize(
    ("begin", "drip", "status"),
    [
        (b"", b"", b""),
        (b"POST /mcp HTTP/1.1\r\nx: ", b"y", b"408"),
        (b"", b"\r\n", b"408"),
        (post(b"", length=1000), b" ", b"408"),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n", b" ", b"200"),
    ],
    ids=["silent", "head", "line ends", "body", "body behind its answer"],
)
async def test_who_sends_slowly_is_hung_up_on(tmp_path: Path, begin: bytes, drip: bytes, status: bytes) -> None:
    limits = {"head": 0.3, "body": 0.3}
    async with gateway(tmp_path, {}, clients=limits) as program, RawClient(program.url) as client:
        await client.initialize()
        async with wire(program) as patient, wire(program) as line:
            assert b" 200 " in await listening(client, patient)
            line.send(begin)
            reading = asyncio.create_task(line.rest())
            while not reading.done():
                line.send(drip)
                await asyncio.wait((reading,), timeout=0.05)
            assert (await reading)[9:12] == status
            assert not patient.reader.at_eof()  # whoever listens does not send


@pytest.mark.promise("gateway.connections")
@pytest.mark.parametrize("limits", [{"write": 0.4}, {"total_bytes": 1024 * 1024}])
async def test_who_does_not_read_is_hung_up_on(tmp_path: Path, limits: dict[str, Any]) -> None:
    file = tmp_path / "large.json"
    async with FaultServer() as http:
        document = {
            "listen": {"port": 0, "max_body": 16_000_000},
            "store": "memory:",
            "clients": limits,
            "mcpServers": {"counter": {"url": http.url}},
        }
        file.write_text(json.dumps(document))
        async with Program(load_config(file)).running() as program, RawClient(program.url) as client:
            await client.initialize()
            params = {"name": "counter__echo", "arguments": {"text": "x" * 8_000_000}}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            async with wire(program) as line:
                line.send(post(body, f"mcp-session-id: {client.session}\r\n".encode()))
                async with asyncio.timeout(patience(20)):
                    assert b" 200 " in await line.reader.readuntil(b"\r\n\r\n")
                await until(lambda: len(program.connections) == 1, seconds=20)  # the other client's
            assert (await client.call("counter__echo", text="still here")).text == "still here"


@pytest.mark.promise("gateway.connections")
async def test_what_one_caller_leaves_unread_is_a_part_of_what_all_may(tmp_path: Path) -> None:
    tokens = {name: new_token() for name in ("alice", "bob")}
    settings: dict[str, Any] = {
        "auth": {"tokens": [{"hash": hash, "principal": name} for name, (_, hash) in tokens.items()]},
        "clients": {"total_bytes": 40_000_000},
        "listen": {"port": 0},
    }
    result = json.dumps({"content": [{"type": "text", "text": "x" * 7_000_000}]})
    async with raw_http({"era": "2025", "result": result}) as url, AsyncExitStack() as stack:
        file = tmp_path / "share.json"
        servers = {"b": {"url": url, "era": "2025"}}
        file.write_text(json.dumps({**settings, "store": "memory:", "mcpServers": servers}))
        program = await stack.enter_async_context(Program(load_config(file)).running())
        for name, number in (("bob", 1), ("alice", 3)):
            client = await stack.enter_async_context(RawClient(program.url, tokens[name][0]))
            await client.initialize()
            for id in range(number):
                line = await stack.enter_async_context(wire(program))
                call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "b__t"}}
                head = f"authorization: Bearer {client.token}\r\nmcp-session-id: {client.session}\r\n"
                line.send(post(json.dumps(call).encode(), head.encode()))

        def unread(name: str) -> int:
            return sum(
                each.owner == name and each.transport.get_write_buffer_size() > 0 for each in program.connections
            )

        await until(lambda: (unread("alice"), unread("bob")) == (3, 1), seconds=20)
        await until(lambda: unread("alice") < 3, seconds=20)  # before clients.write, and in spite of the room left
        assert unread("alice") >= 1
        assert unread("bob") == 1


@pytest.mark.promise("gateway.connections")
async def test_idle_sockets_give_way_and_a_gateway_full_of_streams_says_so(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}, clients={"connections": 4}) as program, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(wire(program)) for _ in range(4)]
        await until(lambda: len(program.connections) == 4)
        async with RawClient(program.url) as client:
            await client.initialize()
            assert await idle[0].rest() == b""
            assert len(program.connections) == 4
            for _ in range(4):
                line = await stack.enter_async_context(wire(program))
                line.send(post(b"{", length=100))
            assert program.front is not None
            front = program.front
            await until(lambda: len(front.open) == 4)
            late = await stack.enter_async_context(wire(program))
            assert (await late.rest())[9:12] == b"503"


@pytest.mark.promise("gateway.connections")
async def test_large_requests_wait_for_each_other_and_others_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "ALL", 400_000)
    monkeypatch.setattr(bodies, "OF_ONE", 300_000)
    tokens = {name: new_token() for name in ("alice", "bob")}
    auth = {"tokens": [{"hash": hash, "principal": name} for name, (_, hash) in tokens.items()]}
    async with gateway(tmp_path, {}, auth=auth) as program, AsyncExitStack() as stack:
        held = program.front.bodies if program.front is not None else None
        assert held is not None
        alice = await stack.enter_async_context(RawClient(program.url, tokens["alice"][0]))
        bob = await stack.enter_async_context(RawClient(program.url, tokens["bob"][0]))
        await alice.initialize()
        await bob.initialize()

        def token(client: RawClient) -> bytes:
            return f"authorization: Bearer {client.token}\r\nmcp-session-id: {client.session}\r\n".encode()

        many = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":[' + ",".join(["[]"] * 30_000) + "]}}"
        assert (await alice.send(many.encode())).status == 200  # one alone may be as large as it likes
        assert held.used == 0
        begun = await stack.enter_async_context(wire(program))
        begun.send(post(b" " * 200_000, token(alice), length=300_000))
        await until(lambda: held.used >= 200_000)
        asked = ((alice, 150_000, 503), (bob, 150_000, 200), (bob, 250_000, 503), (alice, 9_000, 200))
        for client, size, status in asked:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x" * size}}).encode()
            assert (await client.send(body)).status == status, (client.token, size)
        assert (await bob.send(many.encode())).status == 503  # as objects it takes two megabytes
        begun.writer.close()
        await until(lambda: held.used == 0)
        assert (await bob.send(many.encode())).status == 200


@pytest.mark.promise("gateway.connections")
async def test_one_caller_leaves_others_their_share(tmp_path: Path) -> None:
    tokens = {name: new_token() for name in ("alice", "bob")}
    auth = {"tokens": [{"hash": hash, "principal": name} for name, (_, hash) in tokens.items()]}
    async with gateway(tmp_path, {}, clients={"per_principal": 2}, auth=auth) as program, AsyncExitStack() as stack:
        alice = await stack.enter_async_context(RawClient(program.url, tokens["alice"][0]))
        bob = await stack.enter_async_context(RawClient(program.url, tokens["bob"][0]))
        await alice.initialize()
        first, second = [await stack.enter_async_context(wire(program)) for _ in range(2)]
        token = f"authorization: Bearer {alice.token}\r\n".encode()
        for line in (first, second):  # a call whose body does not come is open, too
            line.send(post(b"{", token, length=100))
        assert program.front is not None
        front = program.front
        await until(lambda: len(front.open) == 2)
        refused = await alice.ask("ping")
        assert (refused.status, "clients.per_principal" in refused.error["message"]) == (503, True)
        assert (await bob.initialize()).status == 200
        second.writer.close()
        await until(lambda: len(front.open) == 1)
        assert (await alice.ask("ping")).result == {}


@pytest.mark.promise("gateway.connections")
async def test_a_peer_that_is_gone_without_a_word_is_asked_for(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}) as program, wire(program) as line:
        line.send(ping("none", "x"))
        await line.answer()
        (connection,) = program.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


@pytest.mark.promise("gateway.connections")
def test_connections_leave_files_for_everything_else() -> None:
    limits = ClientLimits()
    assert most_connections(limits, lambda: 256) == 192
    assert most_connections(limits, lambda: None) == limits.connections
    assert most_connections(limits, lambda: 10**6) == limits.connections
    assert 1 <= most_of_one_caller(limits) <= most_connections(limits) // 2
