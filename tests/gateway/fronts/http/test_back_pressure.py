"""A client that does not read: what waits for it is bounded; its server is read no further, or it is cut off."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_wire import Wire, post, wire
from tests.gateway.web_apps import serving_app

PIECE = 10_000  # bytes of one notification
FLOOD = 1_200  # notifications of one call: twelve megabytes, more than the way to a client holds
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class FloodServer:
    """A 2025 server whose one tool says more than anybody takes, as fast as it is read, and then answers."""

    def __init__(self) -> None:
        self.said = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["FloodServer"]:
        app = web.Application()
        app.router.add_post("/mcp", self._post)
        async with serving_app(app) as self.url:
            yield self

    async def _post(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        known: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "flood", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]},
            "logging/setLevel": {},
            "ping": {},
        }
        if asked["method"] in known:
            return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": known[asked["method"]]})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(FLOOD):
            await answer.write(event({"method": "notifications/message", "params": note(number)}))
            self.said = max(self.said, number + 1)
        result = {"content": [{"type": "text", "text": "done"}]}
        await answer.write(event({"id": asked["id"], "result": result}))
        return answer


def note(number: int) -> dict[str, Any]:
    return {"level": "info", "data": {"number": number, "text": "x" * PIECE}}


def event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def call(tool: str, session: str | None) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    lines = [f"mcp-session-id: {session}\r\n"]
    if session is None:
        params["_meta"] = {**ENVELOPE, "io.modelcontextprotocol/logLevel": "info"}
        lines = [f"mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n"]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    return post(body, *(line.encode() for line in lines))


async def begun(line: Wire) -> None:
    async with asyncio.timeout(patience(20)):
        assert b"event-stream" in await line.reader.readuntil(b"\r\n\r\n")


@pytest.mark.promise("gateway.back-pressure")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_server_is_read_no_faster_than_its_client_reads(tmp_path: Path, era: str) -> None:
    """All that was said arrives, in order, once the client reads; meanwhile little of it is kept."""
    async with FloodServer().running() as flood:
        file = tmp_path / "gateway.json"
        settings = {"listen": {"port": 0}, "store": "memory:", "clients": {"stream_bytes": 200_000}}
        file.write_text(json.dumps({**settings, "mcpServers": {"f": {"url": flood.url, "stateful": False}}}))
        async with (
            Program(load_config(file)).running() as program,
            RawClient(program.url) as client,
            wire(program, 262_144) as line,
        ):
            await client.initialize()
            room = program.gateway.room if program.gateway is not None else None
            assert room is not None
            line.send(call("f__flood", client.session if era == "2025" else None))
            await begun(line)
            # The sockets are full, and the rest waits here; it would have been said long ago, if all were read.
            await until(lambda: flood.said == FLOOD or room.used > 100_000, seconds=20)
            kept: list[int] = []
            async with asyncio.timeout(patience(30)):
                whole = await everything(line, lambda: kept.append(room.used))
            assert max(kept) < 600_000  # half a stream, and what one read of the server brings
            assert [int(number) for number in re.findall(rb'"number":([0-9]+),', whole)] == list(range(FLOOD))


async def everything(line: Wire, look: Callable[[], object]) -> bytes:
    """All that comes, until the answer is whole."""
    found = bytearray()
    while b'"text":"done"' not in found[-20_000:]:
        chunk = await line.reader.read(1 << 20)
        look()
        assert chunk, "the stream ended before its answer"
        found += chunk
    return bytes(found)


PROGRAM = """
import json, sys
def say(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}}
tools = {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    known = {"initialize": about, "tools/list": tools, "ping": {}}
    if asked["method"] in known: say({"id": asked["id"], "result": known[asked["method"]]}); continue
    token = asked["params"]["_meta"]["progressToken"]
    for number in range(3000):
        say({"method": "notifications/progress",
             "params": {"progressToken": token, "progress": number, "message": "x" * 10000}})
    if "told" in asked["params"]["arguments"]:  # it never answers, and says that it has said all else
        open(asked["params"]["arguments"]["told"], "w").close()
    else:
        say({"id": asked["id"], "result": {"content": [{"type": "text", "text": "done"}]}})
"""


@pytest.mark.promise("gateway.back-pressure")
async def test_a_client_that_is_far_behind_a_program_is_cut_off_and_comes_back_for_the_answer(tmp_path: Path) -> None:
    """A program's pipe is for all its calls, so that it is read on; the stream can be resumed as far as it is kept."""
    script = tmp_path / "flood.py"
    script.write_text(PROGRAM)
    servers = {"p": {"command": sys.executable, "args": [str(script)]}}
    clients = {"stream_bytes": 100_000}
    async with gateway(tmp_path, servers, clients=clients) as program, RawClient(program.url) as client:
        await client.initialize()
        assert program.gateway is not None
        room = program.gateway.room
        params = {"name": "p__flood", "arguments": {}, "_meta": {"progressToken": 1}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        async with wire(program) as line:
            line.send(post(body, f"mcp-session-id: {client.session}\r\n".encode()))
            await begun(line)
            (session,) = program.gateway.sessions.live.values()
            await until(lambda: not session.calls, seconds=20)  # answered, and nobody has read it
            assert room.used < 200_000
            raw = await line.reader.readuntil(b"\n\n")
            id = next(row for row in raw.split(b"\n") if row.startswith(b"id: "))[4:].strip().decode()
            async with asyncio.timeout(patience(20)):
                cut = await until_end(line)
            assert b'"done"' not in cut
        async with client.stream(last_event_id=id) as events:
            while "result" not in (message := await events.next(20)):
                pass
            assert message["result"]["content"][0]["text"] == "done"


@pytest.mark.promise("gateway.back-pressure")
async def test_the_call_of_a_2026_client_that_is_far_behind_a_program_is_cancelled(tmp_path: Path) -> None:
    script = tmp_path / "flood.py"
    script.write_text(PROGRAM)
    servers = {"p": {"command": sys.executable, "args": [str(script)]}}
    settings: dict[str, Any] = {"clients": {"stream_bytes": 100_000}, "sessions": {"steer": False}}
    async with gateway(tmp_path, servers, **settings) as program:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools)
        looking = gate.describe()["children"]  # its lists' own
        told = tmp_path / "told"
        meta = {**ENVELOPE, "progressToken": 1}
        params = {"name": "p__flood", "arguments": {"told": str(told)}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        lines = b"mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: p__flood\r\n"
        async with wire(program) as line:
            line.send(post(body, lines))
            await begun(line)
            await until(told.exists, seconds=20)
            assert gate.room.used < 200_000
            assert gate.lifecycle.calls == 1
            async with asyncio.timeout(patience(20)):
                while await line.reader.read(1 << 20):  # it reads again, too late: what came meanwhile is gone
                    pass
            await until(lambda: not gate.lifecycle.calls and gate.describe()["children"] <= looking, seconds=10)


async def until_end(line: Wire) -> bytes:
    """All that comes until the answer's last chunk."""
    found = bytearray()
    while not found.endswith(b"\r\n0\r\n\r\n"):
        chunk = await line.reader.read(1 << 20)
        assert chunk, "the connection ended before the stream did"
        found += chunk
    return bytes(found)
