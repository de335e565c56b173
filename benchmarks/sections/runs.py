"""Runs compared with the SDK's client held open, with the bare link and with a session per call; and a thousand runs."""

import asyncio
import gc
import sys
import time
from contextlib import AsyncExitStack

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from rich.console import Console
from rich.progress import Progress

import holdfast
from benchmarks.sections.idle import resident
from benchmarks.sections.links import CALL, MODES, Operation, compare, echo_server
from benchmarks.sections.stdio import SDK_CHILD
from holdfast import Link, Server
from holdfast.links import Options

LEGEND = (
    "Microseconds of the client's CPU time a tool call, median of 5 alternating rounds, against a raw echo server: "
    "`server.call_tool` inside a run (typed results), `mcp.Client` held open, and `Link.request` alone, whose result is a "
    "plain dict. A session per call is `mcp.Client` opened for each, as `langchain-mcp-adapters` does by default; over "
    "stdio the program is a server on the SDK. Goals that are missed are in bold."
)
ARGUMENTS = {"text": "hello", "n": 1}


async def calls(url: str, era: str, tasks: int, count: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(url, mode=MODES[era]))  # type: ignore[arg-type]
        link = await stack.enter_async_context(Link(url, Options(era=era)))  # type: ignore[arg-type]
        await stack.enter_async_context(holdfast.run())
        server = Server("echo", url=url, era=era)  # type: ignore[arg-type]
        await client.list_tools()
        contestants: dict[str, Operation] = {
            "client": lambda: client.call_tool("echo", ARGUMENTS),
            "run": lambda: server.call_tool("echo", ARGUMENTS),
            "link": lambda: link.request("tools/call", CALL),
        }
        return await compare(contestants, tasks, count)


async def per_call(server: Server, client: object, count: int, opens: int) -> tuple[float, float]:
    """Milliseconds a call: inside one run, and with a session of its own each."""
    async with holdfast.run():
        await server.call_tool("echo", {"text": "x"})
        start = time.perf_counter()
        for _ in range(count):
            await server.call_tool("echo", {"text": "x"})
        ours = (time.perf_counter() - start) / count
    start = time.perf_counter()
    for _ in range(opens):
        async with Client(client, mode="legacy") as opened:  # type: ignore[arg-type]
            await opened.call_tool("echo", {"text": "x"})
    return ours * 1e3, (time.perf_counter() - start) / opens * 1e3


async def many_runs(url: str, number: int) -> tuple[float, float]:
    """Milliseconds a run, and kilobytes that the second half of them left behind, a run."""
    server = Server("echo", url=url, era="2025")
    before, start = 0, time.perf_counter()
    for turn in range(number):
        if turn == number // 2:
            gc.collect()
            before = resident()
        async with holdfast.run():
            await server.call_tool("echo", ARGUMENTS)
    taken = (time.perf_counter() - start) / number * 1e3
    gc.collect()
    return taken, (resident() - before) / (number // 2) / 1024


def goal(text: str, met: bool) -> str:
    return text if met else f"**{text}**"


async def run(scale: float) -> str:
    count = int(1600 * scale)
    rows: list[str] = []
    with echo_server() as url, Progress(console=Console(stderr=True), transient=True) as progress:
        todo = progress.add_task("runs", total=7)
        for era in ("2025", "2026"):
            for tasks in (1, 16):
                taken = await calls(url, era, tasks, count)
                ratio, over = taken["run"] / taken["client"], taken["run"] - taken["link"]
                rows.append(
                    f"| {era} | {tasks} | {taken['run']:,.0f} | {taken['client']:,.0f} | {goal(f'{ratio:.2f}', ratio <= 0.6)} "
                    f"| {taken['link']:,.0f} | {goal(f'{over:.0f}', over < 30)} |"
                )
                progress.advance(todo)
        http = await per_call(Server("echo", url=url, era="2025"), url, int(1000 * scale), 20)
        progress.advance(todo)
        program = Server("echo", command=sys.executable, args=SDK_CHILD)
        stdio = await per_call(program, StdioServerParameters(command=sys.executable, args=SDK_CHILD), count, 4)
        progress.advance(todo)
        milliseconds, kilobytes = await many_runs(url, int(1000 * scale))
        progress.advance(todo)
    text = "\n".join(
        [
            "## Runs",
            "",
            LEGEND,
            "",
            "| era | at once | run µs | `mcp.Client` µs | ratio (goal 0.6) | link µs | run over link µs (goal 30) |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "| what | figure | goal |",
            "| --- | --- | --- |",
            f"| a session per call over HTTP | {http[1]:.1f} ms, in a run {http[0]:.2f} ms: {http[1] / http[0]:.0f} | 8 |",
            f"| a session per call over stdio | {stdio[1]:.0f} ms, in a run {stdio[0]:.2f} ms: {stdio[1] / stdio[0]:.0f} | 200 |",
            f"| a run opened, used once and closed | {milliseconds:.1f} ms | |",
            f"| memory that a run leaves, over the second 500 of 1,000 | {kilobytes:.2f} KB | 0 |",
        ]
    )
    print(text)
    return text


if __name__ == "__main__":
    asyncio.run(run(0.1))
