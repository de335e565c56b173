"""Links of the gateway to backends: calls, lost sessions, events."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from holdfast.events import BackendChanged, BackendClosed, BackendSessionReplaced, BackendStarted, Event
from holdfast.testing import LOST_SESSION, Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway, in_flight
from tests.links.server_process import RealServer


@pytest.mark.promise("gateway.replaced")
@pytest.mark.parametrize("refusal", LOST_SESSION[:4] + LOST_SESSION[4:5], ids=lambda each: each.name)
async def test_a_lost_session_is_told_once_and_then_works(tmp_path: Path, refusal: Refusal) -> None:
    events: list[Event] = []
    async with FaultServer() as http, FaultServer() as other:
        servers = {"counter": {"url": http.url}, "other": {"url": other.url}}
        async with gateway(tmp_path, servers, sink=events.append) as program:
            async with RawClient(program.url) as client, RawClient(program.url) as neighbour:
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
    assert sum(isinstance(event, BackendSessionReplaced) for event in events) == 1


@pytest.mark.promise("gateway.replaced")
async def test_on_replaced_continue_goes_on_and_safe_calls_always_do(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "on_replaced": "continue"}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            http.sessions.sessions.clear()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.replaced")
async def test_a_backend_killed_under_calls(tmp_path: Path) -> None:
    async with RealServer("sdk") as real, FaultServer() as other:
        servers = {"real": {"url": real.url, "era": "2025"}, "other": {"url": other.url}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            assert (await client.call("real__count", name="a")).text == "1"
            calls = [asyncio.create_task(client.call("real__slowly", a=number)) for number in range(20)]
            await until(lambda: program.gateway is not None and in_flight(program.gateway, "real") >= 10)
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
            async with RawClient(program.url) as one, RawClient(program.url) as other:
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


@pytest.mark.promise("gateway.events")
async def test_events_tell_what_happened_to_backends(tmp_path: Path) -> None:
    events: list[Event] = []
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sink=events.append) as program:
            async with RawClient(program.url) as client:
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
        async with RawClient(program.url) as client:
            await client.initialize()
            waiting = [asyncio.create_task(client.call("counter__wait")) for _ in range(50)]
            await until(lambda: sum(request.method == "tools/call" for request in http.requests) == 50)
            assert (await client.call("counter__count")).text == "1"
            http.sessions.release.set()
            await asyncio.gather(*waiting)
            calls = sum(request.method == "tools/call" for request in http.requests)
            assert calls == 51


@pytest.mark.promise("gateway.config")
async def test_a_servers_timeout_and_silence_are_those_of_its_calls(tmp_path: Path) -> None:
    async with FaultServer() as total, FaultServer() as idle:
        servers = {"total": {"url": total.url, "timeout": 0.3}, "idle": {"url": idle.url, "silence": 0.3}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            for name in servers:
                late = await client.call(f"{name}__wait")
                assert late.result["_meta"]["dev.holdfast/error"]["kind"] == "AnswerTimeout"
                assert (await client.call(f"{name}__count")).text == "1"
