"""The gateway under test: a process that is started, killed and started again."""

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.soak.processes import alive, descendants, free_port, listens, until
from benchmarks.soak.settings import DRAIN, HOLDFAST, IDLE, STALE


class Gateway:
    """`holdfast serve`, and when it was down."""

    def __init__(self, folder: Path, servers: Mapping[str, Any]) -> None:
        self.port = free_port()
        self.store = f"sqlite:///{folder}/soak.db"
        self.log = folder / "gateway.log"
        self.config = folder / "gateway.json"
        sessions = {"idle": IDLE, "drain": DRAIN, "children": 24}
        self.config.write_text(json.dumps({"sessions": sessions, "mcpServers": servers}))
        self.process: asyncio.subprocess.Process | None = None
        self.began = 0.0
        self.down: list[list[float]] = []
        self.restarts: Counter[str] = Counter()
        self.orphans: set[int] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    async def start(self) -> None:
        self.began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(HOLDFAST, "serve", str(self.config), "--port", str(self.port), "--store", self.store),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        await until(lambda: listens(self.port), 20)
        if self.down:
            self.down[-1][1] = time.monotonic()

    async def stop(self, number: signal.Signals) -> int:
        """Stop it; returns its exit code. Its descendants must end soon after it in any case."""
        assert self.process is not None
        process, self.process = self.process, None
        born = set(descendants(process.pid))
        self.down.append([time.monotonic(), float("inf")])
        process.send_signal(number)
        try:
            code = await asyncio.wait_for(process.wait(), 4 * DRAIN)
        except TimeoutError:
            process.kill()
            await process.wait()
            code = -1
        with contextlib.suppress(AssertionError):
            await until(lambda: not any(alive(pid) for pid in born), 5)
        self.orphans |= {pid for pid in born if alive(pid)}
        return code

    async def restart(self, number: signal.Signals) -> int:
        self.restarts[number.name] += 1
        code = await self.stop(number)
        await self.start()
        return code

    def was_down(self, since: float) -> bool:
        now = time.monotonic()
        return any(begin <= now and end + STALE >= since for begin, end in self.down)
