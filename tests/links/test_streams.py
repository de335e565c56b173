"""Everything that is not one request and one answer: streams, the server's own words, progress, cancellation."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import holdfast
from holdfast.core import events
from holdfast.links.wires.http.stream import SHORTEST_PAUSE
from holdfast.testing import Fault, FaultServer
from tests.links.kit import FAST, link_to, text_of, tool, until

pytestmark = pytest.mark.anyio

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class CallHandlers:
    """Takes notifications."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def __call__(self, method: str, params: Any) -> None:
        self.heard.append((method, params))

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.heard)


@pytest.mark.promise("link.server-stream")
async def test_the_server_stream_brings_notifications_and_is_opened_again_after_a_drop() -> None:
    handlers, heard = CallHandlers(), list[events.Event]()
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
        with pytest.raises(holdfast.ConnectionLost):
            await link.request("tools/call", tool("effect", call="x"))
        server.lift()
        await link.request("tools/list")


@pytest.mark.promise("link.reverse")
@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
async def test_a_server_may_ask_in_the_middle_of_a_call(method: str) -> None:
    asked: list[tuple[str, Any]] = []

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        asked.append((method, params))
        return {"said": "yes"}

    capabilities = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}
    async with (
        FaultServer(answers="sse") as server,
        link_to(server.url, on_request=answer, capabilities=capabilities) as link,
    ):
        results = await asyncio.gather(
            *(link.request("tools/call", tool("ask", method=method, params={"n": n})) for n in range(5))
        )
        assert {text_of(result) for result in results} == {"{'said': 'yes'}"}
        assert sorted(params["n"] for _, params in asked) == [0, 1, 2, 3, 4]
        initialized = next(r.message for r in server.requests if r.method == "initialize")
        assert initialized is not None
        assert initialized["params"]["capabilities"] == capabilities


@pytest.mark.promise("link.reverse")
async def test_a_handler_that_fails_or_is_absent_answers_with_an_error_and_the_call_goes_on() -> None:
    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        if params["how"] == "declined":
            raise holdfast.ErrorAnswer("no", message="not today", code=-32042, data={"why": 1})
        raise RuntimeError("a bug of ours")

    async with FaultServer(answers="sse") as server, link_to(server.url, on_request=answer) as link:
        declined = text_of(await link.request("tools/call", tool("ask", params={"how": "declined"})))
        assert declined == "{'code': -32042, 'message': 'not today', 'data': {'why': 1}}"
        failed = text_of(await link.request("tools/call", tool("ask", params={"how": "bug"})))
        assert "-32603" in failed
        assert "a bug of ours" not in failed
        link.handle(None, None)
        assert "-32601" in text_of(await link.request("tools/call", tool("ask", params={})))
        assert text_of(await link.request("tools/call", tool("ask", method="ping"))) == "{}"


@pytest.mark.promise("link.reverse")
async def test_a_server_may_ask_on_its_own_stream_and_take_it_back() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with FaultServer() as server, link_to(server.url, on_request=answer) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        server.push({"jsonrpc": "2.0", "id": 7, "method": "roots/list"})
        await asyncio.wait_for(begun.wait(), 5)
        server.push({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.promise("link.progress")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_progress_reaches_its_own_call_in_order(era: Any) -> None:
    async with FaultServer(era=era, answers="sse") as server, link_to(server.url) as link:
        taken: dict[int, list[float]] = {n: [] for n in range(5)}

        async def call(n: int) -> None:
            async def progress(done: float, total: float | None, message: str | None) -> None:
                taken[n].append(done)
                assert total == n + 1

            await link.request("tools/call", tool("progress", steps=n + 1), on_progress=progress)

        await asyncio.gather(*(call(n) for n in range(5)))
        assert taken == {n: [float(step + 1) for step in range(n + 1)] for n in range(5)}


@pytest.mark.promise("link.progress")
async def test_a_progress_callback_that_raises_harms_no_call() -> None:
    async def progress(done: float, total: float | None, message: str | None) -> None:
        raise RuntimeError("a bug of the caller")

    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        await link.request("tools/call", tool("progress", steps=2), on_progress=progress)
        assert link.statistics().strays == 2


@pytest.mark.promise("link.notifications")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_notifications_on_an_answer_stream_are_handed_on(era: Any) -> None:
    handlers = CallHandlers()
    async with FaultServer(era=era, answers="sse") as server, link_to(server.url, on_notification=handlers) as link:
        await link.request("tools/call", tool("log", text="hello"))
        assert handlers.heard == [("notifications/message", {"level": "info", "data": "hello"})]


@pytest.mark.promise("link.cancel")
async def test_cancelling_a_2025_call_tells_the_server_by_a_notification() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        call = asyncio.ensure_future(link.request("tools/call", tool("wait", call="w")))
        await until(lambda: server.effects["w"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.sessions.cancelled)
        sent = next(r.message for r in server.requests if r.method == "tools/call")
        assert sent is not None
        assert server.sessions.cancelled == [sent["id"]]
        assert link.generation == 1


@pytest.mark.promise("link.cancel")
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_cancelling_a_2026_call_tells_the_server_by_closing(form: Any) -> None:
    async with FaultServer(era="2026", answers=form) as server, link_to(server.url) as link:
        await link.request("tools/list")
        call = asyncio.ensure_future(link.request("tools/call", tool("wait", call="w")))
        await until(lambda: server.effects["w"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await link.request("tools/list")
        assert not server.sessions.cancelled
        assert {request.method for request in server.requests} - {"initialize"} == {
            "server/discover",
            "tools/list",
            "tools/call",
        }


@pytest.mark.promise("link.watch")
async def test_a_2026_watch_listens_again_after_a_drop_and_tells_the_gap() -> None:
    handlers = CallHandlers()
    async with FaultServer(era="2026") as server, link_to(server.url, on_notification=handlers) as link:
        watch = await link.watch(tools=True, uris=["a:1"])
        listen = next(r.message for r in server.requests if r.method == "subscriptions/listen")
        assert listen is not None
        assert listen["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 1)
        waiting = asyncio.ensure_future(link.request("tools/call", tool("wait", call="w")))
        await until(lambda: server.effects["w"])
        server.drop_streams()
        await until(lambda: handlers.count("notifications/resources/updated") == 1)
        assert handlers.heard[-1] == (
            "notifications/resources/updated",
            {"uri": "a:1", "_meta": {"holdfast/gap": True}},
        )
        await until(lambda: server.streams == 1)
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 3)
        server.sessions.release.set()
        await waiting  # the dropped stream harmed no call
        watch.close()
        await until(lambda: server.streams == 0)


@pytest.mark.promise("link.watch")
async def test_a_2025_watch_subscribes_and_survives_a_lost_session() -> None:
    handlers = CallHandlers()
    async with FaultServer() as server, link_to(server.url, on_notification=handlers) as link:
        await link.watch(tools=True, uris=["a:1"])
        await until(lambda: server.streams == 1)
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        server.sessions.sessions.clear()
        server.drop_streams()
        await until(lambda: handlers.count("notifications/tools/list_changed") == 1)
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        await until(lambda: server.streams == 1)
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 2)


@pytest.mark.promise("link.watch")
async def test_a_watch_that_is_refused_says_so() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'
        server.plan(Fault.STATUS, method="subscriptions/listen", status=404, body=body)
        with pytest.raises(holdfast.ErrorAnswer):
            await link.watch(tools=True)
        await link.request("tools/list")


@pytest.mark.promise("link.large")
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_an_answer_of_five_megabytes(form: Any) -> None:
    limits = holdfast.Limits(message_bytes=6_000_000, close=2)
    async with FaultServer(answers=form) as server, link_to(server.url, limits=limits) as link:
        assert len(text_of(await link.request("tools/call", tool("large", bytes=5_000_000)))) == 5_000_000
        with pytest.raises(holdfast.LimitReached):
            await link.request("tools/call", tool("large", bytes=7_000_000))
        await link.request("tools/list")


@pytest.mark.promise("link.long-stream")
async def test_a_stream_may_last_longer_than_every_default_timeout() -> None:
    # Every time-out at a thousandth of its default: five minutes of silence become 0.3 s, and the stream lasts longer.
    limits = holdfast.Limits().scaled(0.001)
    limits = type(limits)(silence=limits.silence, connect=2, handshake=2, start=5, close=2, tell=2, stream_retry=0.02)
    handlers = CallHandlers()
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


@pytest.mark.promise("link.trace")
async def test_an_active_span_rides_along(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    span = NonRecordingSpan(SpanContext(0x1234, 0x5678, is_remote=False, trace_flags=TraceFlags(1)))
    async with FaultServer() as server, link_to(server.url) as link:
        with use_span(span):
            await link.request("tools/call", tool("echo"))
        await link.request("tools/call", tool("echo"))
        traced, plain = (r.message for r in server.requests if r.method == "tools/call")
        assert traced is not None
        assert plain is not None
        assert traced["params"]["_meta"]["traceparent"].startswith("00-00000000000000000000000000001234-")
        assert "_meta" not in plain["params"]


@pytest.mark.promise("link.envelope")
async def test_2026_requests_carry_envelope_and_headers() -> None:
    async with FaultServer(era="2026") as server:
        async with link_to(server.url, log_level="info", capabilities={"sampling": {}}) as link:
            await link.request(
                "tools/call", {"name": "écho", "arguments": {}, "_meta": {"mine": 1}}, headers={"X-A": "b"}
            )
        request = server.requests[-1]
        assert request.message is not None
        meta = request.message["params"]["_meta"]
        assert meta == {
            "mine": 1,
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
            "io.modelcontextprotocol/clientInfo": {"name": "holdfast", "version": holdfast.__version__},
            "io.modelcontextprotocol/logLevel": "info",
        }
        assert request.headers["mcp-method"] == "tools/call"
        assert request.headers["mcp-name"] == "=?base64?w6ljaG8=?="
        assert request.headers["mcp-protocol-version"] == "2026-07-28"
        assert request.headers["x-a"] == "b"
        assert "mcp-session-id" not in request.headers


@pytest.mark.promise("link.ids")
async def test_request_ids_are_strings_that_no_other_link_uses() -> None:
    async with FaultServer() as server, link_to(server.url) as one, link_to(server.url) as other:
        for link in (one, other):
            for _ in range(3):
                await link.request("tools/call", tool("echo"))
        ids = [r.message["id"] for r in server.requests if r.method == "tools/call" and r.message]
        assert len(set(ids)) == 6
        assert all(isinstance(id, str) for id in ids)


@pytest.mark.promise("link.notifications")
async def test_notify_reaches_a_2025_server_also_in_a_new_session_and_says_when_it_does_not() -> None:
    async with FaultServer() as server, link_to(server.url, limits=FAST) as link:
        await link.notify("notifications/roots/list_changed")
        assert server.requests[-1].method == "notifications/roots/list_changed"
        server.sessions.sessions.clear()
        await link.notify("notifications/roots/list_changed")
        assert link.generation == 2
        server.plan(Fault.STATUS, method="notifications/roots/list_changed", status=500)
        with pytest.raises(holdfast.BadAnswer):
            await link.notify("notifications/roots/list_changed")
        await link.notify("notifications/roots/list_changed")


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
