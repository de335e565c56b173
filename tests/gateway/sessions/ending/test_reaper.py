"""The reaper: expired sessions end in every place, also those of a dead process."""

import asyncio
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import Event, GatewaySessionBegan, GatewaySessionEnded
from holdfast.stores import open_store
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, gateway


@pytest.mark.promise("gateway.expiry")
async def test_expiry_ends_the_session_everywhere(tmp_path: Path) -> None:
    events: list[Event] = []
    async with FaultServer() as http:
        sessions = {"idle": 0.6, "max_age": 100}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=sessions, sink=events.append) as program:
            async with RawClient(program.url) as client:
                await client.initialize()
                assert (await client.call("counter__count")).text == "1"
                assert program.gateway is not None
                await until(lambda: http.sessions.deletes == 1)
                assert (await client.call("counter__count")).status == 404
                assert not program.gateway.sessions.live
    began = [event for event in events if isinstance(event, GatewaySessionBegan)]
    ended = [event for event in events if isinstance(event, GatewaySessionEnded)]
    assert [event.reason for event in ended] == ["expired"]
    assert began[0].session == ended[0].session
    assert client.session is not None
    assert client.session not in str(events)  # its name in events is not the id


@pytest.mark.promise("gateway.expiry")
async def test_a_reaper_ends_what_a_dead_process_left(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    sessions = {"idle": 1.0}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        process = Process(tmp_path, servers, sessions=sessions)
        async with RawClient(await process.start(store)) as client:
            await client.initialize()
            await client.call("counter__count")
        await process.stop(signal.SIGKILL)
        left = len(http.sessions.sessions)
        assert left >= 1
        async with gateway(tmp_path, servers, store=store, sessions=sessions):
            await until(lambda: http.sessions.deletes >= 1, 10)
        async with open_store(store) as opened:
            assert await opened.count(kind="session") == 0


@pytest.mark.promise("gateway.expiry")
async def test_a_damaged_row_of_one_session_keeps_no_other_alive(tmp_path: Path, caplog: Any) -> None:
    store, patient, hasty = f"sqlite:///{tmp_path}/s.db", {"idle": 60.0}, {"idle": 0.2}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        keys: list[str] = []
        async with gateway(tmp_path, servers, store=store, sessions=patient) as before:
            for _ in range(3):
                async with RawClient(before.url) as client:
                    await client.initialize()
                    assert (await client.call("counter__count")).text == "1"
            assert before.gateway is not None
            keys = sorted(session.key for session in before.gateway.sessions.live.values())
        async with open_store(store) as opened:
            for key in keys[:2]:  # the first page of a scan begins with them
                await opened.claim("session", key, owner="a reaper that died", ttl=100)
        with sqlite3.connect(tmp_path / "s.db") as connection:
            assert connection.execute("UPDATE holdfast_claims SET token = 'high'").rowcount >= 2
        connection.close()
        async with gateway(tmp_path, servers, store=store, sessions=hasty) as after:
            await until(lambda: http.sessions.deletes >= 1, 10)
            assert after.gateway is not None
            await after.gateway.reaper.reap()
        for key in keys[:2]:
            assert len([line for line in caplog.messages if line.startswith(f"{key} can't be ended")]) == 1


@pytest.mark.promise("gateway.leaks")
async def test_five_hundred_abandoned_sessions_leave_nothing(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, sessions={"idle": 2.0}) as program, RawClient(program.url) as client:
            assert program.gateway is not None

            def tasks() -> int:
                """All but those of the scripted server, which has one for each kept connection."""
                return sum("FaultServer" not in getattr(t.get_coro(), "__qualname__", "") for t in asyncio.all_tasks())

            before, files = tasks(), len(list(Path("/proc/self/fd").iterdir()))
            for _ in range(10):
                clients = [RawClient(program.url) for _ in range(50)]
                await asyncio.gather(*(each.initialize() for each in clients))
                await asyncio.gather(*(each.call("counter__count") for each in clients))
                await asyncio.gather(*(each.__aexit__() for each in clients))
            assert http.sessions.handshakes >= 500
            await until(lambda: http.sessions.deletes == 500, 30)
            gate = program.gateway
            await until(lambda: not gate.sessions.live and len(http.sessions.sessions) <= 1, 10)
            assert await gate.store.count(kind="session") == 0
            await until(lambda: tasks() <= before + 3, 10)
            kept = 2 * 100 + 10  # both ends of the pool's connections: as many as there were calls at once
            await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files + kept, 10)
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
