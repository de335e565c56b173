"""Spans of a gateway, at a real collector: one trace from a session's start to its first call, and what is in none."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.fronts.test_stdio import HELLO, META_2026, served
from tests.gateway.gateways import gateway
from tests.links.test_trace import CONTEXT, THEIRS, met, parent_of
from tests.sinks.collector import Collector, Spanned, collecting, tracing

OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def calls_of(seen: Collector, tool: str = "b__count") -> list[Spanned]:
    return seen.of("SERVER", f"tools/call {tool}")


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("program", [False, True])
async def test_one_trace_covers_session_start_backend_start_and_first_call(tmp_path: Path, program: bool) -> None:
    with collecting() as (seen, url):
        async with FaultServer() as http:
            entry: dict[str, Any] = {"url": http.url}
            if program:
                entry = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}
            settings = {"observe": {"traces": {"endpoint": url}}}
            tool = "b__list_notes" if program else "b__count"
            async with (
                gateway(tmp_path, {"b": entry}, **settings) as running,
                RawClient(running.url) as client,
            ):
                assert running.gateway is not None
                gate = running.gateway
                await until(lambda: gate.table.tools, 20)
                tool = next(iter(gate.table.tools)) if program else tool
                await client.initialize()
                for _ in range(2):
                    await client.call(tool)
                assert client.session is not None
                session, [live] = client.session, gate.sessions.live.values()
                key = live.key
    hello = seen.one("SERVER", "initialize")
    first, second = calls_of(seen, tool)
    begun = seen.one("INTERNAL", "session start")
    [start] = [span for span in seen.of("INTERNAL", "link start") if span.trace == hello.trace]
    [greet] = [span for span in seen.of("CLIENT", "initialize") if span.trace == hello.trace]
    assert [span.id for span in seen.above(greet)] == [greet.id, start.id, begun.id, hello.id]
    assert first.parent == begun.id
    assert "opened" in start.events
    sent = [span for span in seen.spans if span.kind == "CLIENT" and span.parent in (first.id, second.id)]
    assert [span.parent for span in sent] == [first.id, second.id]
    assert (second.trace != hello.trace, second.parent, second.links) == (True, "", [])
    assert {span.name for span in seen.spans if span.trace == second.trace} == {second.name, sent[1].name}
    assert first.attributes["mcp.session.id"] == begun.attributes["mcp.session.id"] == key
    assert first.attributes["client.address"] == "127.0.0.1"
    assert first.attributes["mcp.protocol.version"] == "2025-11-25"
    assert first.attributes["holdfast.backend"] == "b"
    assert not seen.says(session)
    for known in seen.resources:
        assert known["service.name"] == "holdfast"
        assert "process.pid" in known
        assert not any("command" in name for name in known)


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("carried_by", ["meta", "headers", "both"])
async def test_a_clients_context_goes_through_to_the_server(tmp_path: Path, era: str, carried_by: str) -> None:
    headers = {"traceparent": OTHER if carried_by == "both" else CONTEXT, "tracestate": "a=b", "baggage": "c=d"}
    meta = {"_meta": {"traceparent": CONTEXT, "tracestate": "a=b", "baggage": "c=d"}}
    params = {"name": "b__count", "arguments": {}} | (meta if carried_by != "headers" else {})
    with tracing() as seen:
        async with (
            FaultServer() as http,
            gateway(tmp_path, {"b": {"url": http.url}}, sessions={"steer": False}) as running,
            RawClient(running.url) as client,
        ):
            assert running.gateway is not None
            gate = running.gateway
            await until(lambda: gate.table.tools, 20)
            if era == "2025":
                await client.initialize()
            ask = client.ask if era == "2025" else client.ask_2026
            assert "result" in (await ask("tools/call", params, **(headers if carried_by != "meta" else {}))).last
    call = calls_of(seen)[0]
    assert (call.trace, call.parent) == (THEIRS, CONTEXT.split("-")[2])
    begun = [span.id for span in seen.of("INTERNAL", "session start")]
    assert call.links == ([OTHER.split("-")[2]] if carried_by == "both" else []) + begun
    [sent] = [span for span in seen.spans if span.parent == call.id and span.kind == "CLIENT"]
    [given] = met(http, "tools/call")
    assert (given["traceparent"].split("-")[1], parent_of(given)) == (THEIRS, sent.id)
    assert (given["tracestate"], given["baggage"]) == ("a=b", "c=d")
    [request] = [request for request in http.requests if request.method == "tools/call"]
    if carried_by != "meta":
        assert request.headers["traceparent"] == given["traceparent"]


@pytest.mark.promise("observe.traces")
async def test_a_batch_a_discover_a_listen_and_refusals_have_spans(tmp_path: Path) -> None:
    with tracing() as seen:
        async with (
            FaultServer() as http,
            gateway(tmp_path, {"b": {"url": http.url}}, sessions={"steer": False}) as running,
            RawClient(running.url) as client,
        ):
            assert running.gateway is not None
            gate = running.gateway
            await until(lambda: gate.table.tools, 20)
            await client.initialize(version="2025-03-26")
            call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "b__count", "arguments": {}}}
            await client.send([{**call, "id": 1}, {**call, "id": 2}])
            http.plan(Fault.STATUS, method="tools/call", status=404)
            await client.call("ghost__tool")
            client.session = None
            await client.ask_2026("server/discover")
            listen = {
                "jsonrpc": "2.0",
                "id": 9,
                "method": "subscriptions/listen",
                "params": {"notifications": {"toolsListChanged": True}, "_meta": META_2026},
            }
            named = {"mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
            async with client.stream("POST", listen, **named) as events:
                await events.next()
    batched = calls_of(seen)
    assert sorted(span.attributes["jsonrpc.request.id"] for span in batched) == ["1", "2"]
    assert sorted(span.parent != "" for span in batched) == [False, True]  # one of them is the first
    ghost = seen.one("SERVER", "tools/call ghost__tool")
    assert (ghost.failed, ghost.attributes["holdfast.outcome"]) == (True, "refused")
    assert ghost.attributes["error.type"] == ghost.attributes["rpc.response.status_code"]
    assert seen.one("SERVER", "server/discover").attributes["mcp.protocol.version"] == "2026-07-28"
    assert len(seen.of("SERVER", "subscriptions/listen")) == 1


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("at_once", [False, True])
async def test_over_stdio_the_first_call_is_shown_with_the_start(tmp_path: Path, at_once: bool) -> None:
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "b__count", "arguments": {}}}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    with tracing() as seen:
        async with FaultServer() as http, served(tmp_path, {"b": {"url": http.url}}, hello=None) as client:
            if at_once:
                client.write(hello, {**call, "id": 1})
            else:
                client.write(hello)
                await until(lambda: client.has(0))
                client.write({**call, "id": 1})
            await until(lambda: client.has(1))
            client.write({**call, "id": 2}, {**call, "id": 3, "params": {**call["params"], "_meta": META_2026}})  # type: ignore[dict-item]
            await until(lambda: client.has(2) and client.has(3))
    begun = seen.one("INTERNAL", "session start")
    first, *later = sorted(calls_of(seen), key=lambda span: span.attributes["jsonrpc.request.id"])
    assert first.attributes["network.transport"] == "pipe"
    if at_once:  # its span begins before the session does
        assert (first.parent, first.links) == ("", [begun.id])
    else:
        assert (first.parent, first.links) == (begun.id, [])
    assert [(span.parent, span.links) for span in later] == [("", []), ("", [])]
    assert all("client.address" not in span.attributes for span in seen.spans)


@pytest.mark.promise("observe.traces")
async def test_a_session_that_a_header_names_starts_in_its_first_requests_trace(tmp_path: Path) -> None:
    with tracing() as seen:
        async with (
            FaultServer(era="2025") as http,
            gateway(tmp_path, {"b": {"url": http.url}}, sessions={"header": "X-Chat", "steer": False}) as running,
            RawClient(running.url) as client,
        ):
            assert running.gateway is not None
            gate = running.gateway
            await until(lambda: gate.table.tools, 20)
            params = {"name": "b__count", "arguments": {}, "_meta": {"traceparent": CONTEXT}}
            await client.ask_2026("tools/call", params, x_chat="secret-header-value")
            await client.ask_2026("tools/call", {"name": "b__count", "arguments": {}}, x_chat="secret-header-value")
            await client.ask_2026("tools/call", {"name": "b__count", "arguments": {}}, x_chat="another-chat")
    theirs, ours = seen.of("INTERNAL", "session start")
    first, second, third = calls_of(seen)
    assert theirs.trace == first.trace == THEIRS
    assert (second.parent, second.links) == ("", [])
    assert (third.parent, third.trace) == (ours.id, ours.trace)
    assert not seen.says("secret-header-value")


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_nothing_secret_is_exported(tmp_path: Path, era: str) -> None:
    token, hashed = new_token()
    secrets = [token, "argument-value", "environment-value", "server-key", "path-secret", "meta-value", "pass-word"]
    with collecting() as (seen, url):
        async with FaultServer() as http:
            port = http.url.split(":")[2].split("/")[0]
            servers: dict[str, Any] = {
                "b": {"url": http.url, "headers": {"authorization": "Bearer server-key"}},
                "gone": {"url": f"http://127.0.0.1:{port}/path-secret?key=pass-word"},
                "p": {
                    "command": sys.executable,
                    "args": ["-c", "0", "argument-value"],
                    "env": {"A": "environment-value"},
                },
            }
            settings: dict[str, Any] = {
                "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]},
                "observe": {"traces": {"endpoint": url, "metrics": True}},
                "sessions": {"steer": False, "start": 1},
            }
            async with gateway(tmp_path, servers, **settings) as running, RawClient(running.url, token) as client:
                assert running.gateway is not None
                gate = running.gateway
                await until(lambda: gate.table.tools, 20)
                if era == "2025":
                    await client.initialize()
                ask = client.ask if era == "2025" else client.ask_2026
                params = {"name": "b__echo", "arguments": {"text": "argument-value"}, "_meta": {"x": "meta-value"}}
                await ask("tools/call", params)
                http.plan(Fault.STATUS, method="tools/call", status=500)
                await ask("tools/call", params)
                await ask("resources/read", {"uri": "file:///argument-value"})
                secrets += [session for session in (client.session, *http.sessions.sessions) if session]
    assert seen.spans
    assert "mcp.server.operation.duration" in seen.metrics
    assert [secret for secret in secrets if seen.says(secret)] == []
    assert not seen.says("alice")


@pytest.mark.promise("observe.traces")
@pytest.mark.parametrize("collector", ["hangs", "is down"])
async def test_a_collector_that_is_not_there_delays_no_call(
    tmp_path: Path, collector: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.sinks.traces.CLOSE_SECONDS", 0.3)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with collecting(hangs=collector == "hangs") as (seen, url):
        target = url if collector == "hangs" else "http://127.0.0.1:9"
        async with FaultServer() as http:
            began = None
            settings = {"observe": {"traces": {"endpoint": target}}}
            async with gateway(tmp_path, {"b": {"url": http.url}}, **settings) as running:
                async with RawClient(running.url) as client:
                    await client.initialize()
                    await client.call("b__count")
                    if collector == "hangs":
                        await asyncio.to_thread(seen.asked.wait, patience(20))
                    else:
                        await until(lambda: "can't be sent" in caplog.text, 20)
                    took = time.monotonic()
                    for _ in range(50):
                        await client.call("b__count")
                    assert time.monotonic() - took < patience(5)  # one attempt to send takes as long
                began = time.monotonic()
            assert time.monotonic() - began < patience(5)
            seen.released.set()
    told = [record for record in caplog.records if "can't be sent" in record.message]
    assert len(told) <= 1
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert json.dumps([record.message for record in told]).count("hft_") == 0
