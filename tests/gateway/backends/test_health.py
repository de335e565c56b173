"""Backends that hang, refuse or fail: what callers and operators see of it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import ManualClock
from holdfast.core.values import members
from holdfast.errors import ConnectFailed
from holdfast.events import BackendChanged, BackendFailed, Event
from holdfast.gateway.backends.health import BackendHealth
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.links.lifecycle.peer import peer_of
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import Raw
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.start")
async def test_one_hangs_one_refuses_one_works(tmp_path: Path) -> None:
    async with FaultServer() as hangs, FaultServer() as refuses, FaultServer() as works:
        hangs.plan(Fault.HANG, times=1000)
        await refuses.refuse()
        servers = {"hangs": {"url": hangs.url}, "refuses": {"url": refuses.url}, "works": {"url": works.url}}
        async with gateway(tmp_path, servers, sessions={"start": 1.0}) as program, Raw(program.url) as client:
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
        async with gateway(tmp_path, servers, store=store) as program, Raw(program.url) as client:
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
        async with Raw(program.url) as client:
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
            async with Raw(program.url) as one, Raw(program.url) as other:
                for client in (one, other):
                    await client.initialize()
                    assert (await client.call("counter__count")).text == "1"
                circuit = peer_of(gate.backends["counter"].entry.server.target).circuit
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
