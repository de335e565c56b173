"""Programs: how many run, and which of them makes room."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import BackendClosed, ChildStarted, Event
from holdfast.gateway.auth import new_token
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, gateway


@pytest.mark.promise("gateway.children")
async def test_a_program_per_session_lazily_and_none_left(tmp_path: Path) -> None:
    events: list[Event] = []
    servers = {"notebook": {**NOTEBOOK, "start": "lazy"}}
    async with gateway(tmp_path, servers, sink=events.append) as program:
        gate = program.gateway
        assert gate is not None
        async with RawClient(program.url) as one, RawClient(program.url) as other:
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
        clients = [RawClient(program.url, tokens[name][0]) for name in names]
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
