"""One request as it is sent: its id, envelope, headers and trace context, and how it is cancelled."""

import asyncio
import sys
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

import holdfast
from holdfast.links import CommandTarget
from holdfast.testing import Fault, FaultServer
from tests.deadlines import until
from tests.links.quick_links import FAST, link_to, tool

pytestmark = pytest.mark.anyio


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
        with pytest.raises(holdfast.errors.BadAnswer):
            await link.notify("notifications/roots/list_changed")
        await link.notify("notifications/roots/list_changed")


PROGRAM = """
import json, sys
order = []
for line in sys.stdin:
    m = json.loads(line)
    order.append(m["method"])
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    if m["method"] == "order": result = {"order": order}
    if "id" in m and m["method"] != "wait":
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
"""


class RawObject:
    """A server object that does as the program does."""

    name = "raw"

    def __init__(self) -> None:
        self._lowlevel_server = self

    def create_initialization_options(self) -> None:
        return None

    async def run(self, read: Any, write: Any, options: None) -> None:
        order: list[str] = []
        async for item in read:
            message = item.message
            order.append(message.method)
            result: dict[str, Any] = {
                "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"},
            }  # fmt: skip
            if message.method == "order":
                result = {"order": order}
            if isinstance(message, types.JSONRPCRequest) and message.method != "wait":
                answer = types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)
                await write.send(SessionMessage(answer))


@pytest.mark.promise("link.cancel")
@pytest.mark.parametrize("kind", ["program", "object"])
@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_no_later_request_overtakes_a_cancellation_on_a_stream(how: str, kind: str) -> None:
    """Such a server reads its messages in order: what comes after a cancellation may rely on it."""
    target = CommandTarget(sys.executable, ["-I", "-S", "-c", PROGRAM]) if kind == "program" else RawObject()
    async with link_to(target, era="2025") as link:
        await link.open()
        with pytest.raises((TimeoutError, holdfast.errors.AnswerTimeout)):
            if how == "cancelled":
                async with asyncio.timeout(0.2):
                    await link.request("wait")
            await link.request("wait", timeout=0.2)
        order = (await link.request("order"))["order"]
        assert order == ["initialize", "notifications/initialized", "wait", "notifications/cancelled", "order"]
