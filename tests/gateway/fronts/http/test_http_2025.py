"""The front as 2025 clients see it: statuses, JSON and event streams, resumption, the reverse channel."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

NAME = "counter__"


@pytest.mark.promise("gateway.front-2025")
async def test_a_session_from_initialize_to_delete(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            initialized = await client.initialize()
            assert initialized.status == 200
            assert initialized.result["protocolVersion"] == "2025-11-25"
            assert set(initialized.result["capabilities"]) == {
                "tools",
                "prompts",
                "resources",
                "completions",
                "logging",
            }
            assert [(await client.call("counter__count")).text for _ in range(3)] == ["1", "2", "3"]
            assert (await client.ask("ping")).result == {}
            assert (await client.delete()).status == 204
            gone = await client.call("counter__count")
            assert (gone.status, gone.error["code"]) == (404, -32001)
            assert (await client.delete()).status == 404
        assert http.sessions.deletes == 1
        calls = [request for request in http.requests if request.method == "tools/call"]
        assert len(calls) == 3  # exactly one backend request a call


@pytest.mark.promise("gateway.front-2025")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_every_2025_version_is_spoken(tmp_path: Path, version: str) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            assert (await client.initialize(version=version)).result["protocolVersion"] == version
            assert (await client.ask("ping", mcp_protocol_version=version)).result == {}


@pytest.mark.promise("gateway.front-2025")
async def test_wrong_requests_get_the_status_that_the_specification_names(tmp_path: Path) -> None:
    small = {"port": 0, "max_body": 2048}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, listen=small) as program:
        async with RawClient(program.url) as client:
            ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            missing = await client.send(ping)
            assert (missing.status, missing.error["code"]) == (400, -32600)
            client.session = "nobody-knows-me"
            assert (await client.send(ping)).status == 404
            client.session = None
            await client.initialize()
            good = client.headers()
            for status, body, headers in (
                (415, ping, good | {"content-type": "text/plain"}),
                (406, ping, good | {"accept": "image/png"}),
                (400, b"{not json", good),
                (400, b"\xff\xfe", good),
                (400, [ping], good),
                (400, b"17", good),
                (400, {"id": 1, "method": "ping"}, good),
                (400, {**ping, "id": None}, good),
                (400, {**ping, "id": [1]}, good),
                (400, {**ping, "method": 7}, good),
                (400, {**ping, "params": []}, good),
                (400, {**ping, "params": {"_meta": 3}}, good),
                (413, {**ping, "params": {"x": "x" * 4000}}, good),
                (400, ping, good | {"mcp-protocol-version": "2099-01-01"}),
                (400, {"jsonrpc": "2.0", "id": "x"}, good),
            ):
                answer = await client.send(body, headers=headers)
                assert answer.status == status, (status, body, answer.raw)
                assert "error" in answer.last
            deep = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + b"[" * 900 + b"]" * 900 + b"}}"
            assert (await client.send(deep)).status == 400
            assert (await client.send(b"", "PUT")).status == 405
            assert (await client.send(b"", "GET", good | {"accept": "application/json"})).status == 406
            unknown = await client.ask("no/such/method")
            assert unknown.error["code"] == -32601
            assert (await client.call("nobody__knows")).error["code"] == -32602
            assert (await client.ask("tools/call", {"name": 3})).error["code"] == -32602
            assert (await client.ask("tools/call", {"name": "counter__count", "arguments": 3})).error["code"] == -32602
            assert (await client.ask("tools/list", {"cursor": "bm9uZQ=="})).error["code"] == -32602
            assert (await client.ask("resources/read", {"uri": "nowhere://x"})).error["code"] == -32002
            assert (await client.call("counter__count")).text == "1"  # and it lives


@pytest.mark.promise("gateway.front-2025")
async def test_an_answer_that_comes_too_late_is_taken_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "holdfast.gateway")
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client, RawClient(program.url) as other:
        await client.initialize()
        await other.initialize()
        for late in ({"result": {"action": "accept"}}, {"error": {"code": -1, "message": "no"}}):
            answer = await client.send({"jsonrpc": "2.0", "id": "hf-1-over", **late})
            assert (answer.status, answer.raw) == (202, b"")
        dropped = [record for record in caplog.records if "hf-1-over" in record.getMessage()]
        assert [record.levelname for record in dropped] == ["DEBUG", "DEBUG"]
        for odd in ({"result": {}, "error": {"code": 1, "message": ""}}, {}):
            assert (await client.send({"jsonrpc": "2.0", "id": "x", **odd})).status == 400
        assert (await client.ask("ping")).result == {}


@pytest.mark.promise("gateway.front-2025")
async def test_duplicate_headers_are_refused(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: a\r\n"
            b"mcp-session-id: b\r\ncontent-length: 2\r\n\r\n{}"
        )
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.promise("gateway.front-2025")
async def test_an_answer_is_json_until_something_comes_before_it(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            plain = await client.call("counter__count")
            assert plain.headers["content-type"] == "application/json"
            params = {"name": "counter__progress", "arguments": {"steps": 3}, "_meta": {"progressToken": "mine"}}
            told = await client.ask("tools/call", params)
            assert told.headers["content-type"] == "text/event-stream"
            progress = [message["params"] for message in told.messages[:-1]]
            assert [(each["progressToken"], each["progress"]) for each in progress] == [
                ("mine", 1),
                ("mine", 2),
                ("mine", 3),
            ]
            logged = await client.call("counter__log", text="moss")
            assert logged.messages[0]["method"] == "notifications/message"
            # Whoever takes only one form gets that form.
            only_json = await client.ask("tools/call", params, accept="application/json")
            assert len(only_json.messages) == 1
            only_sse = await client.ask("ping", accept="text/event-stream")
            assert only_sse.headers["content-type"] == "text/event-stream"
            assert only_sse.result == {}


@pytest.mark.promise("gateway.reverse")
@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_a_backend_asks_the_client_on_the_calls_own_stream(tmp_path: Path, kind: str) -> None:
    program_file = Path(__file__).parents[2] / "asking_server.py"
    stdio = {"command": sys.executable, "args": [str(program_file)], "era": "2025"}
    async with FaultServer(answers="sse") as http:
        servers = {"counter": {"url": http.url} if kind == "http" else stdio}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize({"elicitation": {}, "roots": {}})
            body = {
                "jsonrpc": "2.0",
                "id": 9,
                "method": "tools/call",
                "params": {"name": "counter__ask", "arguments": {}},
            }
            async with client.stream("POST", body) as events:
                question = await events.next(20)
                assert question["method"] == "elicitation/create"
                answer = {
                    "jsonrpc": "2.0",
                    "id": question["id"],
                    "result": {"action": "accept", "content": {"a": "moss"}},
                }
                assert (await client.send(answer)).status == 202
                assert (await client.send(answer)).status == 202  # the second is dropped
                result = await events.next(20)
                assert "moss" in str(result["result"])
        if kind == "http":
            initialized = [request.message for request in http.requests if request.method == "initialize"]
            assert any(
                message is not None and set(message["params"]["capabilities"]) == {"elicitation", "roots"}
                for message in initialized
            )


@pytest.mark.promise("gateway.reverse")
async def test_a_client_that_can_not_be_asked_is_not_asked(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            assert "-32601" in (await client.call("counter__ask")).text


@pytest.mark.promise("gateway.front-2025")
async def test_a_broken_answer_stream_is_resumed(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize({"elicitation": {}})
            body = {
                "jsonrpc": "2.0",
                "id": 9,
                "method": "tools/call",
                "params": {"name": "counter__ask", "arguments": {}},
            }
            async with client.stream("POST", body) as events:
                asked = await events.event()
            # The connection is gone; the call is not, and neither is its answer.
            import json

            question = json.loads(asked.data)
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
            assert (await client.send(answer)).status == 202
            async with client.stream(last_event_id=asked.id) as again:
                assert "decline" in str((await again.next())["result"])
            assert http.effects == {}


@pytest.mark.promise("gateway.front-2025")
@pytest.mark.parametrize("reason", ["the person left", None])
async def test_a_cancelled_call_is_cancelled_at_its_backend(tmp_path: Path, reason: str | None) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            waiting = asyncio.create_task(
                client.send({"jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": {"name": "counter__wait"}})
            )
            await until(lambda: any(request.method == "tools/call" for request in http.requests))
            params = {"requestId": "w", **({"reason": reason} if reason is not None else {})}
            note = {"method": "notifications/cancelled", "params": params}
            assert (await client.send({"jsonrpc": "2.0", **note})).status == 202
            assert (await waiting).error["message"] == "Request cancelled"
            await until(lambda: http.sessions.cancelled)
            (cancelled,) = [r.message for r in http.requests if (r.message or {}).get("method") == note["method"]]
            assert cancelled is not None
            assert cancelled["params"]["reason"] == (reason or "the caller was cancelled")
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.front-2025")
async def test_a_newer_stream_takes_over_and_hears_what_the_older_missed(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            assert program.gateway is not None
            session = next(iter(program.gateway.sessions.live.values()))
            async with client.stream() as first:
                await until(lambda: session.notices.is_read)
                session.notices.push({"method": "notifications/message", "params": {"data": 1}})
                heard = await first.event()
                async with client.stream(last_event_id=heard.id) as second:
                    session.notices.push({"method": "notifications/message", "params": {"data": 2}})
                    assert (await second.next())["params"] == {"data": 2}
                    with pytest.raises(EOFError):
                        await first.next()


@pytest.mark.promise("gateway.front-2025")
async def test_health_and_readiness(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url.replace("/mcp", "/healthz")) as client:
            assert (await client.send(b"", "GET")).status == 200
            client.url = program.url.replace("/mcp", "/readyz")
            async with asyncio.timeout(patience(20)):
                while (await client.send(b"", "GET")).status != 200:  # the server behind it is still coming up
                    await asyncio.sleep(0.01)
            client.url = program.url.replace("/mcp", "/elsewhere")
            assert (await client.send(b"", "GET")).status == 404
            assert program.gateway is not None
            await program.gateway.drain()
            client.url = program.url.replace("/mcp", "/readyz")
            assert (await client.send(b"", "GET")).status == 503
            client.url = program.url
            refused = await client.initialize()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")


@pytest.mark.promise("gateway.front-2025")
async def test_the_endpoint_with_a_slash_behind_it_is_the_same(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(f"{program.url}/") as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            assert (await client.delete()).status == 204


@pytest.mark.promise("gateway.callers")
async def test_a_web_page_of_an_allowed_origin_may_call(tmp_path: Path) -> None:
    listen = {"port": 0, "origins": ["https://app.example"]}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, listen=listen) as program:
        async with RawClient(program.url) as client:
            asked = {"origin": "https://app.example", "access-control-request-headers": "mcp-session-id"}
            preflight = await client.send(b"", "OPTIONS", asked)
            assert preflight.status == 204
            assert preflight.headers["access-control-allow-headers"] == "mcp-session-id"
            assert (await client.send(b"", "OPTIONS", {"origin": "https://evil.example"})).status == 403
            await client.initialize()
            answer = await client.ask("ping", origin="https://app.example")
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
