"""What crosses between the eras besides calls: discovery, headers that a tool wants, the end of a call's client."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_program
from tests.gateway.scripted_backend import TOOL, Era, Refusal, Scripted
from tests.gateway.scripted_calls import call_of, ready

NOBODY = "http://127.0.0.1:9/mcp"


@pytest.mark.promise("gateway.steering")
@pytest.mark.parametrize("handles", [True, False])
async def test_discover_answers_while_a_server_is_down(tmp_path: Path, handles: bool) -> None:
    async with Scripted("2026").serving() as backend:
        servers = {"s": backend.entry, "down": {"url": NOBODY}}
        async with gateway(tmp_path, servers, sessions={"start": 0.2, "handles": handles}) as program:
            async with RawClient(program.url) as client:
                await until(lambda: program.gateway is not None and program.gateway.table.tools)
                await until(
                    lambda: program.gateway is not None and program.gateway.backends["down"].health.state == "down"
                )
                found = await client.ask_2026("server/discover")
                assert found.status == 200, found.raw
                assert "2026-07-28" in found.result["supportedVersions"]
                assert "result" in (await client.call_2026("s__t")).last


@pytest.mark.promise("gateway.steering")
async def test_a_server_that_is_down_and_was_pinned_to_2025_still_steers(tmp_path: Path) -> None:
    async with Scripted("2026").serving() as backend:
        servers = {"s": backend.entry, "down": {"url": NOBODY, "era": "2025"}}
        async with gateway(tmp_path, servers, sessions={"start": 0.2}) as program, RawClient(program.url) as client:
            await until(lambda: program.gateway is not None and program.gateway.backends["down"].health.state == "down")
            refused = await client.ask_2026("server/discover")
            assert (refused.status, refused.error["code"]) == (400, -32022)


@pytest.mark.promise("gateway.param-headers")
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_a_refused_header_lists_the_tools_again_and_the_call_is_repeated_once(
    tmp_path: Path, client_era: str
) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    backend = Scripted("2026")

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        backend.results["tools/list"] = {"tools": [{**TOOL, "inputSchema": schema}]}  # deployed again meanwhile
        if "mcp-param-region" not in backend.headers[-1][1]:
            raise Refusal({"code": -32020, "message": "Mcp-Param-Region is missing"})
        return {"content": [{"type": "text", "text": backend.headers[-1][1]["mcp-param-region"]}]}

    backend.results["tools/call"] = answer
    async with backend.serving():
        async with gateway(tmp_path, {"s": backend.entry}) as program, RawClient(program.url) as client:
            headers = await ready(program, client, client_era)
            body = call_of(client_era, arguments={"region": "north"})
            done = await client.send(body, headers=headers)
            assert done.result["content"][0]["text"] == "north"
            assert backend.count("tools/call") == 2
            backend.results["tools/call"] = _always_refused
            refused = await client.send({**body, "id": 8}, headers={**headers, "mcp-param-region": "north"})
            assert refused.error["code"] == (-32020 if client_era == "2026" else -32600), refused.raw
            assert backend.count("tools/call") == 4


def _always_refused(params: dict[str, Any]) -> dict[str, Any]:
    raise Refusal({"code": -32020, "message": "Mcp-Param-Region does not match"})


@pytest.mark.promise("gateway.eras")
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_a_2025_client_gets_structured_output_as_objects_only(tmp_path: Path, client_era: str) -> None:
    backend = Scripted("2026")
    schema = {"type": "array", "items": {"type": "integer"}}
    backend.results["tools/list"] = {"tools": [{**TOOL, "outputSchema": schema}]}
    backend.results["tools/call"] = {"resultType": "complete", "content": [], "structuredContent": [1, 2]}
    async with backend.serving():
        async with gateway(tmp_path, {"s": backend.entry}) as program, RawClient(program.url) as client:
            headers = await ready(program, client, client_era)
            ask = client.ask if client_era == "2025" else client.ask_2026
            tools = {tool["name"]: tool for tool in (await ask("tools/list")).result["tools"]}
            result = (await client.send(call_of(client_era), headers=headers)).result
            if client_era == "2025":
                assert "outputSchema" not in tools["s__t"]
                assert "structuredContent" not in result
                assert result["content"] == [{"type": "text", "text": "[1, 2]"}]
            else:
                assert tools["s__t"]["outputSchema"] == schema
                assert result["structuredContent"] == [1, 2]


@pytest.mark.promise("gateway.hang-up")
@pytest.mark.parametrize("server_era", ["2025", "2026"])
@pytest.mark.parametrize("begun", [False, True], ids=["silent", "streaming"])
@pytest.mark.parametrize("asked", [False, True], ids=["plain", "may-be-asked"])
async def test_a_2026_client_that_hangs_up_cancels_its_call_at_the_server(
    tmp_path: Path, server_era: Era, begun: bool, asked: bool
) -> None:
    backend, gate = Scripted(server_era), asyncio.Event()
    backend.gates["tools/call"] = gate
    limits = {"keep_alive": 0.05 if begun else 60}
    async with backend.serving():
        async with gateway(tmp_path, {"s": backend.entry}, clients=limits) as program, RawClient(program.url) as client:
            headers = await ready(program, client, "2026")
            body = call_of("2026")
            if asked:
                body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {}}
            if begun:
                async with aiohttp.request("POST", program.url, json=body, headers=headers) as response:
                    assert await response.content.readany()
                    response.close()
            else:
                calling = asyncio.create_task(client.send(body, headers=headers))
                await until(lambda: backend.count("tools/call") == 1)
                calling.cancel()
                await asyncio.wait((calling,))
            await until(lambda: backend.open_calls == 0, 10)
            if server_era == "2025":
                await until(lambda: backend.count("notifications/cancelled") == 1, 10)
            front = program.front
            assert front is not None
            await until(lambda: not front.open and not len(front.keep_alive), 10)
            gate.set()


@pytest.mark.promise("gateway.hang-up")
@pytest.mark.parametrize("server_era", ["2025", "2026"])
async def test_a_2025_client_that_hangs_up_cancels_nothing(tmp_path: Path, server_era: Era) -> None:
    backend, gate = Scripted(server_era), asyncio.Event()
    backend.gates["tools/call"] = gate
    async with backend.serving():
        async with gateway(tmp_path, {"s": backend.entry}) as program, RawClient(program.url) as client:
            headers = await ready(program, client, "2025")
            calling = asyncio.create_task(client.send(call_of("2025"), headers=headers))
            await until(lambda: backend.count("tools/call") == 1)
            calling.cancel()
            await asyncio.wait((calling,))
            assert (await client.ask("ping")).result == {}
            assert backend.open_calls == 1
            gate.set()
            await until(lambda: backend.open_calls == 0)
            assert backend.count("notifications/cancelled") == 0
            assert backend.answered == 1


@pytest.mark.promise("gateway.front-2026")
@pytest.mark.parametrize("server", ["http", "program"])
async def test_2026_clients_cost_a_2026_server_one_discover(tmp_path: Path, server: str) -> None:
    log = tmp_path / "log"
    async with Scripted("2026").serving() as backend:
        entry = backend.entry if server == "http" else {**raw_program({"era": "2026", "log": str(log)}), "era": "2026"}
        async with gateway(tmp_path, {"s": entry}, health={"every": 600}) as program:
            for _ in range(2):
                async with RawClient(program.url) as client:
                    await ready(program, client, "2026")
                    for _ in range(3):
                        assert "result" in (await client.call_2026("s__t")).last
            if server == "http":
                assert backend.count("server/discover") == 1
                assert backend.count("tools/call") == 6
            else:
                lines = [json.loads(line)["method"] for line in log.read_text().splitlines()]
                assert lines.count("tools/call") == 6
                assert lines.count("server/discover") == 1


@pytest.mark.promise("gateway.front-2026")
async def test_a_2026_client_over_stdio_costs_a_2026_server_one_discover(tmp_path: Path) -> None:
    async with Scripted("2026").serving() as backend:
        file = tmp_path / "gateway.json"
        file.write_text(json.dumps({"mcpServers": {"s": backend.entry}, "health": {"every": 600}}))
        holdfast = str(Path(sys.executable).parent / "holdfast")
        process = await asyncio.create_subprocess_exec(
            holdfast, "serve", str(file), "--stdio", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for id in range(3):
                process.stdin.write(json.dumps(call_of("2026", id)).encode() + b"\n")
                answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
                assert (answer["id"], "result" in answer) == (id, True), answer
        finally:
            process.stdin.close()
            await process.wait()
        assert backend.count("tools/call") == 3
        assert backend.count("server/discover") == 1


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize("reuse", ["shared", "call"])
async def test_2026_clients_of_a_2025_server_get_log_messages_of_the_level_that_each_call_names(
    tmp_path: Path, reuse: str
) -> None:
    backend = Scripted("2025", logging__setLevel={})
    backend.capabilities["logging"] = {}
    backend.before = [
        {"method": "notifications/message", "params": {"level": level, "data": "x"}} for level in ("debug", "error")
    ]
    async with backend.serving():
        async with gateway(tmp_path, {"s": {**backend.entry, "reuse": reuse}}) as program:
            got: dict[str, list[str]] = {}
            for level in ("info", "debug", "error"):
                async with RawClient(program.url) as client:
                    await ready(program, client, "2026")
                    meta = {"io.modelcontextprotocol/logLevel": level}
                    answer = await client.ask_2026("tools/call", {"name": "s__t", "arguments": {}, "_meta": meta})
                    got[level] = [each["params"]["level"] for each in answer.messages if "method" in each]
            assert got == {"info": ["error"], "debug": ["debug", "error"], "error": ["error"]}
            set_levels = [each["level"] for each in backend.params_of("logging/setLevel")]
            # A session that callers share has the lowest; a session for one call has that call's.
            assert set_levels == (["info", "debug"] if reuse == "shared" else ["info", "debug", "error"])
