"""Spans of links, and the context that they pass on, at a real collector."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from mcp import Client, ClientSession
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import holdfast
from holdfast import Server
from holdfast.links import CommandTarget, LinkDispatcher, LinkTransport
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import FAST, link_to, tool
from tests.sinks.collector import Spanned, tracing

pytestmark = pytest.mark.anyio

THEIRS = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = f"00-{THEIRS}-b7ad6b7169203331-01"


def met(server: FaultServer, method: str) -> list[dict[str, Any]]:
    """The `_meta` of requests as they came."""
    return [(r.message or {}).get("params", {}).get("_meta", {}) for r in server.requests if r.method == method]


def parent_of(meta: dict[str, Any]) -> str:
    return meta["traceparent"].split("-")[2]


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_the_first_calls_trace_shows_the_start_and_the_second_calls_does_not(era: Any) -> None:
    with tracing() as seen:
        async with FaultServer(era=era) as server, link_to(server.url) as link:
            await link.request("tools/call", tool("echo"))
            await link.request("tools/call", tool("echo"))
            session = link.session_id
    first, second = seen.of("CLIENT", "tools/call echo")
    start = seen.one("INTERNAL", "link start")
    hello = seen.of("CLIENT", "initialize" if era == "2025" else "server/discover")[-1]
    assert (start.parent, hello.parent) == (first.id, start.id)
    assert start.events == ["opened"]
    assert first.parent == second.parent == ""
    assert first.trace == start.trace == hello.trace != second.trace
    assert [span.trace for span in seen.spans].count(second.trace) == 1
    assert [parent_of(meta) for meta in met(server, "tools/call")] == [first.id, second.id]
    assert parent_of(met(server, hello.name)[-1]) == hello.id
    known = dict(second.attributes)
    id = known.pop("jsonrpc.request.id")
    assert id == next(r.message["id"] for r in reversed(server.requests) if r.method == "tools/call" and r.message)
    expected: dict[str, Any] = {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": "2025-11-25" if era == "2025" else "2026-07-28",
        "mcp.server.name": "it",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "server.address": "127.0.0.1",
        "server.port": int(server.url.split(":")[2].split("/")[0]),
        "holdfast.outcome": "ok",
    }
    if era == "2025":
        assert session is not None
        expected["mcp.session.id"] = f"{session[:4]}…"
        assert not seen.says(session)
    assert known == expected


@pytest.mark.promise("observe.traces")
async def test_a_start_that_fails_and_a_call_that_is_repeated_are_seen() -> None:
    with tracing() as seen:
        crashing = CommandTarget(sys.executable, ["-c", "import sys; sys.stderr.write('hunter2'); sys.exit(3)"])
        async with link_to(crashing) as link:
            with pytest.raises(holdfast.Unavailable):
                await link.request("tools/call", tool("echo"))
        async with FaultServer() as server, link_to(server.url) as link:
            await link.request("tools/list")
            server.plan(Fault.STATUS, method="tools/list", status=503)
            await link.request("tools/list")
            with pytest.raises(holdfast.errors.ErrorAnswer):
                await link.request("no/method")
    start = seen.of("INTERNAL", "link start")[0]
    assert start.failed
    assert (start.attributes["error.type"], start.attributes["network.transport"]) == ("ConnectFailed", "pipe")
    assert "start failed" in start.events
    _, repeated = seen.of("CLIENT", "tools/list")
    assert repeated.events == ["replayed"]
    assert repeated.attributes["holdfast.attempts"] == 2
    refused = seen.one("CLIENT", "no/method")
    assert refused.failed
    assert refused.attributes["error.type"] == refused.attributes["rpc.response.status_code"] == "-32601"
    assert not seen.says("hunter2")


@pytest.mark.promise("observe.traces")
async def test_runs_have_the_spans_of_the_client_that_they_replace() -> None:
    with tracing() as seen:
        async with FaultServer() as http:
            server = Server("it", url=http.url, limits=FAST)
            async with holdfast.run():
                with trace.get_tracer("app").start_as_current_span("agent"):
                    await server.list_tools()
                    await server.call_tool("echo", {"text": "argument-value"})
                await server.call_tool("count")
    agent = next(span for span in seen.spans if span.name == "agent")
    names = ("initialize", "tools/list", "tools/call echo")
    below = [seen.one("CLIENT", name) for name in names]
    assert all(agent in seen.above(span) for span in below)
    assert seen.one("CLIENT", "tools/call count").trace != agent.trace
    assert not seen.says("argument-value")


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("by", ["dispatcher", "transport"])
async def test_under_the_sdk_each_request_has_one_client_span(era: Any, by: str) -> None:
    with tracing() as seen:
        async with FaultServer(era=era) as server, link_to(server.url) as link:
            if by == "dispatcher":
                async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
                    await (session.initialize() if era == "2025" else session.discover())
                    await session.list_tools()
                    await session.call_tool("echo", {"text": "hi"})
            else:
                async with Client(LinkTransport(link)) as client:
                    await client.list_tools()
                    await client.call_tool("echo", {"text": "hi"})
    clients = [span for span in seen.spans if span.kind == "CLIENT"]
    kinds = {span.attributes["mcp.method.name"] for span in clients}
    assert kinds >= {"initialize" if era == "2025" else "server/discover", "tools/list", "tools/call"}
    by_parent = {parent_of(meta) for method in ("tools/list", "tools/call") for meta in met(server, method)}
    calls = [span for span in clients if span.attributes["mcp.method.name"] in ("tools/list", "tools/call")]
    assert {span.id for span in calls} == by_parent  # each request has one span, and each span sent a request
    assert {span.scope for span in calls} == {"holdfast" if by == "dispatcher" else "mcp-python-sdk"}
    for span in clients:
        same = [
            each
            for each in seen.above(span)
            if each.attributes.get("mcp.method.name") == span.attributes["mcp.method.name"]
        ]
        assert [each for each in same if each.kind == "CLIENT"] == [span]
    start = seen.one("INTERNAL", "link start")
    assert start.parent == "" or start.parent in {span.id for span in clients}


@pytest.mark.promise("observe.traces")
async def test_the_current_span_is_the_parent_and_another_trace_in_meta_a_link() -> None:
    with tracing() as seen:
        async with FaultServer() as server, link_to(server.url) as link:
            await link.open()
            alone = {**tool("echo"), "_meta": {"traceparent": CONTEXT, "tracestate": "a=b", "baggage": "user=7"}}
            await link.request("tools/call", alone)
            with trace.get_tracer("app").start_as_current_span("agent"):
                await link.request("tools/call", alone)
            for wrong in ("nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", 7):
                await link.request("tools/call", {**tool("echo"), "_meta": {"traceparent": wrong, "baggage": "c=d"}})
    found = seen.of("CLIENT", "tools/call echo")
    agent = next(span for span in seen.spans if span.name == "agent")
    assert (found[0].trace, found[0].parent, found[0].links) == (THEIRS, "b7ad6b7169203331", [])
    assert (found[1].trace, found[1].parent, found[1].links) == (agent.trace, agent.id, ["b7ad6b7169203331"])
    assert all((span.parent, span.links) == ("", []) for span in found[2:])
    sent = met(server, "tools/call")
    assert sent[0]["tracestate"] == "a=b"
    assert [meta["baggage"] for meta in sent] == ["user=7", "user=7", "c=d", "c=d", "c=d"]
    assert [parent_of(meta) for meta in sent] == [span.id for span in found]


@pytest.mark.promise("observe.traces")
async def test_without_a_provider_a_context_passes_through_unchanged() -> None:
    given = {"traceparent": CONTEXT, "tracestate": "a=b", "baggage": "c=d;x"}
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/call", {**tool("echo"), "_meta": given}, headers={"traceparent": CONTEXT})
        other = NonRecordingSpan(SpanContext(0x1234, 0x5678, is_remote=False, trace_flags=TraceFlags(1)))
        with use_span(other):
            await link.request("tools/call", tool("echo"), headers={"traceparent": CONTEXT})
        sent = [request for request in server.requests if request.method == "tools/call"]
    assert met(server, "tools/call")[0] == given
    assert sent[0].headers["traceparent"] == CONTEXT
    # A header names the same parent as `_meta`, where we replace that.
    assert sent[1].headers["traceparent"] == met(server, "tools/call")[1]["traceparent"] != CONTEXT


@pytest.mark.promise("observe.traces")
async def test_many_calls_at_once_have_their_own_parents() -> None:
    async def work(link: holdfast.Link, number: int) -> None:
        with trace.get_tracer("app").start_as_current_span(f"agent {number}"):
            await link.request("tools/call", tool("echo", text=str(number)))

    with tracing() as seen:
        async with FaultServer() as server, link_to(server.url) as link:
            await asyncio.gather(*(work(link, number) for number in range(20)))
    parents: dict[str, Spanned] = {span.id: span for span in seen.spans if span.name.startswith("agent ")}
    assert {span.parent for span in seen.of("CLIENT", "tools/call echo")} == set(parents)
    assert len(seen.of("INTERNAL", "link start")) == 1


@pytest.mark.promise("observe.traces")
def test_a_program_without_opentelemetry_in_use_does_not_import_it() -> None:
    script = (
        "import sys, holdfast.links.trace as t; assert not t.is_tracing(); assert t.traced({'a': 1}) == {'a': 1};"
        "t.add_event('x'); assert t.current() is None; assert 'opentelemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
