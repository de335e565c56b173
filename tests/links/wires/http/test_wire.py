"""Answers over HTTP: large ones, odd ones, and servers that speak first."""

import asyncio
from json import dumps, loads
from typing import Any

import pytest

import holdfast
from holdfast import events
from holdfast.testing import Fault, FaultServer
from holdfast.testing.fault_plan import Refusal, error_body
from tests.deadlines import until
from tests.links.quick_links import Notifications, link_to, text_of, tool
from tests.links.web import listening

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.large")
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_an_answer_of_five_megabytes(form: Any) -> None:
    limits = holdfast.links.Limits(message_bytes=6_000_000, close=2)
    async with FaultServer(answers=form) as server, link_to(server.url, limits=limits) as link:
        assert len(text_of(await link.request("tools/call", tool("large", bytes=5_000_000)))) == 5_000_000
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("tools/call", tool("large", bytes=7_000_000))
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
async def test_a_server_that_speaks_first_is_not_flooded() -> None:
    accepted = 0

    async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handshake, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with link_to(f"http://127.0.0.1:{port}/mcp") as link:
        with pytest.raises(holdfast.HoldfastError):
            await link.request("ping")
    listener.close()
    assert accepted < 20


@pytest.mark.promise("link.bad-input")
async def test_odd_answers_of_a_server_are_typed() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(
            Fault.STATUS,
            method="tools/call",
            status=503,
            headers={"retry-after": "Mon, 01 Jan 2030 00:00:00 +9999999999999"},
        )
        with pytest.raises(holdfast.HoldfastError):
            await link.request("tools/call", tool("echo"))
        for odd in (
            b'{"jsonrpc":"2.0","id":"x","result":{},"error":"oops"}',
            b'{"id":"x","error":{"code":"no"}}',
            b"null",
        ):
            server.plan(Fault.STATUS, method="tools/call", status=200, body=odd)
            with pytest.raises(holdfast.HoldfastError):
                await link.request("tools/call", tool("echo"), id="x", timeout=2)
                raise holdfast.UsageError("an empty result is an answer too")
        await link.request("tools/list")


STREAM = {"content-type": "text/event-stream"}


def stream_of(*messages: Any) -> bytes:
    return "".join(f"event: message\ndata: {dumps(message)}\n\n" for message in messages).encode()


def refusal(text: str = "Session not found", id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": -32600, "message": text}}


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("id", [None, "server-error"])
async def test_a_session_that_is_said_to_be_lost_on_a_stream_is_healed_and_reported(id: Any) -> None:
    async with FaultServer() as http, link_to(http.url) as link:
        await link.request("tools/list")
        http.plan(Fault.STATUS, method="tools/call", status=200, headers=STREAM, body=stream_of(refusal(id=id)))
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        assert link.generation == 2
        http.plan(Fault.STATUS, method="tools/call", status=200, headers=STREAM, body=stream_of(refusal(id=id)))
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("count"))


@pytest.mark.promise("link.matrix")
async def test_another_error_without_an_id_of_ours_on_a_stream_is_the_servers_answer() -> None:
    async with FaultServer() as http, link_to(http.url) as link:
        await link.request("tools/list")
        http.plan(Fault.STATUS, method="tools/call", status=200, headers=STREAM, body=stream_of(refusal("no")))
        with pytest.raises(holdfast.errors.ErrorAnswer, match="no"):
            await link.request("tools/call", tool("count"))
        assert link.generation == 1


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("first", [True, False])
async def test_an_error_without_an_id_of_ours_beside_other_messages_is_a_stray(first: bool) -> None:
    seen: list[Any] = []
    result = {"jsonrpc": "2.0", "id": "mine", "result": {"content": []}}
    progress = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    async with FaultServer() as http, link_to(http.url, on_event=seen.append) as link:
        await link.request("tools/list")
        body = stream_of(refusal(), result) if first else stream_of(progress, refusal(), result)
        http.plan(Fault.STATUS, method="tools/call", status=200, headers=STREAM, body=body)
        assert await link.request("tools/call", tool("echo"), id="mine") == {"content": []}
        assert [event for event in seen if isinstance(event, events.StrayMessage)]
        http.plan(Fault.STATUS, method="tools/call", status=200, headers=STREAM, body=stream_of(progress, refusal()))
        with pytest.raises(holdfast.OutcomeUnknown):  # the call had begun to answer
            await link.request("tools/call", tool("echo"))
        assert link.generation == 1


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("text", ["Session abc123 not found", "Mcp-Session-Id header is required"])
async def test_other_words_for_a_lost_session_under_http_200_heal_it(text: str) -> None:
    lost = Refusal("a proxy that always says 200", 200, error_body(-32001, text))
    async with FaultServer(lost=lost) as http, link_to(http.url) as link:
        await link.request("tools/list")
        http.plan(Fault.FORGET, method="tools/call")
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        assert link.generation == 2


class LinesServer:
    """A 2026 server that answers in chunks of JSON: each of `parts` is one, and `@ID@` the id of the request."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts
        self.closed = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
            message = loads(await reader.readexactly(size))
            if message["method"] == "server/discover":
                shown = {"tools": {"listChanged": True}}
                found = {"supportedVersions": ["2026-07-28"], "capabilities": shown, "resultType": "complete"}
                data = dumps({"jsonrpc": "2.0", "id": message["id"], "result": found}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
                )
                writer.write(data)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in self.parts:
                if part == "hang":
                    try:
                        assert not await reader.read(1)
                    finally:
                        self.closed.set()
                    return
                data = part.replace("@ID@", dumps(message["id"])).encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
            writer.write(b"0\r\n\r\n")


NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"said"}}'
DONE = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"resultType":"complete"}}'


@pytest.mark.promise("link.json-lines")
@pytest.mark.parametrize(
    ("parts", "heard"),
    [
        ((f"{NOTE}\n{DONE}",), 1),
        ((f"{NOTE}\n", NOTE[:9], f"{NOTE[9:]}\n\n{DONE}\n"), 2),
        ((DONE[:20], DONE[20:]), 0),
        ((f"{DONE}\n",), 0),
        ((DONE.replace(",", ",\n  ").replace("{", "{\n"),), 0),
    ],
    ids=["one chunk", "cut anywhere", "a document", "with a newline", "on several lines"],
)
async def test_messages_that_come_as_lines_of_json_are_taken(parts: tuple[str, ...], heard: int) -> None:
    server, said = LinesServer(*parts), Notifications()
    async with listening(server) as port:
        async with link_to(f"http://127.0.0.1:{port}/mcp", era="2026", on_notification=said) as link:
            assert (await link.request("tools/call", tool("t")))["content"] == []
            assert (await link.request("tools/call", tool("t")))["content"] == []
            assert said.count("notifications/message") == 2 * heard


@pytest.mark.promise("link.json-lines")
async def test_a_listen_that_is_answered_in_lines_is_a_listen() -> None:
    acknowledged = (
        '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":'
        '{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":@ID@}}}\n'
    )
    changed = (
        '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":'
        '{"_meta":{"io.modelcontextprotocol/subscriptionId":@ID@}}}\n'
    )
    server, said = LinesServer(acknowledged, changed, "hang"), Notifications()
    async with listening(server) as port:
        async with link_to(f"http://127.0.0.1:{port}/mcp", era="2026", on_notification=said) as link:
            watch = await link.watch(tools=True)
            await until(lambda: said.count("notifications/tools/list_changed") == 1)
            watch.close()
            await until(server.closed.is_set)


@pytest.mark.promise("link.json-lines")
@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ((f"{NOTE}\n",), holdfast.OutcomeUnknown),
        ((f"{NOTE}\n", "{half"), holdfast.OutcomeUnknown),
        ((f"{NOTE}\n", "{odd}\n"), holdfast.OutcomeUnknown),
        (("",), holdfast.OutcomeUnknown),
        (("x" * 150_000, "x" * 150_000), holdfast.errors.LimitReached),
        (('{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}\n',), holdfast.errors.ErrorAnswer),
        ((f"{NOTE}\n", "hang"), holdfast.OutcomeUnknown),
    ],
    ids=["no answer", "half a line", "an odd line", "nothing", "too large", "an error without an id", "silence"],
)
async def test_lines_without_an_answer_are_typed_errors(parts: tuple[str, ...], error: type[Exception]) -> None:
    async with listening(LinesServer(*parts)) as port:
        async with link_to(f"http://127.0.0.1:{port}/mcp", era="2026") as link:
            with pytest.raises(error):
                await link.request("tools/call", tool("t"), timeout=2)
