"""Another configuration while the gateway runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, config_of, gateway


@pytest.mark.promise("gateway.program")
async def test_a_sighup_and_an_edited_file_change_the_servers_and_keep_the_sessions(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http, FaultServer() as other:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with RawClient(await process.start(store)) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            process.file.write_text(
                json.dumps({"mcpServers": {"counter": {"url": http.url}, "more": {"url": other.url}}})
            )
            process.hup()

            async def has(name: str) -> bool:
                return name in await client.tools()

            async with asyncio.timeout(patience(15)):
                while not await has("more__count"):
                    await asyncio.sleep(0.05)
            assert (await client.call("counter__count")).text == "2"
            assert (await client.call("more__count")).text == "1"
            # A mistake changes nothing.
            process.file.write_text('{"mcpServers": {"counter": {"urll": "x"}}}')
            process.hup()
            assert (await client.call("more__count")).text == "2"
            process.file.write_text(json.dumps({"mcpServers": {"counter": {"url": http.url}}}))
            async with asyncio.timeout(patience(15)):  # found by itself
                while await has("more__count"):
                    await asyncio.sleep(0.05)
            assert (await client.call("counter__count")).text == "3"
            assert (await client.call("more__count")).error["code"] == -32602
        await process.stop()


@pytest.mark.promise("gateway.program")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
async def test_a_reload_with_the_same_url_keeps_sessions_and_calls(tmp_path: Path, reuse: str) -> None:
    token, digest = new_token()
    settings: dict[str, Any] = {
        "auth": {"tokens": [{"hash": digest, "principal": "alice"}]},
        "sessions": {"drain": 60},
    }
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": reuse}}
        async with gateway(tmp_path, servers, **settings) as program, RawClient(program.url, token) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            slow = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: sum(request.method == "tools/call" for request in http.requests) == 2)
            changed = {"counter": {"url": http.url, "reuse": reuse, "timeout": 77}}
            reloading = asyncio.create_task(gate.reload(config_of(tmp_path, changed, **settings)))
            await until(lambda: gate.backends["counter"].entry.server.timeout == 77)
            assert (await client.call("counter__count")).text == "2"
            assert not reloading.done()
            http.sessions.release.set()
            assert not (await slow).result["isError"]
            await reloading
            assert (await client.call("counter__count")).text == "3"


@pytest.mark.promise("gateway.program")
async def test_a_reload_of_policy_keeps_sessions_and_calls(tmp_path: Path) -> None:
    async with FaultServer() as http, FaultServer() as other:
        one = {"counter": {"url": http.url}}
        async with gateway(tmp_path, one) as program, RawClient(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            waiting = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: any(session.calls for session in gate.sessions.live.values()))
            changed = {"more": {"url": other.url}, "counter": {"url": http.url, "descriptions": {"count": "Count!"}}}
            await gate.reload(config_of(tmp_path, changed))
            assert (await client.call("counter__count")).text == "2"
            http.sessions.release.set()
            assert not (await waiting).result["isError"]
            tools = (await client.ask("tools/list")).result["tools"]
            assert next(tool for tool in tools if tool["name"] == "counter__count")["description"] == "Count!"
            # Another server under the same name: its old state is gone, and that is told.
            await gate.reload(config_of(tmp_path, {"counter": {"url": other.url}}))
            assert "call again" in (await client.call("counter__count")).text
            assert (await client.call("counter__count")).text == "1"
        assert http.sessions.deletes >= 1


@pytest.mark.promise("gateway.program")
async def test_a_reload_while_a_session_begins_leaves_it_on_no_old_server(tmp_path: Path) -> None:
    async with FaultServer() as old, FaultServer() as new:
        async with gateway(tmp_path, {"a": {"url": old.url}}, sessions={"start": 10}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.table.tools)
            async with RawClient(program.url) as client:
                from holdfast.testing import Fault

                old.plan(Fault.HANG, method="initialize")
                handshakes = sum(request.method == "initialize" for request in old.requests)
                beginning = asyncio.create_task(client.initialize())
                await until(lambda: sum(request.method == "initialize" for request in old.requests) > handshakes)
                await gate.reload(config_of(tmp_path, {"a": {"url": new.url}}, sessions={"start": 10}))
                await beginning
                before = sum(request.method == "tools/call" for request in old.requests)
                texts = [(await client.call("a__count")).text for _ in range(3)]
                assert texts[-1].isdigit()
                assert sum(request.method == "tools/call" for request in old.requests) == before
