"""The fault server does what was planned, to the request it was planned for, and counts."""

import asyncio
from json import dumps, loads

import pytest

from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience

pytestmark = pytest.mark.anyio


async def post(port: int, message: object, **headers: str) -> tuple[int, bytes]:
    """One request on a connection of its own: status and the rest; 0 if it was cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = dumps(message).encode()
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join(["POST /mcp HTTP/1.1", "host: x", f"content-length: {len(body)}", *lines])
    writer.write(head.encode() + b"\r\n\r\n" + body)
    try:
        answer = await asyncio.wait_for(reader.read(100_000), patience(2))
    except (ConnectionError, TimeoutError):
        answer = b""
    writer.close()
    return (int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP") else 0), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.promise("testing.faults")
async def test_a_plan_strikes_the_method_and_times_it_names() -> None:
    async with FaultServer() as server:
        server.plan(Fault.CLOSE, method="ping", times=2)
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        status, body = await post(server.port, hello)
        assert status == 200
        assert loads(body)["result"]["protocolVersion"] == "2025-11-25"
        [session] = server.sessions.sessions
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert [(await post(server.port, ping, mcp_session_id=session))[0] for _ in range(3)] == [0, 0, 200]


@pytest.mark.promise("testing.faults")
async def test_effects_are_counted_whether_or_not_the_answer_arrives() -> None:
    async with FaultServer(era="2026") as server:
        meta = {"io.modelcontextprotocol/clientCapabilities": {}}
        params = {"name": "effect", "arguments": {"call": "a"}, "_meta": meta}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        server.plan(Fault.CLOSE, effect=True)
        server.plan(Fault.RESET)
        assert [(await post(server.port, call, **headers))[0] for _ in range(3)] == [0, 0, 200]
        assert server.effects["a"] == 2


@pytest.mark.promise("testing.faults")
async def test_every_fault_is_had_and_can_be_lifted() -> None:
    for fault in Fault:
        async with FaultServer() as server:
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
            server.plan(fault, times=1)
            if fault is not Fault.HANG:
                await post(server.port, hello)
            server.lift()
            assert (await post(server.port, hello))[0] == (400 if fault is Fault.CHANGE_ERA else 200)


@pytest.mark.promise("testing.faults")
async def test_it_can_refuse_and_come_back_on_the_same_port() -> None:
    async with FaultServer() as server:
        port = server.port
        await server.refuse()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        await server.listen()
        assert server.port == port
        assert (await post(port, {"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 400
