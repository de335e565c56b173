"""The lists of a backend: when they are fetched again."""

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import config_of, gateway, in_flight


@pytest.mark.promise("gateway.redeployed")
@pytest.mark.parametrize("how", ["restarted", "another version in 2026", "another version met by a session", "hang up"])
async def test_new_tools_of_a_server_that_was_deployed_anew_are_seen_within_seconds(tmp_path: Path, how: str) -> None:
    async with FaultServer(era="2026" if "2026" in how else "2025") as http:
        every = 600 if how in ("another version met by a session", "hang up") else 0.1
        async with gateway(tmp_path, {"counter": {"url": http.url}}, health={"every": every}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: "counter__count" in gate.table.tools)
            http.sessions.tools = (*http.sessions.tools, "fresh")
            async with RawClient(program.url) as client:
                if how == "restarted":
                    await http.restart()
                elif how == "hang up":
                    await gate.checks.fetch_all()
                else:
                    http.sessions.version = "2"
                    await client.initialize()
                await until(lambda: "counter__fresh" in gate.table.tools, 10)


@pytest.mark.promise("gateway.redeployed")
async def test_a_reload_does_not_join_a_fetch_that_began_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        gate = program.gateway
        assert gate is not None
        backend = gate.backends["counter"]
        await until(lambda: backend.catalogue is not None and gate.checks.done)
        saving, may_end = asyncio.Event(), asyncio.Event()

        async def slow(_: object) -> None:
            saving.set()
            await may_end.wait()

        monkeypatch.setattr(backend.known_lists, "_keep", slow)  # a store that takes its time
        http.sessions.tools = (*http.sessions.tools, "first")
        begun = asyncio.create_task(gate.checks.fetch_all())
        await asyncio.wait_for(saving.wait(), patience(10))
        http.sessions.tools = (*http.sessions.tools, "second")
        reload = asyncio.create_task(gate.checks.fetch_all())
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait_for(asyncio.gather(begun, reload), patience(10))
        assert "counter__second" in gate.table.tools


@pytest.mark.promise("gateway.redeployed")
async def test_a_server_that_stays_what_it_is_is_not_asked_for_its_lists_again(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, health={"every": 0.05}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.checks.done)
            for _ in range(3):
                async with RawClient(program.url) as client:
                    await client.initialize()
            await until(lambda: sum(request.method == "ping" for request in http.requests) >= 3)
            assert sum(request.method == "tools/list" for request in http.requests) == 1


@pytest.mark.promise("gateway.redeployed")
async def test_a_reload_with_another_url_keeps_the_names_until_the_new_server_has_shown_its_own(tmp_path: Path) -> None:
    async with FaultServer() as old, FaultServer() as new, FaultServer() as other:
        new.sessions.tools = ("count", "fresh")
        servers = {"counter": {"url": old.url}, "other": {"url": other.url}}
        settings = {"sessions": {"drain": 60}, "health": {"every": 0.05}}
        async with gateway(tmp_path, servers, **settings) as program, RawClient(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            slow = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: in_flight(gate, "counter") == 1)
            await new.refuse()
            changed = {**servers, "counter": {"url": new.url}}
            reloading = asyncio.create_task(gate.reload(config_of(tmp_path, changed, **settings)))
            await until(lambda: gate.backends["counter"].entry.server.url == new.url)
            assert "counter__count" in await client.tools()  # nobody knows yet what it offers
            await new.listen()
            await until(lambda: "counter__fresh" in gate.table.tools, 20)
            assert not reloading.done()  # a call of the old one is still given its time
            assert "counter__echo" not in await client.tools()
            assert "call again" in (await client.call("counter__count")).text
            assert (await client.call("counter__count")).text == "1"
            assert (await client.call("other__count")).text == "1"
            old.sessions.release.set()
            assert not (await slow).result["isError"]
            await reloading


TALKATIVE = """
import json, pathlib, sys, time
role, go = sys.argv[1], pathlib.Path(sys.argv[2])
def say(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def wait():  # bounded: 20 s
    for _ in range(200):
        if go.exists(): return time.sleep(0.2)
        time.sleep(0.1)
tools = {"tools": [{"name": role, "inputSchema": {"type": "object"}}]}
about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
         "serverInfo": {"name": role, "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    method = asked["method"]
    if method == "notifications/initialized" and role == "talks":
        say({"method": "notifications/tools/list_changed"})
    if "id" not in asked: continue
    if method == "initialize" and role == "late": wait()
    known = {"initialize": about, "tools/list": tools, "ping": {}}
    if method in known: say({"id": asked["id"], "result": known[method]})
    else: say({"id": asked["id"], "error": {"code": -32601, "message": "no"}})
    if method == "tools/list": go.touch()
"""


@pytest.mark.promise("gateway.routing")
async def test_a_server_that_tells_of_changed_lists_at_once_hides_no_slower_one(tmp_path: Path) -> None:
    script = tmp_path / "talkative.py"
    script.write_text(TALKATIVE)
    servers = {
        name: {"command": sys.executable, "args": [str(script), name, str(tmp_path / "go")]}
        for name in ("talks", "late")
    }
    async with gateway(tmp_path, servers, sessions={"start": 20.0}) as program, RawClient(program.url) as client:
        await client.initialize()
        assert sorted(await client.tools()) == ["late__late", "talks__talks"]
