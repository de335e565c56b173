"""Backends that hang, refuse or fail: what callers and operators see of it."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import SYSTEM, ManualClock
from holdfast.core.lifecycle import CircuitState
from holdfast.core.models import Principal
from holdfast.core.values import members
from holdfast.errors import CircuitOpen, ConnectFailed, Rejected
from holdfast.events import BackendChanged, BackendFailed, Event
from holdfast.gateway.auth import new_token
from holdfast.gateway.backends.health import BackendHealth
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.links.lifecycle.peer import peer_of
from holdfast.testing import Fault, FaultServer, Refusal, Request
from tests.deadlines import patience, until
from tests.gateway.backends.lists.test_caller_lists import TenantServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, config_of, gateway


@pytest.mark.promise("gateway.start")
async def test_one_hangs_one_refuses_one_works(tmp_path: Path) -> None:
    async with FaultServer() as hangs, FaultServer() as refuses, FaultServer() as works:
        hangs.plan(Fault.HANG, times=1000)
        await refuses.refuse()
        servers = {"hangs": {"url": hangs.url}, "refuses": {"url": refuses.url}, "works": {"url": works.url}}
        async with gateway(tmp_path, servers, sessions={"start": 1.0}) as program, RawClient(program.url) as client:
            began = time.monotonic()
            assert (await client.initialize()).status == 200
            assert time.monotonic() - began < 1.5
            assert (await client.call("works__count")).text == "1"
            assert program.gateway is not None
            names = await client.tools()
            assert {name.split("__")[0] for name in names} == {"works"}
            async with client.stream() as events:
                await refuses.listen()
                backend = program.gateway.backends["refuses"]
                backend.health.next_try = 0.0
                await backend.check()
                assert (await events.next())["method"] == "notifications/tools/list_changed"
            assert (await client.call("refuses__count")).text == "1"
            assert (await client.call("works__count")).text == "2"


@pytest.mark.promise("gateway.start")
async def test_with_all_down_a_session_still_opens_and_the_error_names_the_backend(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store) as program:
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
        await http.refuse()
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            assert (await client.initialize()).status == 200
            assert "counter__count" in await client.tools()  # as the store remembers it
            down = await client.call("counter__count")
            assert down.result["isError"]
            assert down.text.startswith("NoBackend: 'counter' is not running; nothing was executed")
            assert program.gateway is not None
            shown = program.gateway.describe()["backends"]["counter"]
            assert shown["state"] == "down"
            assert shown["why"]
            fields = down.result["_meta"]["dev.holdfast/error"]
            assert fields["family"] == "Unavailable"
            assert fields["kind"] == "NoBackend"
            await http.listen()

            async with asyncio.timeout(patience(20)):
                while "down" in (text := (await client.call("counter__count")).text):
                    await asyncio.sleep(0.05)
            assert text == "1"


@pytest.mark.promise("link.handshake-failed")
async def test_a_handshake_that_fails_is_told_as_nothing_executed(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        assert program.gateway is not None
        await until(lambda: program.gateway is not None and program.gateway.table.tools)
        http.plan(Fault.STATUS, status=502, body=b"<html>bad gateway", times=1000)
        async with RawClient(program.url) as client:
            assert (await client.initialize()).status == 200
            refused = await client.call("counter__count")
            assert refused.result["isError"]
            assert refused.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
            assert "may have been executed" not in refused.text
            http.lift()


@pytest.mark.promise("gateway.program")
async def test_a_backend_that_fails_is_logged_once_a_change_and_shown_to_operators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.gateway")
    url = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http, FaultServer() as hangs:
        servers = {"counter": {"url": http.url}, "hangs": {"url": hangs.url}}
        async with gateway(tmp_path, servers, store=url, health={"every": 0.05}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.checks.done)
            hangs.plan(Fault.HANG, times=1000)  # must not hold up the news of the other

            async def shown(state: str) -> dict[str, Any]:
                async with asyncio.timeout(patience(10)):
                    while True:
                        record = await gate.store.get(PROCESSES, gate.sessions.owner)
                        assert record is not None
                        found = members(members(record.data)["backends"])["counter"]
                        if found["state"] == state:
                            return found
                        await asyncio.sleep(0.02)

            await shown("up")
            await http.refuse()
            assert "could not be reached" in (await shown("down"))["why"]
            backend = gate.backends["counter"]
            for _ in range(3):
                backend.health.next_try = 0.0
                await backend.check()
            said = [r for r in caplog.records if r.levelname == "WARNING" and "'counter'" in r.getMessage()]
            assert len(said) == 1, [r.getMessage() for r in said]
            caplog.clear()
            await http.listen()
            backend.health.next_try = 0.0
            await shown("up")
            assert [r.getMessage() for r in caplog.records if "'counter'" in r.getMessage()] == [
                "backend 'counter' is up again"
            ]
            hangs.lift()


@pytest.mark.promise("gateway.circuit")
@pytest.mark.parametrize("fault", [Fault.STATUS, Fault.CLOSE])
async def test_a_tool_that_fails_takes_its_server_from_nobody_and_a_transport_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "circuit": 3}}
        async with gateway(tmp_path, servers, health={"every": 600}) as program:
            gate = program.gateway
            assert gate is not None
            async with RawClient(program.url) as one, RawClient(program.url) as other:
                for client in (one, other):
                    await client.initialize()
                    assert (await client.call("counter__count")).text == "1"
                circuit = peer_of(gate.backends["counter"].entry.server.target, 3).circuit
                assert circuit.threshold == 3
                circuit.spacing = 0.0
                http.plan(fault, method="tools/call", times=5)
                for _ in range(5):
                    await one.call("counter__echo")
                seen = await other.call("counter__count")
                if fault is Fault.STATUS:
                    assert seen.text == "2"
                else:
                    assert seen.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"


@pytest.mark.promise("gateway.start")
def test_health_moves_by_what_calls_and_checks_have_shown() -> None:
    events: list[Event] = []
    changes: list[str] = []
    clock = ManualClock()
    health = BackendHealth("b", clock, emit=events.append, on_change=lambda: changes.append("changed"))
    assert not health.resting
    clock.advance(5)
    health.note(ConnectFailed("it refused"))
    assert (health.state, health.since, health.why) == ("down", clock.now(), "it refused")
    assert health.resting
    assert "'b' is down since" in health.unavailable().what
    health.note(ConnectFailed("it refused"))
    health.note(None)
    assert (health.state, health.why, health.resting) == ("up", None, False)
    assert len(changes) == 2
    assert [type(event) for event in events] == [BackendFailed, BackendChanged, BackendFailed, BackendChanged]


@pytest.mark.promise("gateway.backend-state")
def test_a_callers_failure_is_logged_once_until_that_caller_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    health = BackendHealth("b", ManualClock(), emit=lambda _: None, on_change=lambda: None)
    refused = Rejected("no such user", server="b", status=401)
    alice, bob = Principal("alice"), Principal("bob")

    def fail() -> int:
        health.note_refusal(refused, None, alice, shows_up=True)
        health.failures.add(refused, alice)  # as the answer to the call is reported
        return len([record for record in caplog.records if "no such user" in record.getMessage()])

    assert fail() == 1
    for _ in range(3):
        health.note(None, caller=bob)
        assert fail() == 1
    health.note(None, caller=alice)
    assert fail() == 2
    health.note_refusal(refused, None, bob, shows_up=True)
    assert fail() == 3  # bob's is logged, too, and alice's not again


COUNT = {"name": "t__count", "arguments": {}}


def tokens_of(*names: str) -> tuple[dict[str, str], dict[str, Any]]:
    made = {name: new_token() for name in names}
    auth = {"tokens": [{"hash": hashed, "principal": name} for name, (_, hashed) in made.items()]}
    return {name: token for name, (token, _) in made.items()}, auth


async def is_ready(url: str) -> bool:
    async with RawClient(url.replace("/mcp", "/readyz")) as probe:
        return (await probe.send(b"", "GET")).status == 200


@pytest.mark.promise("gateway.backend-state")
@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_one_callers_refused_header_takes_the_server_from_nobody(tmp_path: Path, status: int) -> None:
    class Server(TenantServer):
        def _write(self, writer: Any, code: int, *args: Any, **kwargs: Any) -> bool:
            return super()._write(writer, status if code == 401 else code, *args, **kwargs)

    tokens, auth = tokens_of("mallory", "bob")
    async with Server(era="2025") as http:
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"], "era": "2025"}}
        async with gateway(tmp_path, servers, auth=auth) as program:
            backend = program.gateway.backends["t"]  # type: ignore[union-attr]
            async with (
                RawClient(program.url, tokens["mallory"]) as mallory,
                RawClient(program.url, tokens["bob"]) as bob,
            ):
                for number in range(5):
                    mallory.session = None
                    await mallory.initialize()
                    listed = await mallory.ask("tools/list", x_tenant=f"wrong-{number}")
                    assert listed.result["tools"] == []
                    assert backend.health.state != "down"
                assert peer_of(backend.entry.server.target, caller="mallory").circuit.failures == 0
                assert await is_ready(program.url)
                await bob.initialize()
                listed = await bob.ask("tools/list", x_tenant="moss")
                assert [tool["name"] for tool in listed.result["tools"]] == ["t__count", "t__echo"]
                assert (await bob.ask("tools/call", COUNT, x_tenant="moss")).text == "1"
                assert backend.health.state == "up"


class Fragile(FaultServer):
    """Takes `x-tenant: crash` in one bad way, every other request as usual."""

    def __init__(self, way: str, era: str) -> None:
        super().__init__(era=era)  # type: ignore[arg-type]
        self.way = way

    async def intercept(self, request: Request) -> Refusal | None:
        if request.headers.get("x-tenant") != "crash":
            return None
        if self.way == "close":
            self.plan(Fault.CLOSE)
        return Refusal("crash", 502) if self.way == "502" else None


@pytest.mark.promise("gateway.circuit")
@pytest.mark.parametrize("way", ["close", "502"])
@pytest.mark.parametrize("begun", ["session", "handshake", "2026"])
async def test_one_callers_header_that_makes_the_server_fail_takes_it_from_nobody(
    tmp_path: Path, way: str, begun: str
) -> None:
    tokens, auth = tokens_of("mallory", "bob")
    async with Fragile(way, "2026" if begun == "2026" else "2025") as http:
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"], "circuit": 3}}
        async with gateway(tmp_path, servers, auth=auth, health={"every": 600}) as program:
            gate = program.gateway
            assert gate is not None
            backend = gate.backends["t"]
            target = backend.entry.server.target
            circuits = [peer_of(target, 3, caller) for caller in ("mallory", "bob", None)]
            for peer in circuits:
                peer.circuit.spacing, peer.circuit.rest = 0.0, 600.0
            async with (
                RawClient(program.url, tokens["mallory"]) as mallory,
                RawClient(program.url, tokens["bob"]) as bob,
            ):
                if begun != "2026":
                    await mallory.initialize()
                    await bob.initialize()
                asks = (mallory.ask_2026, bob.ask_2026) if begun == "2026" else (mallory.ask, bob.ask)
                assert (await asks[1]("tools/call", COUNT, x_tenant="moss")).text == ("" if begun == "2026" else "1")
                if begun == "session":
                    assert (await mallory.ask("tools/call", COUNT, x_tenant="moss")).text == "1"
                for number in range(6):
                    if begun == "handshake":
                        mallory.session = None
                        await mallory.initialize()
                    refused = (await asks[0]("tools/call", COUNT, x_tenant="crash")).result
                    assert refused["isError"], number
                    assert backend.health.state == "up"
                assert refused["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
                assert [peer.circuit.failures > 0 for peer in circuits] == [True, False, False]
                assert circuits[0].circuit.state is CircuitState.OPEN
                assert (await asks[1]("tools/call", COUNT, x_tenant="moss")).text == ("" if begun == "2026" else "2")
                if begun != "2026":
                    bob.session = None
                    await bob.initialize()
                    assert (await bob.ask("tools/call", COUNT, x_tenant="moss")).text == "1"
                assert await is_ready(program.url)


@pytest.mark.promise("gateway.backend-state")
async def test_a_server_with_passed_headers_that_was_away_is_not_down_for_good(tmp_path: Path) -> None:
    async with TenantServer(era="2025") as http:
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"], "era": "2025"}}
        async with gateway(tmp_path, servers, health={"every": 0.2}) as program, RawClient(program.url) as client:
            backend = program.gateway.backends["t"]  # type: ignore[union-attr]
            await client.initialize()
            await http.refuse()
            assert (await client.ask("tools/list", x_tenant="moss")).result["tools"] == []
            await until(lambda: backend.health.state == "down")
            await http.listen()
            await until(
                lambda: backend.health.state == "unknown", 20
            )  # its pause is over: the next call says how it is
            assert await is_ready(program.url)
            listed = await client.ask("tools/list", x_tenant="moss")
            assert [tool["name"] for tool in listed.result["tools"]] == ["t__count", "t__echo"]
            assert backend.health.state == "up"


PICKY = """
import json, sys
def say(id, **rest):
    print(json.dumps({"jsonrpc": "2.0", "id": id, **rest}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        if message["params"]["clientInfo"]["name"] == "evil":
            say(id, error={"code": -32602, "message": "no such client"})
            continue
        info = {"name": "picky", "version": "1"}
        say(id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        say(id, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif id is not None:
        say(id, result={"content": [{"type": "text", "text": "ok"}]})
"""


@pytest.mark.promise("gateway.backend-state")
async def test_a_program_that_refuses_one_client_is_up_for_others(tmp_path: Path) -> None:
    file = tmp_path / "picky.py"
    file.write_text(PICKY)
    servers = {"picky": {"command": sys.executable, "args": [str(file)], "era": "2025"}}
    async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and gate.backends["picky"].health.state == "up", 20)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "evil", "version": "1"}}
        for _ in range(4):
            await client.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert gate.backends["picky"].health.state == "up"
        assert await is_ready(program.url)
        await client.initialize()
        assert (await client.call("picky__t")).text == "ok"


@pytest.mark.promise("gateway.backend-state")
async def test_a_check_that_finds_no_place_for_a_program_says_nothing_of_its_health(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path, {"n": NOTEBOOK}, sessions={"children": 1}, health={"every": 0.2}) as program:
        gate = program.gateway
        assert gate is not None
        backend = gate.backends["n"]
        await until(lambda: gate.table.tools and gate.describe()["children"] == 0, 20)
        async with RawClient(program.url) as client:
            await client.initialize()
            assert (await client.call("n__write", text="a")).text == "noted, 1 so far"
            fetched = backend.known_lists.fetched_at
            await gate.checks.fetch_all()  # as SIGHUP does
            assert backend.health.state == "up"
            assert await is_ready(program.url)
            (said,) = [text for text in caplog.messages if "needs a program" in text]
            assert "1 of 1 run, idle: 1 of 'anonymous'" in said
            second = await client.call("n__write", text="b")
            assert second.text == "noted, 2 so far"  # no session loses its state for a check
            assert backend.known_lists.fetched_at == fetched
            await client.delete()
            await until(lambda: backend.known_lists.fetched_at > fetched, 20)  # there is a place
        assert backend.health.state == "up"


@pytest.mark.promise("gateway.backend-state")
async def test_a_program_of_which_nothing_is_known_gets_the_place_of_an_idle_one(tmp_path: Path) -> None:
    servers = {"n": NOTEBOOK, "late": {**NOTEBOOK, "args": [*NOTEBOOK["args"], "late"], "start": "lazy"}}
    settings: dict[str, Any] = {"sessions": {"children": 1}, "health": {"every": 0.2}}
    async with gateway(tmp_path, {"n": NOTEBOOK}, **settings) as program, RawClient(program.url) as client:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and gate.describe()["children"] == 0, 20)
        await client.initialize()
        assert (await client.call("n__write", text="a")).text == "noted, 1 so far"
        await gate.reload(config_of(tmp_path, servers, **settings))
        await until(lambda: "late__write" in gate.table.tools and gate.describe()["children"] == 0, 20)
        told = await client.call("n__write", text="b")
        assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"


@pytest.mark.promise("gateway.backend-state")
def test_calls_that_fail_in_one_pause_or_are_not_tried_make_it_no_longer() -> None:
    health = BackendHealth("it", SYSTEM, emit=lambda _: None, on_change=lambda: None)
    for _ in range(20):
        health.note(ConnectFailed("refused", server="it"))
    left = health.unavailable().retry_after
    assert left is not None
    assert left <= 1.0
    health.next_try = 0.0
    refused = CircuitOpen("it rests", server="it", retry_after=0.3)
    for _ in range(20):
        health.note(refused)
    assert not health.resting
    assert health.unavailable(refused).retry_after == 0.3
