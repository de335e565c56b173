"""What a second hunt found: large bodies on kept connections, resting sessions in parallel, keys in two processes, …"""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.gateway.kit import Raw, config_of, gateway
from tests.links.kit import until


@pytest.mark.promise("gateway.front-2025")
async def test_large_bodies_on_a_kept_connection(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with Raw(program.url) as client:
            await client.initialize()
            for size in (140_000, 100, 900_000, 140_000, 300_000, 50):
                answer = await client.call("counter__effect", call="x", text="y" * size)
                assert answer.status == 200, (size, answer.raw[:200])


@pytest.mark.promise("gateway.limits")
async def test_resting_sessions_called_at_once_are_all_there(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 2}) as program:
            clients = [Raw(program.url) for _ in range(10)]
            for client in clients:
                await client.initialize()
            for turn in range(1, 5):
                answers = await asyncio.gather(*(client.call("counter__count") for client in clients))
                assert [answer.text for answer in answers] == [str(turn)] * 10
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.counts")
async def test_one_header_key_through_two_gateways_is_one_session(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path}/s.db", {"header": "x-key"}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store, sessions=settings) as one:
            async with gateway(tmp_path, servers, store=store, sessions=settings) as other:
                async with Raw(one.url) as a, Raw(other.url) as b:
                    for key in ("k1", "k2", "k3"):
                        call = {"name": "counter__count", "arguments": {}}
                        both = await asyncio.gather(
                            *(client.ask_2026("tools/call", call, x_key=key) for client in (a, b, a, b))
                        )
                        assert sorted(answer.text for answer in both) == ["1", "2", "3", "4"]


@pytest.mark.promise("gateway.program")
async def test_a_reload_while_a_session_begins_leaves_it_on_no_old_server(tmp_path: Path) -> None:
    async with FaultServer() as old, FaultServer() as new:
        async with gateway(tmp_path, {"a": {"url": old.url}}, sessions={"start": 10}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.table.tools)
            async with Raw(program.url) as client:
                from holdfast.testing import Fault

                old.plan(Fault.HANG, method="initialize")
                handshakes = sum(request.method == "initialize" for request in old.requests)
                beginning = asyncio.create_task(client.initialize())
                await until(lambda: sum(request.method == "initialize" for request in old.requests) > handshakes)
                await gate.reload(config_of(tmp_path, {"a": {"url": new.url}}, sessions={"start": 10}))
                await beginning
                before = sum(request.method == "tools/call" for request in old.requests)
                texts = [(await client.call("a__count")).text for _ in range(3)]
                assert texts[-1].isdigit()
                assert sum(request.method == "tools/call" for request in old.requests) == before


@pytest.mark.promise("gateway.front-2025")
async def test_javas_offer_to_upgrade_and_http_1_0(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with Raw(program.url) as client:
            await client.initialize()
            params = {"name": "counter__progress", "arguments": {"steps": 2}, "_meta": {"progressToken": 1}}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            common = (
                f"host: localhost\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n"
                f"mcp-session-id: {client.session}\r\ncontent-length: {len(body)}\r\n"
            ).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
            offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n\r\n"
            for _ in range(2):
                writer.write(b"POST /mcp HTTP/1.1\r\n" + common + offer + body)
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b" 200 " in head
                    assert b"event-stream" in head
                    await reader.readuntil(b"0\r\n\r\n")
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
            writer.write(b"POST /mcp HTTP/1.0\r\n" + common + b"\r\n" + body)
            async with asyncio.timeout(10):
                whole = await reader.read()
            assert b"application/json" in whole.partition(b"\r\n\r\n")[0]
            assert json.loads(whole.partition(b"\r\n\r\n")[2])["result"]
            writer.close()


@pytest.mark.promise("gateway.front-2026")
async def test_a_streaming_call_whose_session_ends_has_an_answer(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http:
        settings = {"handles": True, "drain": 0.3}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=settings) as program:
            async with Raw(program.url) as client:
                opened = await client.call_2026("holdfast__open_session")
                handle = opened.result["structuredContent"]["holdfast_session"]
                waiting = asyncio.create_task(client.call_2026("counter__wait", holdfast_session=handle))
                await until(lambda: any("wait" in str(request.message) for request in http.requests))
                await client.call_2026("holdfast__end_session", holdfast_session=handle)
                answer = await waiting
                assert "error" in answer.last or answer.result.get("isError")


TALKATIVE = """
import json, pathlib, sys, time
role, go = sys.argv[1], pathlib.Path(sys.argv[2])
def say(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def wait():  # bounded: 20 s
    for _ in range(200):
        if go.exists(): return time.sleep(0.2)
        time.sleep(0.1)
tools = {"tools": [{"name": role, "inputSchema": {"type": "object"}}]}
about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
         "serverInfo": {"name": role, "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    method = asked["method"]
    if method == "notifications/initialized" and role == "talks":
        say({"method": "notifications/tools/list_changed"})
    if "id" not in asked: continue
    if method == "initialize" and role == "late": wait()
    known = {"initialize": about, "tools/list": tools, "ping": {}}
    if method in known: say({"id": asked["id"], "result": known[method]})
    else: say({"id": asked["id"], "error": {"code": -32601, "message": "no"}})
    if method == "tools/list": go.touch()
"""


@pytest.mark.promise("gateway.routing")
async def test_a_server_that_tells_of_changed_lists_at_once_hides_no_slower_one(tmp_path: Path) -> None:
    script = tmp_path / "talkative.py"
    script.write_text(TALKATIVE)
    servers = {
        name: {"command": sys.executable, "args": [str(script), name, str(tmp_path / "go")]}
        for name in ("talks", "late")
    }
    async with gateway(tmp_path, servers, sessions={"start": 20.0}) as program, Raw(program.url) as client:
        await client.initialize()
        assert sorted(await client.tools()) == ["late__late", "talks__talks"]
