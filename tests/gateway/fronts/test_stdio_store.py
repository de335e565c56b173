"""Two gateways over stdio that serve one file: a program that callers share runs in one of them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fronts.test_stdio import HELLO, HUNG, line
from tests.gateway.gateways import HOLDFAST

NOTEBOOK = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"]}


class Served:
    """One `holdfast serve --stdio`, asked line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._id = 0

    @classmethod
    async def start(cls, file: Path) -> "Served":
        env = {**os.environ, "XDG_STATE_HOME": str(file.parent)}
        served = cls(
            await asyncio.create_subprocess_exec(
                HOLDFAST,
                "serve",
                str(file),
                "--stdio",
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        await served.ask("initialize", HELLO)
        await served.ask("tools/list", {})
        return served

    async def ask(self, method: str, params: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._id += 1
        self.process.stdin.write(line(self._id, method, params))
        async with asyncio.timeout(HUNG):
            while True:
                message = json.loads(await self.process.stdout.readline())
                if message.get("id") == self._id and "method" not in message:
                    return message["result"]

    async def write(self) -> str:
        result = await self.ask("tools/call", {"name": "n__write", "arguments": {"text": "x"}})
        return result["_meta"]["dev.holdfast/error"]["kind"] if result.get("isError") else result["content"][0]["text"]

    async def end(self) -> str:
        assert self.process.stderr is not None
        if self.process.returncode is None and self.process.stdin is not None:
            self.process.stdin.close()
        async with asyncio.timeout(HUNG):
            said = (await self.process.stderr.read()).decode()
            await self.process.wait()
        return said


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("store", [None, "memory:"])
async def test_a_shared_program_runs_in_one_of_two_gateways_over_stdio(tmp_path: Path, store: str | None) -> None:
    file = tmp_path / "g.json"
    settings = {} if store is None else {"store": store}
    file.write_text(json.dumps({**settings, "mcpServers": {"n": {**NOTEBOOK, "reuse": "shared"}}}))
    one = await Served.start(file)
    try:
        two = await Served.start(file)
        try:
            first = await one.write()
            told = [await two.write(), await one.write()]
        finally:
            warned = "other processes run it, too" in await two.end()
    finally:
        await one.end()
    assert warned == (store is not None)  # the log says what the store memory: means
    assert told[0] == ("RunsElsewhere" if store is None else first)
    assert told[1] not in ("RunsElsewhere", first)
