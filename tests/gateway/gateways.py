"""Gateways for tests: in this process, with fast limits, or as a process of their own."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.events import Sink
from holdfast.gateway.config.file import Config, ServerEntry, load_config
from holdfast.gateway.server import Program
from tests.deadlines import patience, until
from tests.links.quick_links import FAST

PATIENT = replace(FAST, silence=20, handshake=20, program_handshake=20, start=30)


def config_of(folder: Path, servers: Mapping[str, Any], **settings: Any) -> Config:
    """A configuration with fast limits and a free port."""
    settings.setdefault("listen", {"port": 0})
    settings.setdefault("store", "memory:")
    file = folder / "gateway.json"
    file.write_text(json.dumps({**settings, "mcpServers": servers}))
    config = load_config(file)
    entries = {
        name: ServerEntry(entry.server.with_(limits=PATIENT), entry.policy) for name, entry in config.entries.items()
    }
    return Config(config.settings, entries, None)


@asynccontextmanager
async def gateway(
    folder: Path, servers: Mapping[str, Any], *, sink: Sink | None = None, **settings: Any
) -> AsyncGenerator[Program]:
    async with Program(config_of(folder, servers, **settings), sink=sink).running() as program:
        yield program


NOTEBOOK = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}


HOLDFAST = str(Path(sys.executable).parent / "holdfast")


async def reaped() -> None:
    """asyncio's thread that waited for a child needs a moment more than its result."""
    await until(lambda: not any(thread.name.startswith("asyncio-waitpid") for thread in threading.enumerate()))


class Process:
    """`holdfast serve` in a process of its own."""

    def __init__(self, folder: Path, servers: dict[str, Any], **settings: Any) -> None:
        self.folder = folder
        self.file = folder / "gateway.json"
        self.file.write_text(json.dumps({"mcpServers": servers, **settings}))
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, store: str, port: int = 0) -> str:
        self._process = await asyncio.create_subprocess_exec(
            HOLDFAST, "serve", str(self.file), "--port", str(port), "--store", store, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(patience(30)):
            while True:
                line = (await self._process.stderr.readline()).decode()
                assert line, "it ended"
                if " at http" in line:
                    self.url = line.split(" at ")[1].strip()
                    return self.url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def stop(self, signal_number: int = signal.SIGTERM, *, others: bool = False) -> int:
        """`others`: of other processes that the test has started, some still run."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal_number)
        async with asyncio.timeout(patience(30)):
            assert process.stderr is not None
            await process.stderr.read()
            code = await process.wait()
            if not others:
                await reaped()
            return code

    def hup(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)


def holdfast_cli(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([HOLDFAST, *args], capture_output=True, text=True, timeout=60)


def written(folder: Path, text: str, name: str = "gateway.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def in_flight(gate: Any, name: str) -> int:
    """Calls under way at a backend, on the links of all sessions."""
    return sum(
        session.links[name].link.statistics().in_flight
        for session in gate.sessions.live.values()
        if name in session.links
    )
