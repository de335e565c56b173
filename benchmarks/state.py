"""A tool call that reads and writes its session, beside FastMCP's own session layer: same server, same Valkey, same run.

Rounds alternate. Every answer is checked, and so is what is stored at the end: a lost write would be fast, too.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import redis.asyncio
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_session
from fastmcp.server.sessions import SessionProvider
from key_value.aio.stores.redis import RedisStore
from rich.console import Console
from rich.progress import Progress

import holdfast
from benchmarks.stores import markdown
from tests.servers import Valkey

ROUNDS = 9
SESSIONS = 16
Call = Callable[[int], Awaitable[int]]

LEGEND = (
    "One tool call that reads a counter from its session and writes it back, through FastMCP's client in the same process, "
    "in 2026's era, each task on a session of its own; microseconds a call, median of 9 alternating rounds; the ratio is "
    "ours over theirs in the same round. Round trips are counted with MONITOR (commands inside scripts are not trips). "
    "`ours, saved by middleware` changes `session.draft` and lets middleware write it. FastMCP's layer keeps no history "
    "and loses concurrent writes to one session; ours writes a log entry with each change and loses none."
)


class Counter(holdfast.SessionState):
    n: int = 0

    def up(self) -> None:
        self.n += 1


@asynccontextmanager
async def ours(url: str, save: bool) -> AsyncGenerator[Call]:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Counter, store)
        server = FastMCP("ours")
        sessions.install(server, save=save)

        @server.tool
        async def count(session_id: str, session: holdfast.Session[Counter] = Depends(sessions)) -> int:
            return (await session.update(lambda state: state.up())).n

        handles = [(await sessions.begin()).handle for _ in range(SESSIONS)]
        async with Client(server) as client:

            async def call(number: int) -> int:
                return int((await client.call_tool("count", {"session_id": handles[number]})).data)

            yield call


@asynccontextmanager
async def theirs(url: str) -> AsyncGenerator[Call]:
    server = FastMCP("theirs", session_state_store=RedisStore(url=url))
    server.add_provider(SessionProvider())

    @server.tool
    async def count(session_id: str) -> int:
        session = await get_session(session_id)
        number = int(await session.get("n", 0)) + 1
        await session.set("n", number)
        return number

    async with Client(server) as client:
        ids = [str((await client.call_tool("create_session", {})).data) for _ in range(SESSIONS)]

        async def call(number: int) -> int:
            return int((await client.call_tool("count", {"session_id": ids[number]})).data)

        yield call


class Round:
    """Calls on sessions of their own, each of which must count on from where it was."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.counts = [0] * SESSIONS

    async def time(self, tasks: int, count: int) -> float:
        async def work(number: int) -> None:
            for _ in range(count // tasks):
                answer = await self.call(number)
                self.counts[number] += 1
                assert answer == self.counts[number], f"session {number} answered {answer}"

        began = time.perf_counter()
        await asyncio.gather(*(work(number) for number in range(tasks)))
        return (time.perf_counter() - began) / (count // tasks * tasks)


async def trips(url: str, way: Round) -> float:
    """Commands that clients sent for a call, of twenty calls."""
    seen: list[str] = []
    client = redis.asyncio.Redis.from_url(url)
    async with client.monitor() as monitor:

        async def listen() -> None:
            async for command in monitor.listen():
                seen.append(str(command["command"]) if command["client_type"] != "lua" else "lua")
                if "end-of-count" in seen[-1]:
                    return

        listening = asyncio.ensure_future(listen())
        await way.time(1, 20)
        async with redis.asyncio.Redis.from_url(url) as other:
            await other.echo("end-of-count")
        await asyncio.wait_for(listening, 10)
    await client.aclose()
    sent = [command for command in seen if command != "lua" and "end-of-count" not in command]
    greetings = ("HELLO", "CLIENT", "SELECT", "PING", "AUTH")
    return len([command for command in sent if not command.upper().startswith(greetings)]) / 20


async def run(scale: float) -> str:
    rows: list[tuple[str, ...]] = []
    valkey = Valkey("--appendfsync", "everysec")
    try:
        async with ours(valkey.url, False) as a, ours(valkey.url, True) as b, theirs(valkey.url) as c:
            ways = {"ours": Round(a), "ours, saved by middleware": Round(b), "FastMCP's sessions": Round(c)}
            count = int(1600 * scale)
            found: dict[tuple[str, int], list[float]] = {}
            with Progress(console=Console(stderr=True), transient=True) as progress:
                bar = progress.add_task("state", total=2 * ROUNDS * len(ways))
                for tasks in (1, SESSIONS):
                    for _ in range(ROUNDS):
                        for name, way in ways.items():
                            found.setdefault((name, tasks), []).append(await way.time(tasks, count // 4))
                            progress.advance(bar)
            for name, way in ways.items():
                row = [name]
                for tasks in (1, SESSIONS):
                    mine, base = found[name, tasks], found["FastMCP's sessions", tasks]
                    ratio = statistics.median(one / other for one, other in zip(mine, base, strict=True))
                    row += [f"{statistics.median(mine) * 1e6:,.0f}", f"{ratio:.2f}"]
                rows.append((*row, f"{await trips(valkey.url, way):g}"))
    finally:
        valkey.close()
    head = ("way", "1 task µs", "ratio", f"{SESSIONS} tasks µs", "ratio", "round trips")
    text = "\n\n".join(("## Sessions on a server", LEGEND, markdown(head, rows)))
    Console(soft_wrap=True, highlight=False).print(text, markup=False)
    return text
