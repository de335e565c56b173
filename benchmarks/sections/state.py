"""A tool call that reads and writes its session, compared with FastMCP's own sessions: same server, same Valkey, same run.

Rounds alternate. Every answer is checked, and so is what is stored at the end: a lost write would be fast, too.
"""

import asyncio
import statistics
import time
from collections import Counter as Counting
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_session
from fastmcp.server.sessions import SessionProvider
from key_value.aio.stores.redis import RedisStore
from rich.console import Console
from rich.progress import Progress

import holdfast
from benchmarks.sections.stores import markdown
from tests.servers import Valkey

ROUNDS = 9
SESSIONS = 16
Call = Callable[[int], Awaitable[int]]

BASE = "FastMCP's sessions"
LEGEND = (
    "One tool call that reads a counter from its session and writes it back, each task on a session of its own, on the same "
    "Valkey: through FastMCP's client in the same process in 2026's era, and at the server alone (`server.call_tool`). "
    "Microseconds a call, median of 9 alternating rounds; the ratio is over FastMCP's sessions in the same round. `no session "
    "at all` is what FastMCP itself takes for the call. Round trips are counted with MONITOR (commands inside scripts are not "
    "trips). FastMCP's layer keeps no history and loses concurrent writes to one session; ours writes a log entry with each "
    "change and loses none."
)


class Counter(holdfast.SessionState):
    n: int = 0

    def up(self) -> None:
        self.n += 1


@asynccontextmanager
async def ours(url: str, writes: bool) -> AsyncGenerator["Ways"]:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Counter, store, noun="session")
        server = FastMCP("ours")
        sessions.install(server)

        if writes:

            @server.tool(name="count")
            @sessions.writes
            async def count(counter: Counter) -> int:
                counter.up()
                return counter.n

        else:

            @server.tool(name="count")
            async def update(session_id: str, session: holdfast.Session[Counter] = Depends(sessions)) -> int:
                return (await session.update(lambda state: state.up())).n

        handles = [(await sessions.begin()).handle for _ in range(SESSIONS)]
        async with Client(server) as client:
            yield Ways(server, client, [{"session_id": handle} for handle in handles])


@asynccontextmanager
async def theirs(url: str) -> AsyncGenerator["Ways"]:
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

        yield Ways(server, client, [{"session_id": id} for id in ids])


@asynccontextmanager
async def nothing() -> AsyncGenerator["Ways"]:
    """The same call with no session: the time of FastMCP itself."""
    server = FastMCP("nothing")
    counts: Counting[str] = Counting()

    @server.tool
    async def count(session_id: str) -> int:
        counts[session_id] += 1
        return counts[session_id]

    async with Client(server) as client:
        yield Ways(server, client, [{"session_id": str(number)} for number in range(SESSIONS)])


class Ways:
    """Calls on sessions of their own, each of which must count on from where it was: by a client, or at the server."""

    def __init__(self, server: "FastMCP[Any]", client: "Client[Any]", arguments: list[dict[str, str]]) -> None:
        self.counts = [0] * SESSIONS

        async def by_client(number: int) -> int:
            return int((await client.call_tool("count", arguments[number])).data)

        async def at_server(number: int) -> int:
            result = await server.call_tool("count", arguments[number])
            return int((result.structured_content or {})["result"])

        self.calls: dict[str, Call] = {"client": by_client, "server": at_server}

    async def time(self, way: str, tasks: int, count: int) -> float:
        async def work(number: int) -> None:
            for _ in range(count // tasks):
                answer = await self.calls[way](number)
                self.counts[number] += 1
                assert answer == self.counts[number], f"session {number} answered {answer}"

        began = time.perf_counter()
        await asyncio.gather(*(work(number) for number in range(tasks)))
        return (time.perf_counter() - began) / (count // tasks * tasks)


async def trips(url: str, ways: Ways) -> float:
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
        await ways.time("client", 1, 20)
        async with redis.asyncio.Redis.from_url(url) as other:
            await other.echo("end-of-count")
        await asyncio.wait_for(listening, 10)
    await client.aclose()
    sent = [command for command in seen if command != "lua" and "end-of-count" not in command]
    handshakes = ("HELLO", "CLIENT", "SELECT", "PING", "AUTH")
    return len([command for command in sent if not command.upper().startswith(handshakes)]) / 20


async def run(scale: float) -> str:
    rows: list[tuple[str, ...]] = []
    valkey = Valkey("--appendfsync", "everysec")
    places = [(way, tasks) for way in ("client", "server") for tasks in (1, SESSIONS)]
    try:
        async with ours(valkey.url, False) as a, ours(valkey.url, True) as b, theirs(valkey.url) as c, nothing() as d:
            subjects = {"ours, by `session.update`": a, "ours, by `writes`": b, BASE: c, "no session at all": d}
            found: dict[tuple[str, str, int], list[float]] = {}
            with Progress(console=Console(stderr=True), transient=True) as progress:
                bar = progress.add_task("state", total=len(places) * ROUNDS * len(subjects))
                for way, tasks in places:
                    for _ in range(ROUNDS):
                        for name, subject in subjects.items():
                            took = await subject.time(way, tasks, int(400 * scale))
                            found.setdefault((name, way, tasks), []).append(took)
                            progress.advance(bar)
            for name, subject in subjects.items():
                row = [name]
                for place in places:
                    mine, base = found[name, *place], found[BASE, *place]
                    ratio = statistics.median(one / other for one, other in zip(mine, base, strict=True))
                    row += [f"{statistics.median(mine) * 1e6:,.0f}", f"{ratio:.2f}"]
                rows.append((*row, f"{await trips(valkey.url, subject):g}"))
    finally:
        valkey.close()
    head = ["way"]
    for way, tasks in places:
        head += [f"{way}, {tasks} task{'s' * (tasks > 1)} µs", "ratio"]
    text = "\n\n".join(("## Sessions on a server", LEGEND, markdown((*head, "round trips"), rows)))
    Console(soft_wrap=True, highlight=False).print(text, markup=False)
    return text
