"""The backend on the SDK: a program of its own, with its effects in a file."""

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.soak.processes import free_port, listens, until
from benchmarks.soak.settings import ROOT


def sdk_server(port: int, file: Path) -> None:
    """The SDK's server in a process of its own, which ends with its parent. `/sessions` says how many are open."""
    import uvicorn
    from mcp.server.mcpserver import Context, MCPServer
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    server = MCPServer("soak", log_level="CRITICAL")
    counts: Counter[str] = Counter()
    effects = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def happen(call: str) -> None:
        os.write(effects, f"{call}\n".encode())

    @server.tool()
    async def echo(text: str, call: str) -> str:
        happen(call)
        return text

    @server.tool()
    async def effect(call: str) -> str:
        happen(call)
        return ""

    @server.tool()
    async def count(call: str, ctx: Context) -> str:
        happen(call)
        session = str((ctx.headers or {}).get("mcp-session-id"))
        counts[session] += 1
        return str(counts[session])

    async def sessions(_: Any) -> PlainTextResponse:
        return PlainTextResponse(str(len(server.session_manager._server_instances)))  # noqa: SLF001

    app = server.streamable_http_app()
    app.router.routes.append(Route("/sessions", sessions))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")


class Sdk:
    """The process of that server, which can be killed, stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.file = folder / "effects"
        self.file.touch()
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.soak", "server", str(self.port), str(self.file)),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=ROOT,
        )
        await until(lambda: listens(self.port), 20)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    async def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()

    async def sessions(self) -> int:
        import aiohttp

        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.port}/sessions") as answer:
            return int(await answer.text())

    def effects(self) -> Counter[str]:
        return Counter(self.file.read_text().split())
