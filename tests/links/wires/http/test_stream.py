"""Event streams over HTTP: the server's own, answers that break and are resumed, odd events."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import holdfast
from holdfast import events
from holdfast.links.wires.http.stream import SHORTEST_PAUSE
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import FAST, Notifications, link_to, scaled, text_of, tool
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.mark.promise("link.server-stream")
async def test_the_server_stream_brings_notifications_and_is_opened_again_after_a_drop() -> None:
    handlers, heard = Notifications(), list[events.Event]()
    async with FaultServer(resumable=True) as server:
        async with link_to(server.url, on_notification=handlers, on_event=heard.append) as link:
            await link.request("tools/list")
            await until(lambda: server.streams == 1)
            server.push(CHANGED)
            await until(lambda: handlers.count("notifications/tools/list_changed") == 1)
            server.drop_streams()
            await until(lambda: len([r for r in server.requests if r.verb == "GET"]) == 2)
            assert server.requests[-1].headers["last-event-id"] == "e1"
            await until(lambda: server.streams == 1)
            server.push(CHANGED)
            await until(lambda: handlers.count("notifications/tools/list_changed") == 2)
            [drop] = [event for event in heard if isinstance(event, events.StreamDropped)]
            assert drop.resumable
            assert link.generation == 1
        await until(lambda: server.streams == 0)


@pytest.mark.promise("link.server-stream")
async def test_a_server_without_a_stream_of_its_own_is_asked_once() -> None:
    async with FaultServer(get_stream=False) as server, link_to(server.url) as link:
        await link.request("tools/list")
        await until(lambda: any(request.verb == "GET" for request in server.requests))
        await link.request("tools/list")
        assert sum(request.verb == "GET" for request in server.requests) == 1


@pytest.mark.promise("link.server-stream")
async def test_a_conflict_on_the_stream_is_retried_and_harms_nothing() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="GET", status=409, times=2)
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        assert link.generation == 1


@pytest.mark.promise("link.server-stream")
async def test_a_session_lost_on_the_stream_is_found_before_the_next_call() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        server.sessions.sessions.clear()
        server.drop_streams()
        await until(lambda: link.session_id is None)
        before = len(server.requests)
        await link.request("tools/list")
        methods = [request.method for request in server.requests[before:] if request.verb == "POST"]
        assert methods == ["initialize", "notifications/initialized", "tools/list"]


@pytest.mark.promise("link.resume")
async def test_an_answer_stream_that_breaks_after_an_event_id_is_resumed_not_repeated() -> None:
    async with FaultServer(answers="sse", resumable=True) as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(Fault.CLOSE_IN_STREAM, method="tools/call")
        assert text_of(await link.request("tools/call", tool("effect", call="x", text="late"))) == "late"
        assert server.effects["x"] == 1
        assert any(r.verb == "GET" and r.headers.get("last-event-id") == "s1" for r in server.requests)


@pytest.mark.promise("link.resume")
async def test_a_resumption_that_fails_is_an_unknown_outcome() -> None:
    async with FaultServer(answers="sse", resumable=True) as server, link_to(server.url, stream=False) as link:
        await link.request("tools/list")
        server.plan(Fault.CLOSE_IN_STREAM, method="tools/call")
        server.plan(Fault.STATUS, method="GET", status=500, times=10)
        with pytest.raises(holdfast.errors.ConnectionLost):
            await link.request("tools/call", tool("effect", call="x"))
        server.lift()
        await link.request("tools/list")


@pytest.mark.promise("link.long-stream")
async def test_a_stream_may_last_longer_than_every_default_timeout() -> None:
    # Silence at a three-hundredth of its default: five minutes become one second, and the stream lasts longer.
    limits = scaled(holdfast.links.Limits(), 1 / 300)
    limits = type(limits)(
        silence=limits.silence, connect=2, handshake=2, start=5, close=2, deliver=2, stream_retry=0.02
    )
    handlers = Notifications()
    async with FaultServer(era="2026") as server, link_to(server.url, limits=limits, on_notification=handlers) as link:
        answers = asyncio.ensure_future(link.request("subscriptions/listen", {"notifications": {}}))
        await until(lambda: server.streams == 1)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begun < 3 * limits.silence:
            server.push(CHANGED)
            await asyncio.sleep(limits.silence / 3)
        assert not answers.done()
        answers.cancel()
    async with FaultServer(answers="sse") as server, link_to(server.url, limits=limits) as link:
        steps = 8

        async def slowly(done: float, total: float | None, message: str | None) -> None:
            await asyncio.sleep(limits.silence / 4)

        await link.request("tools/call", tool("progress", steps=steps), on_progress=slowly)


@pytest.mark.promise("link.server-stream")
async def test_a_stream_goes_on_after_an_event_id_of_any_characters() -> None:
    id = "ключ-😀".encode()
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        message = json.loads(await reader.readexactly(length) or b"{}")
        said = b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        if head.startswith(b"GET"):
            asked.append(head)
            said = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            said += b"id: " + id + b"\nretry: 1\ndata: \n\n"
        elif message.get("method") == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\nconnection: close\r\n"
            said += b"content-length: %d\r\n\r\n" % len(body) + body
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with link_to(url, era="2025") as link:
            await link.open()
            await until(lambda: len(asked) > 1)
    finally:
        server.close()
    assert b"last-event-id" not in asked[0].lower()
    assert b"last-event-id: " + id + b"\r\n" in asked[1]


@pytest.mark.promise("link.resume")
@pytest.mark.parametrize("drop", [b"", b"retry: 0\n"], ids=["as ever", "at once"])
async def test_an_answer_stream_that_is_dropped_each_time_is_resumed_at_a_pace(drop: bytes) -> None:
    resumed: list[float] = []
    ends = 8

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        message = json.loads(await reader.readexactly(length) or b"{}")
        said = b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        if message.get("method") == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\nconnection: close\r\n"
            said += b"content-length: %d\r\n\r\n" % len(body) + body
        elif message.get("method") == "tools/call":
            asked.append(message["id"])
            said = stream + b"id: 0\n" + drop + b"data: \n\n"
        elif b"last-event-id" in head.lower():
            resumed.append(asyncio.get_running_loop().time())
            said = stream + b"id: %d\n" % len(resumed) + drop + b"data: \n\n"
            if len(resumed) == ends:
                answer = {"jsonrpc": "2.0", "id": asked[0], "result": {"content": []}}
                said += b"data: " + json.dumps(answer).encode() + b"\n\n"
        elif head.startswith(b"GET"):
            said = b"HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(said)
        await writer.drain()
        writer.close()

    asked: list[str] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    limits = replace(FAST, stream_retry=0.001)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with link_to(url, era="2025", limits=limits) as link:
            assert await link.request("tools/call", tool("echo")) == {"content": []}
    finally:
        server.close()
    assert len(resumed) == ends
    gaps = [later - earlier for earlier, later in pairwise(resumed)]
    assert min(gaps) >= SHORTEST_PAUSE * 0.9


@pytest.mark.promise("link.server-stream")
async def test_a_404_for_the_servers_stream_is_no_lost_session() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="GET", status=404, times=100)
        for n in range(4):
            assert text_of(await link.request("tools/call", tool("count"))) == str(n + 1)
        assert link.generation == 1


@pytest.mark.promise("link.sse")
async def test_events_of_other_types_and_a_byte_order_mark_are_no_trouble() -> None:
    from holdfast.core.sse import Parser

    parser = Parser(1000)
    events = parser.feed(b"\xef\xbb\xbfdata: {}\n\nevent: ping\ndata: keepalive\n\nid: 7\ndata: {")
    assert [event.is_message for event in events] == [True, False]
    assert parser.last_id is None  # the event with the id was cut


@pytest.mark.promise("link.server-stream")
async def test_a_batch_on_the_server_stream_is_taken_message_by_message() -> None:
    """2025-03-26, which we negotiate, allows them."""
    handlers = Notifications()

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        return {"roots": []}

    async with FaultServer() as server, link_to(server.url, on_notification=handlers, on_request=answer) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        asked = {"jsonrpc": "2.0", "id": 7, "method": "roots/list"}
        server.push([CHANGED, asked, 17, CHANGED])  # type: ignore[arg-type]
        await until(lambda: handlers.count("notifications/tools/list_changed") == 2)
        await until(
            lambda: {"jsonrpc": "2.0", "id": 7, "result": {"roots": []}} in [r.message for r in server.requests]
        )
        assert link.statistics().strays == 1


@pytest.mark.promise("link.server-stream")
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_a_batch_with_the_answer_of_a_call_answers_it(form: str) -> None:
    handlers = Notifications()
    async with FaultServer() as server, link_to(server.url, on_notification=handlers) as link:
        await link.request("tools/list")
        body = json.dumps([CHANGED, {"jsonrpc": "2.0", "id": "x", "result": {"content": []}}])
        kind = {"content-type": "application/json" if form == "json" else "text/event-stream"}
        sent = body if form == "json" else f"data: {body}\n\n"
        server.plan(Fault.STATUS, method="tools/call", status=200, headers=kind, body=sent.encode())
        assert await link.request("tools/call", tool("echo"), id="x") == {"content": []}
        assert handlers.count("notifications/tools/list_changed") == 1


class LateStream(FaultServer):
    """Its own stream opens when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = asyncio.Event()

    async def intercept(self, request: Any) -> None:
        if request.verb == "GET":
            await self.opens.wait()


async def _accept(method: str, params: Any, id: str | int) -> dict[str, Any]:
    return {"action": "accept"}


@pytest.mark.promise("link.reverse")
async def test_a_call_in_which_the_server_may_ask_waits_for_the_server_stream() -> None:
    """A server that asks there while it is not open loses the question, and its call hangs."""
    async with (
        LateStream() as server,
        link_to(server.url, capabilities={"elicitation": {}}, on_request=_accept) as link,
    ):
        await link.request("tools/list")  # in a listing nothing is asked
        calls = [asyncio.ensure_future(link.request("tools/call", tool("effect", call="x"))) for _ in range(3)]
        await until(lambda: [request.verb for request in server.requests].count("GET") == 1)
        for _ in range(20):
            await link.request("tools/list")
        assert not server.effects
        server.opens.set()
        await asyncio.wait_for(asyncio.gather(*calls), patience(5))
        assert server.effects["x"] == 3
        assert server.streams == 1


@pytest.mark.promise("link.reverse")
@pytest.mark.parametrize("why", ["no capability", "no stream", "slow", "closed"])
async def test_a_call_waits_for_a_server_stream_only_where_that_helps_and_not_for_long(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = {} if why == "no capability" else {"elicitation": {}}
    monkeypatch.setattr("holdfast.links.lifecycle.stream.OPEN_SECONDS", 0.3 if why == "slow" else 1000.0)
    async with (
        LateStream() as server,
        link_to(server.url, capabilities=capabilities, on_request=_accept, stream=why != "no stream") as link,
    ):
        if why == "closed":
            call = asyncio.ensure_future(link.request("tools/call", tool("effect", call="x")))
            await until(lambda: link.era is not None)
            await link.close()
            with pytest.raises(holdfast.Unavailable):
                await asyncio.wait_for(call, patience(5))
            assert not server.effects
        else:
            await asyncio.wait_for(link.request("tools/call", tool("effect", call="x")), patience(5))
        server.opens.set()


@pytest.mark.promise("link.reverse")
async def test_a_call_with_a_deadline_waits_half_of_it_for_the_stream() -> None:
    async with (
        LateStream() as server,
        link_to(server.url, capabilities={"elicitation": {}}, on_request=_accept) as link,
    ):
        await link.open()
        with pytest.raises(holdfast.errors.AnswerTimeout):
            await asyncio.wait_for(link.request("tools/call", tool("wait"), timeout=0.2), patience(5))
        server.opens.set()


@pytest.mark.promise("link.reverse")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_the_first_call_of_a_real_server_may_ask_on_its_stream(kind: Any) -> None:
    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        return {"roots": [{"uri": "file:///here"}]}

    async def ask(url: str) -> str:
        async with link_to(url, era="2025", capabilities={"roots": {}}, on_request=answer) as link:
            return text_of(await link.request("tools/call", tool("roots"), timeout=5))

    async with RealServer(kind) as server:
        said = [await ask(server.url) for _ in range(10)]
        assert all("file:///here" in each for each in said)
