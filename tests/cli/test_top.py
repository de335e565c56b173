"""`holdfast top`: real gateways on a store, one screen, a terminal that is left as it was."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.terminal import Styled, columns
from holdfast.cli.top_view import Gateway, screen
from holdfast.core.models import ANONYMOUS, Record
from holdfast.gateway.admin.processes import ELSEWHERE, process_of
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.stores import open_store
from holdfast.stores.sealing import new_key
from holdfast.testing import FaultServer
from tests.deadlines import patience
from tests.gateway.clients import RawClient
from tests.gateway.gateways import HOLDFAST, Process, holdfast_cli

HOSTILE = "x\x1b[31m\x9b2J\u202e\r\nFORGED line\x07"


def elsewhere(**data: Any) -> Record:
    known = {"pid": 1, "host": "far-away", "place": "other", "address": "http://far:1/mcp", "sessions": 7, **data}
    return Record(PROCESSES, "gateway-far", ANONYMOUS, known, idle=600)


@asynccontextmanager
async def two_gateways(folder: Path, url: str) -> AsyncGenerator[tuple[list[Process], FaultServer]]:
    async with FaultServer() as http:
        started: list[Process] = []
        try:
            for name in ("one", "two"):
                (folder / name).mkdir()
                process = Process(folder / name, {"counter": {"url": http.url}})
                await process.start(url)
                started.append(process)
            yield started, http
        finally:
            running = [process for process in started if process._process is not None]
            for process in running:
                await process.stop(others=process is not running[-1])


async def cli(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(holdfast_cli, *arguments)


@pytest.mark.anyio
@pytest.mark.promise("observe.top")
async def test_it_shows_every_gateway_of_a_store(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    async with two_gateways(tmp_path, url) as (processes, http), RawClient(processes[0].url) as client:
        await client.initialize()
        async with open_store(url) as store:
            await store.commit(elsewhere(), expect=0)
        calling = asyncio.create_task(_keep_calling(client))
        shown = await cli("top", "--store", url, "--json")
        calling.cancel()
        await asyncio.wait((calling,))
        found = {each["address"]: each for each in json.loads(shown.stdout)["gateways"]}
        one, two, far = (found[name] for name in (processes[0].url, processes[1].url, "http://far:1/mcp"))
        assert (one["snapshot"]["live_sessions"], two["snapshot"]["live_sessions"]) == (1, 0)
        assert one["snapshot"]["calls"]["per_second"] > 0
        assert one["snapshot"]["backends"]["counter"]["state"] == "up"
        assert two["snapshot"]["calls"]["per_second"] == 0
        assert (far["snapshot"], far["why_no_snapshot"], far["record"]["sessions"]) == (None, ELSEWHERE, 7)
        for secret in (client.session or "", *http.sessions.sessions):
            assert secret not in shown.stdout

        await processes[1].stop(signal.SIGKILL, others=True)
        text = await cli("top", "--store", url, "--once")
        assert text.returncode == 0, text.stderr
        assert "\x1b" not in text.stdout
        assert processes[0].url.split("/")[2] in text.stdout
        assert processes[1].url.split("/")[2] not in text.stdout
        assert "2 gateways" in text.stdout
        assert "from its record" in text.stdout


async def _keep_calling(client: RawClient) -> None:
    while True:
        await client.call("counter__count")


@pytest.mark.anyio
@pytest.mark.promise("observe.top")
async def test_the_gateways_of_a_file_and_names_that_would_command_the_terminal(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    process = Process(tmp_path, {"up": {"url": "http://127.0.0.1:9/mcp"}}, store=url)
    await process.start(url)
    try:
        async with RawClient(process.url) as client:
            info = {"name": HOSTILE, "version": HOSTILE}
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
            await client.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
            backend = {"state": HOSTILE, "era": HOSTILE}
            async with open_store(url) as store:
                await store.commit(elsewhere(address=HOSTILE, host=HOSTILE, backends={HOSTILE: backend}), expect=0)
            for options in ((), ("--json",)):
                shown = await cli("top", "--config", str(process.file), "--once", *options)
                assert shown.returncode == 0, shown.stderr
                assert not set("\x1b\x9b\u202e\r\x07") & set(shown.stdout)
                assert not any(line.startswith("FORGED") for line in shown.stdout.splitlines())
                assert "\\u001b[31m" in shown.stdout
    finally:
        await process.stop()


@pytest.mark.anyio
@pytest.mark.promise("observe.top")
async def test_records_that_can_not_be_read_are_an_error_and_not_no_gateway(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    async with open_store(url, keys=[new_key()]) as store:
        await store.commit(elsewhere(), expect=0)
    (tmp_path / "keys").write_text(new_key())
    for options in ((), ("--keys-file", str(tmp_path / "keys"))):
        shown = await cli("top", "--store", url, "--json", *options)
        assert (shown.returncode, json.loads(shown.stdout)["error"]["type"]) == (2, "ConfigError")


@pytest.mark.promise("observe.top")
def test_which_gateways_must_be_said(tmp_path: Path) -> None:
    for arguments in ((), ("--store", "sqlite:///a.db", "--config", "b")):
        assert "--store URL or --config FILE" in holdfast_cli("top", *arguments).stderr
    assert "memory:" in holdfast_cli("top", "--store", "memory:").stderr


def frames(data: str) -> list[list[str]]:
    """The screens that were drawn, line by line, without their escapes."""
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\r\n") for frame in data.split("\x1b[H")[1:]]


@pytest.mark.anyio
@pytest.mark.promise("observe.top")
@pytest.mark.parametrize("end", ["q", "\x03", "SIGTERM"])
async def test_a_terminal_shows_it_live_and_is_left_as_it_was(tmp_path: Path, runtime: Path, end: str) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    process = Process(tmp_path, {f"server-{number}": {"url": "http://127.0.0.1:9/mcp"} for number in range(30)})
    await process.start(url)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(theirs)
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        top = await asyncio.create_subprocess_exec(
            HOLDFAST, "top", "--store", url, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**environment, "TERM": "xterm", "NO_COLOR": "1" if end == "q" else ""},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        data = ""
        async with asyncio.timeout(patience(40)):
            while data.count("\x1b[H") < 3:
                data += await asyncio.to_thread(_read, ours)
            if end == "SIGTERM":
                top.terminate()
            else:
                os.write(ours, end.encode())
            await top.wait()
            data += await asyncio.to_thread(_read, ours)
        assert top.returncode == 0
        assert termios.tcgetattr(theirs) == before
        assert data.endswith("\x1b[?25h\x1b[?1049l")
        for frame in frames(data.removesuffix("\x1b[?25h\x1b[?1049l"))[:-1]:
            assert len(frame) <= 24
            assert max(map(columns, frame)) <= 80
            assert frame[0].startswith("holdfast top: 1 gateway")
            assert any(line.startswith("gateway  ") for line in frame)
            assert any(line.startswith("server-") for line in frame)
            assert any(re.match(r"… \d+ more", line) for line in frame)
        coloured = re.search(r"\x1b\[[0-9;]+m", data) is not None
        assert coloured is (end != "q")
    finally:
        os.close(ours)
        os.close(theirs)
        await process.stop()


def _read(file: int) -> str:
    return os.read(file, 65536).decode()


@pytest.mark.promise("observe.top")
@pytest.mark.parametrize(("gateways", "backends", "sessions"), [(1, 1, 0), (1, 3, 500), (30, 2, 100), (3, 100, 100)])
@pytest.mark.parametrize(("width", "height"), [(79, 24), (200, 60), (40, 10), (10, 3)])
def test_a_screen_is_never_too_large(gateways: int, backends: int, sessions: int, width: int, height: int) -> None:
    session = {"session": "0123456789ab", "principal": "東京" * 30, "client": "c" * 100, "idle_seconds": 3.0}
    found: list[Gateway] = []
    for number in range(gateways):
        record = elsewhere(address=f"http://gateway-{number}:8808/mcp")
        process = process_of(record)
        assert process is not None
        figures = {"state": "down", "era": "2025", "per_second": 1234.5, "p99": 0.9999, "replaced": 1, "unknown": 1}
        known = {f"backend-{each}": figures for each in range(backends)}
        found.append(Gateway(process, {"backends": known, "sessions": [session] * sessions, "live_sessions": 3}, None))
    lines = [line.text if isinstance(line, Styled) else line for line in screen(found, "sqlite:///g", width, height)]
    assert len(lines) <= height
    assert max(map(columns, lines)) <= width
    if height >= 24 and width >= 79:
        starts = [line.split()[0] for line in lines if line]
        assert {"gateway", "backend"} <= set(starts)
        assert sum(line.endswith("unknown") for line in lines) == 2
        assert ("session" in starts) or not sessions
