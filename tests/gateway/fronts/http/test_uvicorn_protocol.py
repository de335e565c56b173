"""The gateway's connections, byte by byte: where a request ends, what its headers are, and what a client may cost."""

import asyncio
import json
import tomllib
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement

from holdfast.gateway.fronts.http.uvicorn_protocol import HEAD_BYTES, PIPELINED, Corked
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_wire import HOSTS, ping, post, wire

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n"
STOLEN = json.dumps({"jsonrpc": "2.0", "id": "stolen", "method": "ping"}).encode()


@pytest.mark.promise("gateway.framing")
@pytest.mark.parametrize("offers", [1, 2])
@pytest.mark.parametrize("split", ["whole", "bytes", "body later"])
async def test_what_follows_an_offer_to_upgrade_is_that_requests_body(tmp_path: Path, offers: int, split: str) -> None:
    """However the head is cut into reads, and however many offers it has."""
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client, wire(program) as line:
        await client.initialize()
        session = f"mcp-session-id: {client.session}\r\n".encode()
        smuggled = post(STOLEN, session)
        request = post(smuggled, session, OFFER * offers)
        head, end, body = request.partition(b"\r\n\r\n")
        if split == "whole":
            line.send(request)
        elif split == "bytes":
            await line.send_piecewise([request[n : n + 1] for n in range(len(request))])
        else:
            await line.send_piecewise([head[:-3], head[-3:] + end, body])
        status, answer = await line.answer()
        assert (status, json.loads(answer)["error"]["code"]) == (400, -32700)  # the body is no JSON, and nothing else
        line.send(ping(str(client.session), "mine"))
        status, answer = await line.answer()
        assert (status, json.loads(answer)["id"]) == (200, "mine")


@pytest.mark.promise("gateway.framing")
@pytest.mark.parametrize(("version", "connection"), [(b"1.1", b"upgrade, close"), (b"1.0", b"upgrade")])
async def test_an_offer_to_upgrade_on_a_connection_that_ends_is_answered(
    tmp_path: Path, version: bytes, connection: bytes
) -> None:
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client, wire(program) as line:
        await client.initialize()
        assert client.session is not None
        offer = b"Connection: %s\r\nUpgrade: h2c\r\n" % connection
        request = ping(client.session, "mine", offer).replace(b"HTTP/1.1", b"HTTP/" + version)
        line.send(request + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        status, answer = await line.answer()
        assert (status, json.loads(answer)["id"]) == (200, "mine")
        assert await line.rest() == b""  # what follows the last request is no request


class _Gone:
    """What uvloop's transport does once its client has reset the connection."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")


@pytest.mark.promise("gateway.connections")
async def test_what_was_said_to_a_client_that_is_gone_is_dropped_without_a_traceback() -> None:
    loop, told = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: told.append(context))
    corked = Corked(cast("asyncio.Transport", _Gone()), loop)
    corked.write(b"an event")
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert told == []


@pytest.mark.promise("gateway.framing")
async def test_offers_to_upgrade_are_answered_in_order_when_pipelined(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client, wire(program) as line:
        await client.initialize()
        assert client.session is not None
        line.send(b"".join(ping(client.session, str(n), OFFER if n % 2 else b"") for n in range(6)))
        for n in range(6):
            status, answer = await line.answer()
            assert (status, json.loads(answer)["id"]) == (200, str(n))
        chunk = json.dumps({"jsonrpc": "2.0", "id": "chunked", "method": "ping"}).encode()
        session = f"mcp-session-id: {client.session}\r\n".encode()
        head = post(b"", session, OFFER).replace(b"content-length: 0", b"transfer-encoding: chunked")
        line.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunk), chunk) + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert json.loads((await line.answer())[1])["id"] == "chunked"
        assert await line.answer() == (200, b"ok\n")


@pytest.mark.promise("gateway.framing")
@pytest.mark.parametrize(
    "lines",
    [
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        b"content-length: 3\r\ncontent-length: 4\r\n",
        b"content-length: 3\r\ncontent-length: 3\r\n",
        b"content-length: +3\r\n",
        b"transfer-encoding: gzip\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: \x0bchunked\r\n",
        b"content-length : 3\r\n",
        b"x-folded: a\r\n content-length: 3\r\ncontent-length: 0\r\n",
    ],
)
@pytest.mark.parametrize("offer", [b"", OFFER])
async def test_a_length_that_can_be_read_in_two_ways_ends_the_connection(
    tmp_path: Path, lines: bytes, offer: bytes
) -> None:
    async with gateway(tmp_path, {}) as program, wire(program) as line:
        line.send(
            b"POST /mcp HTTP/1.1\r\n" + HOSTS + offer + lines + b"\r\n{} GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        whole = await line.rest()
        assert whole.count(b"HTTP/1.1 ") <= 1
        assert b"ok\n" not in whole
        assert whole.startswith(b"HTTP/1.1 4") or not whole


@pytest.mark.promise("gateway.framing")
async def test_trailers_say_nothing(tmp_path: Path) -> None:
    """Neither to us nor to a backend: whoever checked the headers did so before."""
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "pass_headers": ["x-user", "x-late"]}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client, wire(program) as line:
            await client.initialize()
            params = {"name": "counter__count"}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            session = f"mcp-session-id: {client.session}\r\nx-user: alice\r\n".encode()
            head = post(b"", session).replace(b"content-length: 0", b"transfer-encoding: chunked")
            line.send(head + b"%x\r\n%s\r\n0\r\n" % (len(body), body))
            line.send(b"x-user: mallory\r\nx-late: 1\r\nmcp-session-id: other\r\n\r\n")
            status, answer = await line.answer()
            assert (status, "result" in json.loads(answer)) == (200, True)
            call = next(request for request in http.requests if request.method == "tools/call")
            assert call.headers["x-user"] == "alice"
            assert "x-late" not in call.headers


@pytest.mark.promise("gateway.framing")
@pytest.mark.parametrize("what", ["trailers", "one trailer", "extension"])
async def test_trailers_and_extensions_of_chunks_have_an_end(tmp_path: Path, what: str) -> None:
    async with gateway(tmp_path, {}) as program, wire(program) as line:
        begun = {"trailers": b"0\r\n", "one trailer": b"0\r\nx: ", "extension": b"1;"}[what]
        piece = (b"x: " + b"y" * 1000 + b"\r\n" if what == "trailers" else b"z" * 1000) * 16
        line.send(post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked") + begun)
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 100 * HEAD_BYTES:
                line.send(piece)
                sent += len(piece)
                async with asyncio.timeout(patience(20)):
                    await line.writer.drain()
                    await asyncio.sleep(0)


@pytest.mark.promise("gateway.framing")
async def test_headers_that_decide_something_stand_once(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "pass_headers": ["x-user"]}}
        named = {"header": "x-session"}
        async with gateway(tmp_path, servers, sessions=named) as program, wire(program) as line:
            for name in (b"X-User", b"x-session", b"traceparent", b"mcp-session-id", b"content-type", b"connection"):
                line.send(post(STOLEN, name + b": a\r\n", name + b": b\r\n"))
                status, answer = await line.answer()
                assert (status, b"twice" in answer) == (400, name != b"connection"), answer
            line.send(post(STOLEN, b"x-other: a\r\nx-other: b\r\n"))
            assert b"Missing session ID" in (await line.answer())[1]


@pytest.mark.promise("gateway.framing")
async def test_requests_behind_an_unanswered_one_are_bounded_and_hear_of_its_end(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            session = f"mcp-session-id: {client.session}\r\n".encode()
            listening = b"GET /mcp HTTP/1.1\r\n" + HOSTS + b"accept: text/event-stream\r\n" + session + b"\r\n"
            async with wire(program) as line:
                line.send(listening)
                async with asyncio.timeout(patience(20)):
                    await line.reader.readuntil(b"\r\n\r\n")
                line.send(ping(str(client.session), "x") * (PIPELINED + 1))
                await line.rest()  # it hangs up
            live = program.gateway
            assert live is not None
            (mine,) = live.sessions.live.values()
            await until(lambda: not mine.notices.is_read)


@pytest.mark.promise("gateway.framing")
def test_what_is_taken_of_uvicorn_is_bound_to_the_versions_that_have_it() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    needed = {need.name: need for need in map(Requirement, project["dependencies"])}
    assert "<" in str(needed["uvicorn"].specifier)


@pytest.mark.promise("gateway.hostile")
async def test_a_head_without_end_is_cut(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: ")
        try:
            for _ in range(64):
                writer.write(b"y" * 65_536)
                await writer.drain()
        except ConnectionError:
            pass
        async with asyncio.timeout(patience(10)):
            try:
                line = await reader.readline()
            except ConnectionError:
                line = b""
        assert not line or b" 431 " in line
        writer.close()
        async with RawClient(program.url) as client:
            await client.initialize()
            big = "z" * 1_000_000  # a body may be long
            assert (await client.call("counter__echo", text=big)).status == 200


@pytest.mark.promise("gateway.front-2025")
async def test_large_bodies_on_a_kept_connection(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            for size in (140_000, 100, 900_000, 140_000, 300_000, 50):
                answer = await client.call("counter__effect", call="x", text="y" * size)
                assert answer.status == 200, (size, answer.raw[:200])


@pytest.mark.promise("gateway.front-2025")
async def test_javas_offer_to_upgrade_and_http_1_0(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
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
                async with asyncio.timeout(patience(10)):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b" 200 " in head
                    assert b"event-stream" in head
                    await reader.readuntil(b"0\r\n\r\n")
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
            writer.write(b"POST /mcp HTTP/1.0\r\n" + common + b"\r\n" + body)
            async with asyncio.timeout(patience(10)):
                whole = await reader.read()
            assert b"application/json" in whole.partition(b"\r\n\r\n")[0]
            assert json.loads(whole.partition(b"\r\n\r\n")[2])["result"]
            writer.close()
