"""The program behind `stdio_target`: an MCP server on stdin and stdout with faults by name.

It runs as a plain script, `python -I -S stdio_program.py --fault exit-in-call`, so that it starts in milliseconds. Its
answers are created by `fault_sessions.py`. Effects are appended to a file, which can be read after the program has
ended.
"""

import argparse
import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from typing import Any


def _sessions() -> Any:
    """Import the module next to this one without its package."""
    spec = importlib.util.spec_from_file_location("fault_sessions", Path(__file__).with_name("fault_sessions.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Program:
    """One run of the program."""

    def __init__(self, fault: str, era: str, effects: Path | None, once: Path | None) -> None:
        self.fault = fault
        if once is not None and fault != "none":
            if once.exists():
                self.fault = "none"
            else:
                once.touch()
        module = _sessions()
        self.members: Any = module.members
        self.sessions: Any = module.Sessions(era)
        self.session: Any = None
        self.effects = effects
        self.tasks: dict[Any, asyncio.Task[None]] = {}

    def write(self, message: dict[str, Any]) -> None:
        sys.stdout.buffer.write(dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()

    async def take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            waiting = self.sessions.asked.get(message.get("id", ""))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif "id" not in message:
            if method == "notifications/cancelled":
                task = self.tasks.get(self.members(message.get("params")).get("requestId"))
                if task is not None:
                    task.cancel()
        else:
            task = asyncio.get_running_loop().create_task(self.answer(message))
            self.tasks[message["id"]] = task
            task.add_done_callback(lambda _: self.tasks.pop(message["id"], None))

    async def answer(self, message: dict[str, Any]) -> None:
        method = message["method"]
        if method in ("initialize", "server/discover"):
            self.handshake(message)
            return
        if self.sessions.era == "2025" and self.session is None:
            self.refuse(message, -32602, "Received request before initialization was complete")
            return
        if method == "tools/call":
            await self.strike(message)
        async for part in self.sessions.answer(message, self.session):
            self.write(part)

    def handshake(self, message: dict[str, Any]) -> None:
        if self.fault == "exit-at-handshake":
            os._exit(4)
        if self.fault == "hang-at-handshake":
            return
        if message["method"] == "initialize" and self.sessions.era == "2025":
            answer, id = self.sessions.handshake(message)
            self.session = self.sessions.sessions[id or ""]
            self.write(answer)
        elif message["method"] == "server/discover" and self.sessions.era == "2026":
            self.write(self.sessions.discover(message))
        elif self.sessions.era == "2026":
            error = {"code": -32022, "message": "Unsupported protocol version", "data": {"supported": ["2026-07-28"]}}
            self.write({"jsonrpc": "2.0", "id": message["id"], "error": error})
        else:
            self.refuse(message, -32601, "Method not found")

    def refuse(self, message: dict[str, Any], code: int, text: str) -> None:
        self.write({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text}})

    async def strike(self, message: dict[str, Any]) -> None:
        """Execute the fault of a call, and record the call's effect if there is one."""
        fault, self_kill = self.fault, signal.SIGKILL
        if fault in ("exit-in-call", "killed-in-call", "hang-in-call"):
            if fault == "exit-in-call":
                os._exit(7)
            if fault == "killed-in-call":
                os.kill(os.getpid(), self_kill)
            await asyncio.Event().wait()
        call = self.members(self.members(message.get("params")).get("arguments")).get("call")
        if self.effects is not None and call is not None:
            with self.effects.open("a") as opened:
                opened.write(f"{call}\n")
        if fault == "exit-after-effect":
            os._exit(8)
        if fault == "huge-line":
            self.write({"jsonrpc": "2.0", "id": message["id"], "result": {"x": "x" * 3_000_000}})
        if fault == "endless-line":
            with suppress(OSError):
                while True:
                    sys.stdout.buffer.write(b"x" * 65536)
                    await asyncio.sleep(0)
        if fault == "close-stdout":
            os.close(1)
            await asyncio.Event().wait()
        if fault == "deaf":
            asyncio.get_running_loop().remove_reader(0)

    def begin(self) -> None:
        """Execute the faults that happen before the first message."""
        match self.fault:
            case "exit-at-start":
                sys.exit(3)
            case "ignore-signals":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            case "grandchild" | "detached-grandchild":
                detached = self.fault.startswith("detached")
                sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
                child = subprocess.Popen(sleeper, start_new_session=detached, stdin=subprocess.DEVNULL)
                print(f"grandchild {child.pid}", file=sys.stderr, flush=True)
            case "bare-grandchild":  # with another group, session, environment and parent
                hidden = "setsid env -i sleep 600 </dev/null >/dev/null 2>&1 & echo grandchild $! >&2"
                subprocess.run(["sh", "-c", hidden], check=True, stdin=subprocess.DEVNULL)
            case "garbage":
                print("Welcome to my server!\n{not json}\n[1, 2]\n\n{}", flush=True)
            case "flood-stderr":
                asyncio.get_running_loop().create_task(self.flood(sys.stderr.buffer, b"e" * 200 + b"\n"))
            case "flood-stdout":
                asyncio.get_running_loop().create_task(self.flood(sys.stdout.buffer, b"o" * 200 + b"\n"))
            case _:
                pass

    async def flood(self, stream: Any, line: bytes) -> None:
        with suppress(OSError):
            for _ in range(2000):
                stream.write(line * 50)
                stream.flush()
                await asyncio.sleep(0)

    async def run(self) -> None:
        if self.fault == "slow-start":
            await asyncio.sleep(1)
        self.begin()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 26)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            if line.strip():
                await self.take(loads(line))
        if self.fault == "ignore-signals":
            await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--era", default="2025", choices=("2025", "2026"))
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--once", type=Path)
    parser.add_argument("--say", default="")
    given = parser.parse_args()
    if given.say:
        print(given.say, file=sys.stderr, flush=True)
    asyncio.run(Program(given.fault, given.era, given.effects, given.once).run())


if __name__ == "__main__":
    main()
