"""`holdfast tail`: events of real gateways, as they come, through a restart, and what was lost."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import FaultServer
from tests.cli.test_top import HOSTILE, two_gateways
from tests.deadlines import patience
from tests.gateway.clients import RawClient
from tests.gateway.gateways import HOLDFAST, Process, holdfast_cli


class Tail:
    """`holdfast tail` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(patience(30)):
            line = (await self._process.stdout.readline()).decode()
        assert line.endswith("\n"), "it ended"
        return line[:-1]

    async def until(self, wanted: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """The lines up to the first that is wanted, as JSON."""
        found: list[dict[str, Any]] = []
        while not found or not wanted(found[-1]):
            found.append(json.loads(await self.line()))
        return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int | None, str]:
        """Ctrl-C; the exit code, and stderr."""
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(patience(30)):
            _, errors = await self._process.communicate()
        return self._process.returncode, errors.decode()


@asynccontextmanager
async def tailing(*arguments: str) -> AsyncGenerator[Tail]:
    process = await asyncio.create_subprocess_exec(
        HOLDFAST, "tail", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield Tail(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.anyio
@pytest.mark.promise("observe.tail")
async def test_events_of_two_gateways_come_as_they_happen_and_can_be_filtered(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    async with two_gateways(tmp_path, url) as (processes, _):
        async with tailing("--store", url, "--json", "--kind", "RequestServed", "--backend", "counter") as tail:
            followed = [json.loads(await tail.line()) for _ in processes]
            assert [each["tail"] for each in followed] == ["following"] * 2
            for process in processes:
                async with RawClient(process.url) as client:
                    await client.initialize()
                    await client.call("counter__count", secret="hunter2")
            lines = [json.loads(await tail.line()) for _ in processes]
            assert {each["kind"] for each in lines} == {"RequestServed"}
            assert {each["gateway"] for each in lines} == {each["gateway"] for each in followed}
            assert [each["name"] for each in lines] == ["counter__count"] * 2
            assert "hunter2" not in json.dumps(lines)
            assert await tail.end() == (130, "\n")


@pytest.mark.anyio
@pytest.mark.promise("observe.tail")
async def test_a_gateway_that_is_killed_and_started_again_is_followed_again(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        await process.start(url)
        try:
            async with tailing("--store", url, "--json") as tail:
                await tail.until(lambda line: line.get("tail") == "following")
                await process.stop(signal.SIGKILL, others=True)
                await tail.until(lambda line: line.get("tail") == "gone")
                await process.start(url)
                await tail.until(lambda line: line.get("tail") == "following")
                async with RawClient(process.url) as client:
                    await client.initialize()
                    found = await tail.until(lambda line: line.get("kind") == "GatewaySessionBegan")
                assert found[-1]["principal"] == "anonymous"
                await tail.end()
        finally:
            await process.stop()


@pytest.mark.anyio
@pytest.mark.promise("observe.tail")
async def test_one_that_is_stopped_for_a_while_says_what_it_lost_and_holds_up_no_call(
    tmp_path: Path, runtime: Path
) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        await process.start(url)
        try:
            async with (
                tailing("--store", url, "--json", "--backend", "counter") as tail,
                RawClient(process.url) as client,
            ):
                await tail.until(lambda line: line.get("tail") == "following")
                await client.initialize()
                tail.signal(signal.SIGSTOP)
                for _ in range(40):
                    await asyncio.gather(*(client.call("counter__count") for _ in range(50)))
                tail.signal(signal.SIGCONT)
                found = await tail.until(lambda line: line.get("tail") == "lost")
                served = sum(line.get("kind") == "RequestServed" for line in found)
                assert 0 < served < 2000
                assert found[-1]["lost"] >= 2000 - served
                await client.call("counter__count")
                await tail.until(lambda line: line.get("kind") == "RequestServed")
                await tail.end()
        finally:
            await process.stop()


@pytest.mark.anyio
@pytest.mark.promise("observe.tail")
async def test_lines_for_people_show_hostile_names_escaped(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    process = Process(tmp_path, {"counter": {"url": "http://127.0.0.1:9/mcp"}})
    await process.start(url)
    try:
        async with tailing("--store", url, "--kind", "RequestServed", "--caller", "anonymous") as tail:
            assert "following" in await tail.line()
            async with RawClient(process.url) as client:
                info = {"name": HOSTILE, "version": HOSTILE}
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
                await client.send({"jsonrpc": "2.0", "id": HOSTILE, "method": "initialize", "params": params})
                line = await tail.line()
            assert "RequestServed" in line
            assert "\\u001b[31m" in line
            assert not set("\x1b\x9b\u202e\r\x07") & set(line)
            await tail.end()
    finally:
        await process.stop()


@pytest.mark.anyio
@pytest.mark.promise("observe.tail")
async def test_it_ends_when_nobody_reads_it_any_more(tmp_path: Path, runtime: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    process = Process(tmp_path, {})
    await process.start(url)
    ours, theirs = os.pipe()
    try:
        tail = await asyncio.create_subprocess_exec(
            HOLDFAST, "tail", "--store", url, stdout=theirs, stderr=asyncio.subprocess.PIPE
        )
        os.close(theirs)
        async with asyncio.timeout(patience(30)):
            assert b"following" in await asyncio.to_thread(os.read, ours, 1000)
            os.close(ours)
            async with RawClient(process.url) as client:
                await client.initialize()
            _, errors = await tail.communicate()
        assert (tail.returncode, errors) == (0, b"")
    finally:
        await process.stop()


@pytest.mark.promise("observe.tail")
def test_a_kind_that_does_not_exist_is_refused() -> None:
    done = holdfast_cli("tail", "--store", "sqlite:///none.db", "--kind", "Nonsense")
    assert (done.returncode, "there is no event 'Nonsense'" in done.stderr) == (2, True)
