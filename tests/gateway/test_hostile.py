"""Whatever a stranger sends: no 5xx, no hang, no crash, and the session of another goes on."""

import asyncio
import json
import string
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import BOTH, RawClient
from tests.gateway.gateways import gateway
from tests.links.web import listening

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
_METHODS = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "resources/read", "prompts/get", "completion/complete",
     "logging/setLevel", "resources/subscribe", "server/discover", "notifications/cancelled", ""]
)  # fmt: skip
_KNOWN = ["counter__count", "counter__echo", "nobody__x", "", "holdfast__open_session"]
_NAMES = st.sampled_from(_KNOWN) | st.text(max_size=30)
_META = st.fixed_dictionaries(
    {},
    optional={
        "io.modelcontextprotocol/protocolVersion": st.sampled_from(["2026-07-28", "2025-11-25", "x"]) | _JSON,
        "io.modelcontextprotocol/clientCapabilities": st.just({}) | _JSON,
        "progressToken": _JSON,
    },
)
_PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": _NAMES | _JSON,
        "uri": st.text(max_size=30) | _JSON,
        "arguments": _JSON,
        "cursor": st.text(max_size=10) | _JSON,
        "ref": _JSON,
        "level": _JSON,
        "_meta": _META | _JSON,
        "protocolVersion": _JSON,
        "capabilities": _JSON,
        "requestId": _JSON,
    },
)
_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | _JSON,
        "id": st.integers(0, 5) | st.text(max_size=5) | _JSON,
        "method": _METHODS | st.text(max_size=20) | _JSON,
        "params": _PARAMS | _JSON,
        "result": _JSON,
        "error": _JSON,
    },
)
_GOOD = st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": st.integers(), "method": _METHODS, "params": _PARAMS})
_BODY = st.one_of(
    _GOOD.map(lambda value: json.dumps(value).encode()),
    _MESSAGE.map(lambda value: json.dumps(value).encode()),
    _JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
    st.lists(_MESSAGE, max_size=3).map(lambda value: json.dumps(value).encode()),
)
_VALUE = st.text(string.ascii_letters + string.digits + "-_/=?;, .*", max_size=40)
_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content-type": st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain"]) | _VALUE,
        "accept": st.sampled_from([BOTH, "*/*", "application/json", "text/event-stream"]) | _VALUE,
        "mcp-session-id": st.just("MINE") | _VALUE,
        "mcp-protocol-version": st.sampled_from(["2025-11-25", "2026-07-28", "2024-11-05"]) | _VALUE,
        "mcp-method": st.sampled_from(["tools/call", "tools/list"]) | _VALUE,
        "mcp-name": _VALUE,
        "last-event-id": st.sampled_from(["own-1", "c1-0", "own--1", "own-999999999999999999"]) | _VALUE,
        "origin": st.sampled_from(["http://localhost", "https://evil.example"]) | _VALUE,
        "authorization": _VALUE,
        "x-any": _VALUE,
    },
)
_MINE = st.fixed_dictionaries({"mcp-session-id": st.just("MINE")})
CASES = 2_000


@pytest.mark.promise("gateway.hostile")
async def test_fuzzed_bodies_and_headers_never_break_it(tmp_path: Path) -> None:
    cases: list[tuple[str, bytes, dict[str, str]]] = []

    @settings(
        max_examples=CASES, database=None, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(
        st.sampled_from(["POST"] * 30 + ["DELETE2", "PUT", "OPTIONS", "PATCH"]), _BODY, st.just({}) | _MINE | _HEADERS
    )
    def collect(verb: str, body: bytes, headers: dict[str, str]) -> None:
        cases.append((verb, body, headers))

    await asyncio.to_thread(collect)
    assert len(cases) >= CASES
    limits = {"per_principal": 100_000, "total": 100_000, "live": 50}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, sessions=limits) as program:
        statuses: dict[int, int] = {}
        async with (
            RawClient(program.url) as mine,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as stranger,
        ):
            await mine.initialize()
            assert mine.session is not None

            async def send(verb: str, body: bytes, headers: dict[str, str]) -> None:
                given = {"content-type": "application/json", "accept": BOTH, **headers}
                if given.get("mcp-session-id") == "MINE":
                    given["mcp-session-id"] = str(mine.session)
                async with stranger.request(verb, program.url, data=body, headers=given) as response:
                    await response.read()
                    statuses[response.status] = statuses.get(response.status, 0) + 1
                    assert response.status < 500, (verb, body, given)

            for start in range(0, len(cases), 20):
                await asyncio.gather(*(send(*case) for case in cases[start : start + 20]))
            assert (await mine.ask("ping")).result == {}
            assert (await mine.call("counter__echo", text="alive")).text == "alive"
        assert statuses.get(200, 0) > 20
        assert statuses.get(400, 0) > 100


@pytest.mark.promise("gateway.hostile")
async def test_bytes_that_are_no_http_and_bodies_that_never_end(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        for raw in (
            b"\x00\x01\x02\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n" + b"x" * 70_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
            writer.write(raw)
            writer.write_eof()
            async with asyncio.timeout(patience(10)):
                line = await reader.readline()
            assert not line or b" 4" in line
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
        )
        await writer.drain()
        writer.close()  # hangs up in the middle of its body
        async with RawClient(program.url) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.hostile")
async def test_what_a_backend_sends_is_data(tmp_path: Path) -> None:
    """A backend with hostile names and schemas can't break the front, nor speak for another."""
    async with FaultServer() as http, FaultServer() as evil:
        servers = {"counter": {"url": http.url}, "evil": {"url": evil.url}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            answer: Any = await client.call("evil__echo", text="\u202e\x00{}<script>")
            assert answer.text == "\u202e\x00{}<script>"
            assert (await client.call("counter__count")).text == "1"


class Talker:
    """A 2025 server that says on its streams what a test tells it to, and answers some requests when it is let go."""

    def __init__(self) -> None:
        self.url = ""
        self.tool = "first"
        self.held = ""
        """The method whose requests wait for `go`."""
        self.go = asyncio.Event()
        self.waiting = self.most_waiting = self.pongs = 0
        self.streams: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
            message = json.loads(await reader.readexactly(size) or b"{}")
            if head.startswith("get"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                self.streams.append(writer)
                await reader.read()
                return
            method = message.get("method", "")
            self.pongs += message.get("id") == "sentinel"
            tool = self.tool
            if method and method == self.held:
                self.waiting += 1
                self.most_waiting = max(self.most_waiting, self.waiting)
                await self.go.wait()
                self.waiting -= 1
            if not method or "id" not in message:
                writer.write(b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\n\r\n")
                continue
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
            result = {
                "initialize": {**about, "serverInfo": {"name": "talker", "version": "1"}},
                "tools/list": {"tools": [{"name": tool, "inputSchema": {"type": "object"}}]},
            }.get(method, {})
            data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\n"
            writer.write(said + b"content-length: %d\r\n\r\n" % len(data) + data)

    async def say(self, method: str, times: int) -> None:
        """So often, on every stream; returns when the link has taken all of it."""
        message = b'data: {"jsonrpc":"2.0","method":"%s"}\n\n' % method.encode()
        ping = b'data: {"jsonrpc":"2.0","id":"sentinel","method":"ping"}\n\n'
        before = self.pongs
        for stream in self.streams:
            stream.write(message * times + ping)
        await until(lambda: self.pongs - before >= len(self.streams), 20)


@asynccontextmanager
async def talker() -> AsyncGenerator[Talker]:
    served = Talker()
    async with listening(served.serve) as port:
        served.url = f"http://127.0.0.1:{port}/mcp"
        yield served


@pytest.mark.promise("gateway.hostile")
async def test_a_server_that_says_without_end_that_its_lists_change_is_asked_once_for_all(tmp_path: Path) -> None:
    async with (
        talker() as server,
        gateway(tmp_path, {"it": {"url": server.url}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        assert await client.tools() == ["it__first"]
        async with client.stream():
            await until(lambda: len(server.streams) == 2)  # the session's, and everybody's
            before = len(asyncio.all_tasks())
            server.held = "tools/list"
            for _ in range(20):
                await server.say("notifications/tools/list_changed", 100)
            assert len(asyncio.all_tasks()) < before + 50
            assert server.most_waiting <= 2
            server.tool = "second"
            await server.say("notifications/tools/list_changed", 1)  # while the lists are being fetched
            server.go.set()
            await until(lambda: server.waiting == 0)
            async with RawClient(program.url) as other, asyncio.timeout(patience(20)):
                await other.initialize()
                while await client.tools() != ["it__second"] or await other.tools() != ["it__second"]:
                    pass


@pytest.mark.promise("gateway.hostile")
async def test_a_client_whose_roots_change_without_end_costs_a_server_one_request_at_a_time(tmp_path: Path) -> None:
    async with (
        talker() as server,
        gateway(tmp_path, {"it": {"url": server.url}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize({"roots": {"listChanged": True}})
        await client.call("it__first")
        server.held = "notifications/roots/list_changed"
        for _ in range(50):
            told = await client.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
            assert told.status == 202
        await until(lambda: server.waiting)
        assert server.most_waiting == 1
        server.go.set()
        await until(lambda: server.waiting == 0)
