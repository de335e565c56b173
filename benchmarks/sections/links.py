"""Links compared with the SDK's own client: CPU of the client, recovery, memory of an idle link, reuse and reopening."""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import mcp_types
from mcp import Client, ClientSession
from rich.console import Console
from rich.progress import Progress

from holdfast import Link
from holdfast.links import LinkDispatcher, Options
from holdfast.testing import Fault, FaultServer

ROUNDS = 5
CALL = {"name": "echo", "arguments": {"text": "hello", "n": 1}}
MODES = {"2025": "legacy", "2026": "2026-07-28"}
GOALS = {"session": 0.5, "link": 0.3}

LEGEND = (
    "Microseconds of the client's CPU time a tool call, median of 5 alternating rounds, against a raw echo server in a "
    "process of its own. `mcp.Client` is the SDK's client; `session` is the SDK's `ClientSession` over our dispatcher, "
    "`link` is `Link.request`; ratios are over `mcp.Client`."
)

Operation = Callable[[], Awaitable[Any]]


@contextmanager
def echo_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent.parent / "servers" / "echo.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.communicate(timeout=10)


async def cpu(operation: Operation, tasks: int, count: int) -> float:
    """CPU seconds of this process for each operation."""

    async def work() -> None:
        for _ in range(count // tasks):
            await operation()

    start = time.process_time()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.process_time() - start) / (count // tasks * tasks)


async def compare(contestants: dict[str, Operation], tasks: int, count: int) -> dict[str, float]:
    """CPU microseconds of each, the median of several rounds in turn."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for operation in contestants.values():
        await cpu(operation, tasks, max(tasks, count // 5))
    for _ in range(ROUNDS):
        for name, operation in contestants.items():
            taken[name].append(await cpu(operation, tasks, count))
    return {name: statistics.median(each) * 1e6 for name, each in taken.items()}


async def calls(url: str, era: str, tasks: int, count: int) -> dict[str, float]:
    """Median CPU microseconds a call, by contestant."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(url, mode=MODES[era]))  # type: ignore[arg-type]
        session_link = await stack.enter_async_context(Link(url, Options(era=era)))  # type: ignore[arg-type]
        session = await stack.enter_async_context(ClientSession(dispatcher=LinkDispatcher(session_link)))
        if era == "2025":
            await session.initialize()
        else:
            await session.discover()
        link = await stack.enter_async_context(Link(url, Options(era=era)))  # type: ignore[arg-type]
        await client.list_tools()
        await session.list_tools()  # otherwise its first call would list them, and that would be counted
        contestants: dict[str, Operation] = {
            "mcp.Client": lambda: client.call_tool("echo", CALL["arguments"]),
            "session": lambda: session.call_tool("echo", CALL["arguments"]),
            "link": lambda: link.request("tools/call", CALL),
        }
        return await compare(contestants, tasks, count)


async def recovery() -> tuple[int, float, float]:
    """Extra requests of a call that met a lost session, and its milliseconds beside a plain call's."""
    async with FaultServer(era="2025") as server, Link(server.url, Options(stream=False)) as link:
        plain, healed, extra = [], [], 0
        await link.request("tools/list")
        for _ in range(30):
            start = time.perf_counter()
            await link.request("tools/list")
            plain.append(time.perf_counter() - start)
            server.plan(Fault.FORGET, method="tools/list")
            before, start = len(server.requests), time.perf_counter()
            await link.request("tools/list")
            healed.append(time.perf_counter() - start)
            extra = max(extra, len(server.requests) - before - 2)  # the call that failed, and the one that answered
        return extra, statistics.median(plain) * 1e3, statistics.median(healed) * 1e3


def idle_memory(url: str, era: str, number: int) -> float:
    """Kilobytes for each idle link after one call; in 2025 with the server's stream open."""
    command = [sys.executable, "-m", "benchmarks.sections.idle", url, era, str(number)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


async def reuse(url: str, count: int) -> tuple[float, float]:
    """Milliseconds a call: one link reused, and the SDK's client opened for each call."""
    async with Link(url, Options(era="2025")) as link:
        await link.request("tools/list")
        start = time.perf_counter()
        for _ in range(count):
            await link.request("tools/call", CALL)
        ours = (time.perf_counter() - start) / count
    start = time.perf_counter()
    for _ in range(count // 10):
        async with Client(url, mode="legacy") as client:
            await client.call_tool("echo", CALL["arguments"])
    return ours * 1e3, (time.perf_counter() - start) / (count // 10) * 1e3


async def run(scale: float) -> str:
    count = int(1600 * scale)
    rows: list[str] = []
    assert mcp_types.LATEST_PROTOCOL_VERSION  # the SDK that is compared with is the installed one
    with echo_server() as url, Progress(console=Console(stderr=True), transient=True) as progress:
        todo = progress.add_task("links", total=7)
        for era in ("2025", "2026"):
            for tasks in (1, 16):
                taken = await calls(url, era, tasks, count)
                base = taken["mcp.Client"]
                for name, goal in GOALS.items():
                    ratio = taken[name] / base
                    rows.append(
                        f"| {era} | {tasks} | {name} | {taken[name]:,.0f} | {base:,.0f} | {ratio:.2f} | {goal} |"
                    )
                progress.advance(todo)
        kilobytes = {era: idle_memory(url, era, int(1000 * scale)) for era in ("2025", "2026")}
        progress.advance(todo)
        ours, theirs = await reuse(url, int(1000 * scale))
        progress.advance(todo)
        extra, plain, healed = await recovery()
        progress.advance(todo)
    text = "\n".join(
        [
            "## Links",
            "",
            LEGEND,
            "",
            "| era | at once | ours | ours µs | `mcp.Client` µs | ratio | goal |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "| what | figure | goal |",
            "| --- | --- | --- |",
            f"| extra requests to recover a lost session | {extra} | 2 |",
            f"| a call that recovers, beside a plain one | {healed:.1f} ms, {plain:.1f} ms | |",
            f"| memory of an idle link, 2025 | {kilobytes['2025']:.0f} KB | 45 KB |",
            f"| memory of an idle link, 2026 | {kilobytes['2026']:.0f} KB | 45 KB |",
            f"| `mcp.Client` per call, a link reused | {theirs:.1f} ms, {ours:.2f} ms: {theirs / ours:.0f} | 8 |",
        ]
    )
    print(text)
    return text
