"""The admin socket of real gateways: snapshots, events, readers that do not read, kills."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConnectFailed
from holdfast.gateway.admin.client import AdminClient
from holdfast.gateway.admin.server import READERS
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.server import Program
from holdfast.observers import is_observed
from holdfast.stores import open_store
from holdfast.testing import Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, gateway

pytestmark = pytest.mark.usefixtures("runtime")


def admin(program: Program) -> str:
    assert program.gateway is not None
    assert program.gateway.admin.path is not None
    return program.gateway.admin.path


@asynccontextmanager
async def following(path: str, **wanted: Any) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
    async with AdminClient.connected(path) as client:
        stream = client.events(wanted)
        assert "following" in await anext(stream)
        yield stream


async def upto(stream: AsyncGenerator[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(patience(20)):
        while not found or found[-1].get("kind") != kind:
            line = await anext(stream)
            assert "lost" not in line
            found.append(line["event"])
    return found


@pytest.mark.promise("observe.admin-socket")
async def test_a_snapshot_shows_sessions_backends_and_calls(tmp_path: Path) -> None:
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}, "away": {"url": "http://127.0.0.1:9/mcp"}}) as program,
        RawClient(program.url) as client,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and gate.backends["away"].health.state == "down", 20)
        await client.initialize()
        async with AdminClient.connected(admin(program)) as reader:
            await reader.snapshot(10)
            for _ in range(10):
                await client.call("counter__count")
            http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", 500, b"", {}))
            await client.call("counter__count")
            await http.restart()
            await client.ask("tools/list")
            await client.call("counter__count")
            shown = await reader.snapshot(10)
    assert (shown["state"], shown["live_sessions"], shown["address"]) == ("serving", 1, program.url)
    assert (shown["replaced"], shown["unknown"]) == (1, 1)
    assert shown["calls"]["per_second"] > 0
    assert 0 < shown["calls"]["p50"] <= shown["calls"]["p99"]
    counter, away = shown["backends"]["counter"], shown["backends"]["away"]
    assert (counter["state"], counter["circuit"], counter["in_flight"]) == ("up", "closed", 0)
    assert counter["per_second"] > 0
    assert (away["state"], away["per_second"]) == ("down", 0)
    [session] = shown["sessions"]
    assert (session["principal"], session["client"], session["era"]) == ("anonymous", "raw 1", "2025")
    assert session["backends"] == ["counter"]
    assert len(session["session"]) == 12
    assert client.session is not None
    for secret in (client.session, *http.sessions.sessions):
        assert secret not in json.dumps(shown)


@pytest.mark.promise("observe.admin-socket")
async def test_a_call_under_way_and_counts_of_closed_links_are_shown(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client, AdminClient.connected(admin(program)) as reader:
            await client.initialize()
            await client.call("counter__count")
            http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", 500, b"", {}))
            await client.call("counter__count")
            assert (await reader.snapshot(0))["sessions"] == []
            await client.delete()
            gate = program.gateway
            assert gate is not None
            await until(lambda: not gate.sessions.live)
            shown = await reader.snapshot(10)
    assert (shown["unknown"], shown["live_sessions"]) == (1, 0)


@pytest.mark.promise("observe.events-stream")
async def test_events_are_built_only_while_somebody_reads(tmp_path: Path) -> None:
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        assert not is_observed()
        async with following(admin(program), backend="counter") as stream:
            assert is_observed()
            await client.call("counter__count", secret="hunter2")
            found = await upto(stream, "RequestServed")
        await until(lambda: not is_observed())
    served = found[-1]
    assert (served["name"], served["outcome"], served["client"]) == ("counter__count", "ok", "raw 1")
    assert "RequestSent" in [each["kind"] for each in found]
    assert "hunter2" not in json.dumps(found)


@pytest.mark.promise("observe.events-stream")
async def test_a_reader_that_never_reads_delays_no_call_and_is_told_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.gateway.admin.server.BUFFER_BYTES", 1024)
    monkeypatch.setattr("holdfast.gateway.admin.event_queue.QUEUED_BYTES", 4096)
    monkeypatch.setattr("holdfast.gateway.admin.event_queue.EventQueue.__init__.__defaults__", (4096,))
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as idle:
            idle.setblocking(False)
            await loop.sock_connect(idle, admin(program))
            await loop.sock_sendall(idle, b'{"get": "events", "kinds": ["RequestServed"]}\n')
            await until(is_observed)
            async with asyncio.timeout(patience(60)):
                for _ in range(20):
                    await asyncio.gather(*(client.call("counter__count") for _ in range(50)))
            data = b""
            async with asyncio.timeout(patience(20)):
                while b'"lost"' not in data:
                    data += await loop.sock_recv(idle, 65536)
                while not data.endswith(b"\n"):
                    data += await loop.sock_recv(idle, 65536)
        lines = [json.loads(line) for line in data.splitlines()]
        await until(lambda: not is_observed())
    lost = sum(line.get("lost", 0) for line in lines)
    assert lost + sum("event" in line for line in lines) == 1000
    assert lost > 0


@pytest.mark.promise("observe.admin-socket")
@pytest.mark.parametrize(
    "request_line",
    [b"nonsense\n", b"[]\n", b'{"get": "secrets"}\n', b'{"get":"events","kinds":3}\n', b"[" * 4000 + b"\n", b"\xff\n"],
)
async def test_a_wrong_request_is_answered_and_the_next_one_too(tmp_path: Path, request_line: bytes) -> None:
    async with gateway(tmp_path, {}) as program:
        reader, writer = await asyncio.open_unix_connection(admin(program))
        writer.write(request_line + b'{"get": "snapshot"}\n')
        async with asyncio.timeout(patience(5)):
            assert "error" in json.loads(await reader.readline())
            assert "snapshot" in json.loads(await reader.readline())
        writer.write(b"x" * 10_000)
        async with asyncio.timeout(patience(5)):
            with pytest.raises((ConnectionResetError, BrokenPipeError, AssertionError)):
                assert await reader.readline()  # hung up on
        writer.transport.abort()


@pytest.mark.promise("observe.admin-socket")
async def test_readers_are_limited_and_hung_up_on_at_the_end(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}) as program:
        path = admin(program)
        found = [await asyncio.open_unix_connection(path) for _ in range(READERS + 1)]
        answered = 0
        for reader, writer in found:
            writer.write(b'{"get": "snapshot"}\n')
            async with asyncio.timeout(patience(5)):
                try:
                    answered += bool(await reader.readline())
                except (ConnectionResetError, BrokenPipeError):
                    continue
        assert answered == READERS
    for reader, writer in found:
        async with asyncio.timeout(patience(5)):
            with suppress(ConnectionResetError, BrokenPipeError):
                assert await reader.read() == b""
        writer.transport.abort()
    assert not Path(path).exists()
    assert not is_observed()
    with pytest.raises(ConnectFailed):
        async with AdminClient.connected(path):
            pass


@pytest.mark.promise("observe.admin-socket")
async def test_the_socket_of_a_killed_process_is_replaced_and_named_in_the_record(
    tmp_path: Path, runtime: Path
) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    process = Process(tmp_path, {})
    paths: list[str] = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        await process.start(url)
        async with open_store(url) as store:
            [record] = (await store.scan(kind=PROCESSES)).records
        assert isinstance(record.data, dict)
        path = str(record.data["admin"])
        paths.append(path)
        async with AdminClient.connected(path) as reader:
            assert (await reader.snapshot(1))["pid"] == process.pid
            await process.stop(number)
            with pytest.raises(ConnectFailed):
                await reader.snapshot(1)
        if len(paths) == 2:
            assert not Path(paths[0]).exists()
    assert paths[0] != paths[1]
    assert list((runtime / "holdfast").iterdir()) == []
