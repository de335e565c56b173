"""One request as it is sent: its id, envelope, headers and trace context, and how it is cancelled."""

import asyncio
from typing import Any

import pytest

import holdfast
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
