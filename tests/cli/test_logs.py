"""What `holdfast serve` writes to stderr: real processes, callers and backends that come and fail."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import HOLDFAST, NOTEBOOK, reaped

SECRET = "hunter2-never-written"


class Serving:
    """`holdfast serve` with its stderr in a file, or in a pipe that nobody reads."""

    def __init__(self, folder: Path, config: dict[str, Any], *options: str) -> None:
        self.file = folder / "gateway.json"
        self.file.write_text(json.dumps({"store": "memory:", "listen": {"port": 0}, **config}))
        self.stderr = folder / "stderr"
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, unread: bool = False) -> str:
        command = (HOLDFAST, "serve", str(self.file), "--json", *self._options)
        with self.stderr.open("wb") as file:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE if unread else file, limit=1024
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(patience(30)):
            return json.loads(await self._process.stdout.readline())["url"]

    async def stop(self) -> list[str]:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(patience(40)):
            _, unread = await self._process.communicate()
        await reaped()
        assert self._process.returncode == 0
        return ((unread or b"").decode() + self.stderr.read_text()).splitlines()


@pytest.mark.anyio
@pytest.mark.promise("observe.logs")
async def test_json_lines_say_what_happened_and_no_secret(tmp_path: Path) -> None:
    token, hashed = new_token()
    async with FaultServer() as http:
        serving = Serving(
            tmp_path,
            {
                "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]},
                "mcpServers": {
                    "counter": {"url": http.url, "headers": {"x-api-key": SECRET}},
                    "notebook": {**NOTEBOOK, "env": {"API_KEY": SECRET}},
                },
            },
            "--log-level", "debug",
        )  # fmt: skip
        url = await serving.start()
        async with RawClient(url, token) as client, RawClient(url, "hft_wrong-one") as stranger:
            await client.initialize()
            for _ in range(3):
                await client.call("counter__count", password=SECRET)
            await http.restart()
            await client.call("counter__count")
            assert (await stranger.ask("ping")).status == 401
            session, ids = client.session, list(http.sessions.sessions)
        lines = await serving.stop()
    text = "\n".join(lines)
    entries = [json.loads(line) for line in lines]
    kinds = Counter(entry.get("event") for entry in entries)
    for kind in ("GatewayStarted", "GatewaySessionBegan", "CallerRefused", "ConfigurationRead", "GatewayStopped"):
        assert kinds[kind] == 1, kind
    for kind in ("BackendStarted", "RequestServed", "BackendSessionReplaced", "GatewaySessionEnded"):
        assert kinds[kind] >= 1, kind
    served = [entry for entry in entries if entry.get("event") == "RequestServed"]
    (began,) = [entry for entry in entries if entry.get("event") == "GatewaySessionBegan"]
    calls = [entry for entry in served if entry["method"] == "tools/call"]
    assert {entry["session"] for entry in calls} == {began["session"]}
    assert len({entry["request"] for entry in calls}) == len(calls) == 4
    assert all({"at", "level", "logger", "message"} <= set(entry) for entry in entries)
    assert ids
    for secret in (SECRET, token, "wrong-one", session or "no session", *ids):
        assert secret not in text, secret


@pytest.mark.anyio
@pytest.mark.promise("observe.logs-changes")
async def test_a_dead_backend_is_one_line_however_often_it_is_called(tmp_path: Path) -> None:
    async with FaultServer() as http, FaultServer() as dead:
        config = {"counter": {"url": http.url}, "dead": {"url": dead.url}}
        serving = Serving(tmp_path, {"mcpServers": config, "health": {"every": 0.2}}, "--log-format", "text")
        async with RawClient(await serving.start()) as client:
            await client.initialize()
            assert "result" in (await client.call("dead__count")).last
            await dead.refuse()
            for _ in range(20):
                await client.call("dead__count")
                await client.call("counter__count")
            await until(lambda: b"'dead'" in serving.stderr.read_bytes(), 20)
        lines = await serving.stop()
    assert len([line for line in lines if "'dead'" in line and "WARNING" in line]) == 1, lines
    assert not [line for line in lines if "counter" in line]


@pytest.mark.anyio
@pytest.mark.promise("observe.logs")
async def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    logs = {"observe": {"logs": {"level": "info", "format": "text"}}, "mcpServers": {}}
    for options, says in (
        ((), lambda line: " INFO holdfast." in line),
        (("--log-format", "json"), lambda line: json.loads(line)["level"] == "info"),
    ):
        serving = Serving(tmp_path, logs, *options)
        await serving.start()
        lines = await serving.stop()
        assert lines
        assert all(says(line) for line in lines)
    serving = Serving(tmp_path, logs, "--log-level", "error")
    await serving.start()
    assert await serving.stop() == []


@pytest.mark.anyio
@pytest.mark.promise("observe.logs-bounded")
async def test_a_stderr_that_nobody_reads_holds_up_no_call(tmp_path: Path) -> None:
    async with FaultServer() as http:
        serving = Serving(tmp_path, {"mcpServers": {"counter": {"url": http.url}}}, "--log-level", "debug")
        async with RawClient(await serving.start(unread=True)) as client:
            await client.initialize()
            async with asyncio.timeout(patience(60)):
                for _ in range(600):  # lines of far more than a pipe holds
                    assert "result" in (await client.call("counter__count")).last
        lines = await serving.stop()
    assert len([line for line in lines if '"RequestServed"' in line]) >= 600
    assert sum(map(len, lines)) > 2 * 65_536


@pytest.mark.anyio
@pytest.mark.promise("observe.logs-bounded")
async def test_a_caller_that_is_refused_without_end_writes_a_few_lines(tmp_path: Path) -> None:
    _, hashed = new_token()
    serving = Serving(tmp_path, {"mcpServers": {}, "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]}})
    async with RawClient(await serving.start(), "hft_guess") as stranger:
        for _ in range(300):
            assert (await stranger.ask("ping")).status == 401
    lines = await serving.stop()
    refused = [json.loads(line) for line in lines if '"CallerRefused"' in line]
    assert len(refused) < 150
    assert sum(line.get("left_out", 1) for line in refused) == 300
    assert "hft_guess" not in "".join(lines)
