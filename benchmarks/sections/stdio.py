"""The link to a program compared with the SDK's client: CPU of the client, reuse and a child per call, a megabyte."""

import json
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from rich.console import Console
from rich.progress import Progress

from benchmarks.sections.links import MODES, Operation, compare
from holdfast import Link
from holdfast.links import CommandTarget, Options

CHILD = ["-I", "-S", str(Path(__file__).parent.parent / "servers" / "echo_child.py")]
ARGUMENTS = {"text": "hello"}
CALL = {"name": "echo", "arguments": ARGUMENTS}

LEGEND = (
    "Microseconds of the client's CPU time a tool call over stdio, median of 5 alternating rounds, the same raw echo "
    "program behind each. A child per call is `mcp.Client` opened for each: of the raw program, which starts in a few "
    "milliseconds, and of a server on the SDK, which is what people start. The megabyte is the text of one call, "
    "echoed; beside it, the same bytes through the program's pipes with `json` on our side and nothing else."
)


async def calls(era: str, tasks: int, count: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        server = StdioServerParameters(command=sys.executable, args=CHILD)
        client = await stack.enter_async_context(Client(server, mode=MODES[era]))  # type: ignore[arg-type]
        target = CommandTarget(sys.executable, CHILD)
        link = await stack.enter_async_context(Link(target, Options(era=era)))  # type: ignore[arg-type]
        await client.list_tools()
        contestants: dict[str, Operation] = {
            "mcp.Client": lambda: client.call_tool("echo", ARGUMENTS),
            "link": lambda: link.request("tools/call", CALL),
        }
        return await compare(contestants, tasks, count)


SDK_CHILD = [
    "-c",
    (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('echo')\n"
        "@server.tool()\n"
        "def echo(text: str) -> str: return text\n"
        "server.run()"
    ),
]


async def reuse(args: list[str], count: int) -> tuple[float, float]:
    """Milliseconds a call: one link reused, and a child of the SDK's client per call."""
    async with Link(CommandTarget(sys.executable, args)) as link:
        await link.request("tools/list")
        start = time.perf_counter()
        for _ in range(count):
            await link.request("tools/call", CALL)
        ours = (time.perf_counter() - start) / count
    start = time.perf_counter()
    for _ in range(5):
        async with Client(StdioServerParameters(command=sys.executable, args=args), mode="legacy") as client:
            await client.call_tool("echo", ARGUMENTS)
    return ours * 1e3, (time.perf_counter() - start) / 5 * 1e3


def piped(message: dict[str, Any], rounds: int) -> float:
    """Seconds for one message through the raw program, with `json` on both sides of the pipe."""
    process = subprocess.Popen([sys.executable, *CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    taken: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        json.loads(process.stdout.readline())
        taken.append(time.perf_counter() - start)
    process.communicate()
    return statistics.median(taken)


async def megabyte(rounds: int) -> tuple[float, float]:
    """Milliseconds for a megabyte there and back: ours, and the raw pipe."""
    params = {"name": "echo", "arguments": {"text": "x" * 1_000_000}}
    taken: list[float] = []
    async with Link(CommandTarget(sys.executable, CHILD), Options(era="2025")) as link:
        for _ in range(rounds):
            start = time.perf_counter()
            await link.request("tools/call", params)
            taken.append(time.perf_counter() - start)
    raw = piped({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, rounds)
    return statistics.median(taken) * 1e3, raw * 1e3


async def run(scale: float) -> str:
    count = int(1600 * scale)
    rows: list[str] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        todo = progress.add_task("stdio", total=6)
        for era in ("2025", "2026"):
            for tasks in (1, 16):
                taken = await calls(era, tasks, count)
                ours, base = taken["link"], taken["mcp.Client"]
                rows.append(f"| {era} | {tasks} | {ours:,.0f} | {base:,.0f} | {ours / base:.2f} | 0.6 |")
                progress.advance(todo)
        raw_reuse, sdk_reuse = [await reuse(args, int(1000 * scale)) for args in (CHILD, SDK_CHILD)]
        progress.advance(todo)
        ours, raw = await megabyte(int(100 * scale))
        progress.advance(todo)
    text = "\n".join(
        [
            "## Links to programs",
            "",
            LEGEND,
            "",
            "| era | at once | `Link.request` µs | `mcp.Client` µs | ratio | goal |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "| what | figure | goal |",
            "| --- | --- | --- |",
            *(
                f"| {name} per call, a link reused | {opened:.0f} ms, {reused:.2f} ms: {opened / reused:.0f} | 200 |"
                for name, (reused, opened) in (("a raw program", raw_reuse), ("an SDK server", sdk_reuse))
            ),
            f"| a megabyte there and back, over a raw pipe | {ours:.1f} ms, {raw:.1f} ms: {ours / raw:.2f} | 2 |",
        ]
    )
    print(text)
    return text
