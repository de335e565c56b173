"""Backends that hang, refuse, die, come late, forget; how they are shared, warmed and capped."""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.values import members
from holdfast.events import BackendChanged, BackendClosed, BackendReplaced, BackendStarted, ChildStarted, Event
from holdfast.gateway.auth import new_token
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.links.lifecycle.peer import peer_of
from holdfast.testing import LOST_SESSION, Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import Raw
from tests.gateway.gateways import Process, config_of, gateway
from tests.links.server_process import RealServer

NOTEBOOK = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}


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


@pytest.mark.promise("gateway.replaced")
@pytest.mark.parametrize("refusal", LOST_SESSION[:4] + LOST_SESSION[4:5], ids=lambda each: each.name)
async def test_a_lost_session_is_told_once_and_then_works(tmp_path: Path, refusal: Refusal) -> None:
    events: list[Event] = []
    async with FaultServer() as http, FaultServer() as other:
        servers = {"counter": {"url": http.url}, "other": {"url": other.url}}
        async with gateway(tmp_path, servers, sink=events.append) as program:
            async with Raw(program.url) as client, Raw(program.url) as neighbour:
                for each in (client, neighbour):
                    await each.initialize()
                    assert (await each.call("counter__count")).text == "1"
                    assert (await each.call("other__count")).text == "1"
                id = next(
                    request.headers["mcp-session-id"]
                    for request in http.requests
                    if request.method == "tools/call" and "mcp-session-id" in request.headers
                )
                del http.sessions.sessions[id]
                http.plan(Fault.STATUS, method="tools/call", refusal=refusal)
                told = await client.call("counter__count")
                assert told.result["isError"]
                assert "call again to continue" in told.text
                assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
                assert (await client.call("counter__count")).text == "1"
                assert (await client.call("other__count")).text == "2"  # other backends noticed nothing
                assert (await neighbour.call("counter__count")).text == "2"  # nor other sessions
    assert sum(isinstance(event, BackendReplaced) for event in events) == 1


@pytest.mark.promise("gateway.replaced")
async def test_on_replaced_continue_goes_on_and_safe_calls_always_do(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "on_replaced": "continue"}}
        async with gateway(tmp_path, servers) as program, Raw(program.url) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            http.sessions.sessions.clear()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.replaced")
async def test_a_backend_killed_under_calls(tmp_path: Path) -> None:
    async with RealServer("sdk") as real, FaultServer() as other:
        servers = {"real": {"url": real.url, "era": "2025"}, "other": {"url": other.url}}
        async with gateway(tmp_path, servers) as program, Raw(program.url) as client:
            await client.initialize()
            assert (await client.call("real__count", name="a")).text == "1"
            calls = [asyncio.create_task(client.call("real__slowly", a=number)) for number in range(20)]
            await until(lambda: program.gateway is not None and _in_flight(program.gateway, "real") >= 10)
            await real.kill()
            for answer in await asyncio.gather(*calls):
                if answer.result.get("isError"):
                    fields = answer.result["_meta"]["dev.holdfast/error"]
                    assert fields["family"] in ("OutcomeUnknown", "Unavailable", "Rejected")
            assert (await client.call("other__count")).text == "1"
            await real.start()
            texts: list[str] = []
            async with asyncio.timeout(patience(30)):
                while not texts or not texts[-1].isdigit():
                    texts.append((await client.call("real__count", name="a")).text)
                    await asyncio.sleep(0.05)
            assert sum("call again" in text for text in texts) <= 1


def _in_flight(gate: Any, name: str) -> int:
    return sum(
        session.links[name].link.statistics().in_flight
        for session in gate.sessions.live.values()
        if name in session.links
    )


@pytest.mark.promise("gateway.counts")
async def test_a_transaction_per_session_behind_the_gateway(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    db = sqlite3.connect(file)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE notes (text)")
    db.commit()

    def notes() -> list[str]:
        return [text for (text,) in db.execute("SELECT text FROM notes")]

    async with RealServer("ledger", file=str(file)) as real:
        servers = {"ledger": {"url": real.url, "era": "2025"}}
        async with gateway(tmp_path, servers, sessions={"idle": 1.0}) as program:
            async with Raw(program.url) as one, Raw(program.url) as other:
                await one.initialize()
                await other.initialize()
                assert (await one.call("ledger__begin")).text == "begun"
                await one.call("ledger__insert", text="moss")
                seen = (await other.call("ledger__notes")).result
                assert seen.get("structuredContent") == {"result": []}
                assert notes() == []
                assert (await one.call("ledger__commit")).text == "committed"
                assert notes() == ["moss"]
                await one.call("ledger__begin")
                await one.call("ledger__insert", text="lost")
                gate = program.gateway
                assert gate is not None
                await until(lambda: not gate.sessions.live, 15)  # expired: rolled back
                assert notes() == ["moss"]
                db.execute("INSERT INTO notes VALUES ('ours')")  # and the lock is free
                db.commit()
    db.close()


@pytest.mark.promise("gateway.reuse")
@pytest.mark.parametrize(("reuse", "counts"), [("session", "12 12"), ("shared", "12 34"), ("call", "11 11")])
async def test_reuse_says_who_shares(tmp_path: Path, reuse: str, counts: str) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": reuse}}
        async with gateway(tmp_path, servers) as program:
            said = []
            for _ in range(2):
                async with Raw(program.url) as client:
                    await client.initialize()
                    said.append("".join([(await client.call("counter__count")).text for _ in range(2)]))
            assert " ".join(said) == counts
            async with Raw(program.url) as client:  # without a key, only who keeps sessions owes a word about it
                alone = (await client.call_2026("counter__count")).result
            assert ("dev.holdfast/notice" in alone["_meta"]) == (reuse == "session")


@pytest.mark.promise("gateway.children")
async def test_a_program_per_session_lazily_and_none_left(tmp_path: Path) -> None:
    events: list[Event] = []
    servers = {"notebook": {**NOTEBOOK, "start": "lazy"}}
    async with gateway(tmp_path, servers, sink=events.append) as program:
        gate = program.gateway
        assert gate is not None
        async with Raw(program.url) as one, Raw(program.url) as other:
            await one.initialize()
            await until(lambda: gate.table.tools, 20)
            await until(lambda: gate.describe()["children"] == 0, 20)  # looked at, and let go
            started = sum(isinstance(event, ChildStarted) for event in events)
            assert (await one.call("notebook__write", text="a")).text == "noted, 1 so far"
            assert (await one.call("notebook__write", text="b")).text == "noted, 2 so far"
            await other.initialize()
            assert (await other.call("notebook__write", text="c")).text == "noted, 1 so far"
            assert sum(isinstance(event, ChildStarted) for event in events) == started + 2
            assert gate.describe()["children"] == 2
            pid = [event.pid for event in events if isinstance(event, ChildStarted)][-2]
            os.kill(pid, signal.SIGKILL)
            texts = [(await one.call("notebook__write", text="d")).text for _ in range(3)]
            assert texts[-1].startswith("noted")
            assert any("call again" in text or "may" in text or "ended" in text for text in texts[:2])
            assert (await other.call("notebook__write", text="e")).text == "noted, 2 so far"
            await one.delete()
            await until(lambda: gate.describe()["children"] == 1, 10)
    assert any(isinstance(event, BackendClosed) and event.reason == "ended by its client" for event in events)
    pids = [event.pid for event in events if isinstance(event, ChildStarted)]
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


@pytest.mark.promise("gateway.children")
async def test_children_are_capped_and_spares_are_for_one_session_only(tmp_path: Path) -> None:
    events: list[Event] = []
    servers = {"notebook": {**NOTEBOOK, "warm": 1}}
    async with gateway(tmp_path, servers, sessions={"children": 3}, sink=events.append) as program:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        await until(lambda: gate.describe()["children"] == 0, 20)
        clients = [Raw(program.url) for _ in range(4)]
        await clients[0].initialize()
        await until(lambda: gate.describe()["children"] == 2, 20)  # its own, and a spare
        await until(lambda: sum(isinstance(event, ChildStarted) for event in events) == 3, 20)  # one was for the lists
        await clients[1].initialize()  # has the spare; another is made
        assert (await clients[1].call("notebook__write", text="a")).text == "noted, 1 so far"
        await until(lambda: gate.describe()["children"] == 3, 20)
        await until(lambda: sum(isinstance(event, ChildStarted) for event in events) == 4, 20)
        await clients[2].initialize()
        assert (await clients[2].call("notebook__write", text="a")).text == "noted, 1 so far"
        await clients[3].initialize()  # the program that was used longest ago makes room: nothing was kept in it
        assert (await clients[3].call("notebook__write", text="a")).text == "noted, 1 so far"
        assert gate.describe()["children"] == 3
        assert (await clients[0].call("notebook__write", text="a")).text == "noted, 1 so far"
        told = await clients[1].call("notebook__write", text="b")  # and now this one had to go, which had a note
        assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
        assert (await clients[1].call("notebook__write", text="b")).text == "noted, 1 so far"
        for client in clients:
            await client.__aexit__()


@pytest.mark.promise("gateway.events")
async def test_events_tell_what_happened_to_backends(tmp_path: Path) -> None:
    events: list[Event] = []
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sink=events.append) as program:
            async with Raw(program.url) as client:
                await client.initialize()
                await client.call("counter__count")
                await client.delete()
    mine = [
        event for event in events if isinstance(event, BackendStarted | BackendClosed) and event.session is not None
    ]
    assert [type(event) for event in mine] == [BackendStarted, BackendClosed]
    assert mine[1].reason == "ended by its client"  # type: ignore[union-attr]
    assert mine[1].lifetime > 0  # type: ignore[union-attr]
    assert any(isinstance(event, BackendChanged) and event.state == "up" for event in events)


@pytest.mark.promise("gateway.start")
async def test_a_hundred_parallel_calls_run_at_once(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with Raw(program.url) as client:
            await client.initialize()
            waiting = [asyncio.create_task(client.call("counter__wait")) for _ in range(50)]
            await until(lambda: sum(request.method == "tools/call" for request in http.requests) == 50)
            assert (await client.call("counter__count")).text == "1"
            http.sessions.release.set()
            await asyncio.gather(*waiting)
            calls = sum(request.method == "tools/call" for request in http.requests)
            assert calls == 51


@pytest.mark.promise("gateway.headers")
async def test_headers_reach_the_backend_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "moss")
    (tmp_path / "key").write_text("fern\n")
    async with FaultServer() as http:
        headers = {"x-env": "${SECRET_OF_TEST}", "x-file": f"file:{tmp_path}/key"}
        servers = {"counter": {"url": http.url, "headers": headers, "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers) as program, Raw(program.url) as client:
            await client.initialize()
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            call = {"name": "counter__count", "arguments": {}}
            await client.ask("tools/call", call, x_tenant="t1", traceparent=trace, x_private="no")
            sent = next(request for request in http.requests if request.method == "tools/call").headers
            assert sent["x-env"] == "moss"
            assert sent["x-file"] == "fern"
            assert sent["x-tenant"] == "t1"
            assert sent["traceparent"].split("-")[1] == trace.split("-")[1]
            assert "x-private" not in sent


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
            async with Raw(program.url) as client:
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

        monkeypatch.setattr(backend.lists, "_keep", slow)  # a store that takes its time
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
                async with Raw(program.url) as client:
                    await client.initialize()
            await until(lambda: sum(request.method == "ping" for request in http.requests) >= 3)
            assert sum(request.method == "tools/list" for request in http.requests) == 1


@pytest.mark.promise("gateway.redeployed")
async def test_a_reload_with_another_url_keeps_the_names_until_the_new_server_has_shown_its_own(tmp_path: Path) -> None:
    async with FaultServer() as old, FaultServer() as new, FaultServer() as other:
        new.sessions.tools = ("count", "fresh")
        servers = {"counter": {"url": old.url}, "other": {"url": other.url}}
        settings = {"sessions": {"drain": 60}, "health": {"every": 0.05}}
        async with gateway(tmp_path, servers, **settings) as program, Raw(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            slow = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: _in_flight(gate, "counter") == 1)
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


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
async def test_a_program_runs_in_one_gateway_and_another_refuses(
    tmp_path: Path, reuse: str, caplog: pytest.LogCaptureFixture
) -> None:
    token, hashed = new_token()
    settings: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path}/s.db",
        "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]},
    }
    servers = {"notebook": {**NOTEBOOK, "reuse": reuse, "start": "lazy"}}
    async with Raw("", token) as client:
        async with gateway(tmp_path, servers, **settings) as one:
            client.url = one.url
            await until(lambda: one.gateway is not None and one.gateway.table.tools, 20)
            await client.initialize()
            assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
            async with gateway(tmp_path, servers, **settings) as other:
                client.url = other.url
                refused = await client.call("notebook__write", text="b")
                assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "RunsElsewhere"
                assert refused.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
                assert one.url not in str(refused.last)
                assert any(f"runs in another gateway process, {one.url}" in text for text in caplog.messages)
                client.url = one.url
                assert (await client.call("notebook__write", text="b")).text == "noted, 2 so far"
        async with gateway(tmp_path, servers, **settings) as third:
            client.url = third.url
            told = await client.call("notebook__write", text="c")
            assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
            assert (await client.call("notebook__write", text="c")).text == "noted, 1 so far"


@pytest.mark.promise("gateway.one-owner")
async def test_the_program_of_a_killed_gateway_is_begun_elsewhere_and_told(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    servers = {"notebook": {**NOTEBOOK, "reuse": "shared", "start": "lazy"}}
    process = Process(tmp_path, servers)
    async with Raw(await process.start(store)) as client:
        await client.initialize()
        async with asyncio.timeout(patience(20)):
            while not await client.tools():
                await asyncio.sleep(0.05)
        assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
        async with gateway(tmp_path, servers, store=store) as other:
            client.url = other.url
            refused = await client.call("notebook__write", text="b")
            assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "RunsElsewhere"
            await process.stop(signal.SIGKILL)
            told = await client.call("notebook__write", text="b")
            assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
            assert (await client.call("notebook__write", text="b")).text == "noted, 1 so far"


PATIENT = """
from mcp.server.mcpserver import MCPServer
import asyncio, pathlib, sys
server = MCPServer("patient", log_level="WARNING")

@server.tool()
async def hold(name: str) -> str:
    pathlib.Path(sys.argv[1], name).touch()
    while not pathlib.Path(sys.argv[1], "go").exists():
        await asyncio.sleep(0.01)
    return name

server.run()
"""


@pytest.mark.promise("gateway.children")
async def test_no_program_in_a_call_is_taken_away_and_exhaustion_says_who_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = {name: new_token() for name in ("alice", "bob")}
    auth = {"tokens": [{"hash": hashed, "principal": name} for name, (_, hashed) in tokens.items()]}
    program_file = tmp_path / "patient.py"
    program_file.write_text(PATIENT)
    patient = {"command": sys.executable, "args": [str(program_file), str(tmp_path)], "era": "2025", "start": "lazy"}
    limits = {"children": 3, "children_per_principal": 2}
    async with gateway(tmp_path, {"patient": patient}, auth=auth, sessions=limits) as program:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and gate.describe()["children"] == 0, 20)
        names = ("alice", "alice", "alice", "bob", "bob")
        clients = [Raw(program.url, tokens[name][0]) for name in names]
        for client in clients:
            await client.initialize()

        async def held(number: int) -> "asyncio.Task[Any]":
            task = asyncio.create_task(clients[number].call("patient__hold", name=str(number)))
            await until(lambda: (tmp_path / str(number)).exists(), 20)
            return task

        tasks = [await held(0), await held(1)]
        third = await clients[2].call("patient__hold", name="2")  # of her own share
        assert third.result["_meta"]["dev.holdfast/error"]["kind"] == "NoBackend"
        assert any("2 of 2 run for 'alice', all of them in a call" in text for text in caplog.messages)
        tasks.append(await held(3))
        gate.backends["patient"].health.failures.clear()
        full = await clients[4].call("patient__hold", name="4")
        assert full.result["_meta"]["dev.holdfast/error"]["kind"] == "NoBackend"
        assert "alice" not in str(full.last)
        assert any("3 of 3 run, in a call: 2 of 'alice', 1 of 'bob'" in text for text in caplog.messages)
        (tmp_path / "go").touch()
        assert [(await task).text for task in tasks] == ["0", "1", "3"]
        assert (await clients[4].call("patient__hold", name="4")).text == "4"  # now the first of them makes room
        assert gate.describe()["children"] == 3
        for client in clients:
            await client.__aexit__()


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


@pytest.mark.promise("gateway.config")
async def test_a_servers_timeout_and_silence_are_those_of_its_calls(tmp_path: Path) -> None:
    async with FaultServer() as total, FaultServer() as idle:
        servers = {"total": {"url": total.url, "timeout": 0.3}, "idle": {"url": idle.url, "silence": 0.3}}
        async with gateway(tmp_path, servers) as program, Raw(program.url) as client:
            await client.initialize()
            for name in servers:
                late = await client.call(f"{name}__wait")
                assert late.result["_meta"]["dev.holdfast/error"]["kind"] == "AnswerTimeout"
                assert (await client.call(f"{name}__count")).text == "1"


@pytest.mark.promise("gateway.headers")
async def test_a_rotated_secret_file_is_read_anew_without_a_signal_or_a_lost_session(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("Bearer moss\n")
    async with FaultServer(bearer="moss") as http:
        servers = {"counter": {"url": http.url, "headers": {"authorization": f"file:{secret}"}}}
        async with gateway(tmp_path, servers) as program, Raw(program.url) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            http.bearer = "fern"
            secret.write_text("Bearer fern\n")
            assert (await client.call("counter__count")).text == "2"
            gate = program.gateway
            assert gate is not None
            before = gate.backends["counter"]
            await gate.reload(config_of(tmp_path, servers))
            assert gate.backends["counter"] is before
            assert (await client.call("counter__count")).text == "3"
            assert "fern" not in repr(before.entry.server)


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
    async with gateway(tmp_path, servers, sessions={"start": 20.0}) as program, Raw(program.url) as client:
        await client.initialize()
        assert sorted(await client.tools()) == ["late__late", "talks__talks"]
