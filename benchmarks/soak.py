"""`MINUTES=30 python -m benchmarks.soak`: a gateway under mixed clients while everything around it fails at random.

It owns the load, the faults, and the judgement: every answer is checked by whoever asked, every effect is counted where
it happened, and what was told of a call is held against what was done. It refuses to explain anything away: two effects
of one call, a wrong answer, state that went without a word, an error without a family, or something left behind at the
end, and it exits with 1.

The faults stop for the last part of the time (`tail`): then the servers forget everything, the gateway is killed once
more, and what is left after the clients have gone was the gateway's to clean up.

`python -m benchmarks.soak server PORT FILE` is one of its backends: the SDK's server, with effects in a file.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
PLOT = HERE.parent / "docs" / "soak.svg"

IDLE = 10.0  # seconds after which the gateway ends a session: short, so that the end of a run can wait for it
TOUCHED = IDLE / 10 + 1.0  # seconds by which a session's last use is older in the store than at its client
PATIENCE = 20.0  # seconds that a client waits: no outage here lasts a quarter of that
DRAIN = 3.0  # seconds that the gateway gives calls when it is told to stop
SETTLE = 16.0  # seconds after the last call in which everything must be gone
SAMPLE = 2.0  # seconds between two looks at the gateway's memory
WARM_UP = (
    90.0  # seconds of a process's life in which memory may grow: SQLite's cache and the allocator fill up that long
)
JUDGED = 60.0  # seconds of samples without which a slope means nothing
SLOPE = 1.0  # MB a minute
FILES = 4  # open files that may be left over those of a gateway that nobody has used
STALE = 2.0  # seconds after a restart in which a client may still find a dead connection
EXAMPLES = 5
PLOT_MINUTES = 3.0  # a shorter run draws nothing into the docs
CONNECTIONS = 24  # kept to one backend for the next call, a minute long: as many as calls were under way at once
CLIENTS = {"raw 2025": 7, "raw 2026": 3, "mcp.Client": 2, "FastMCP": 2}
TO = "connection to "
ERROR = "dev.holdfast/error"
KEEPS = ("a", "sdk", "notes")  # backends with state in a session
ANY = -1  # a counter may stand anywhere after an unknown outcome


def main() -> None:
    if sys.argv[1:2] == ["server"]:
        sdk_server(int(sys.argv[2]), Path(sys.argv[3]))
        return
    logging.disable(logging.CRITICAL)  # clients and servers complain of what we do to them on purpose
    minutes = float(os.environ.get("MINUTES") or 30)
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    sys.exit(0 if asyncio.run(soak(minutes, seed)) else 1)


# Backends


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
    """That server, killed, stopped and started again."""

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
            cwd=HERE.parent,
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
        """Its exit code. Its descendants must be gone soon after it, however it went."""
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


# What was asked, and what came of it


@dataclass
class Call:
    """One tool call. Its id is at the backend, too, wherever the backend can count."""

    id: str
    backend: str
    tool: str
    arguments: dict[str, str]
    began: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.backend}__{self.tool}"


@dataclass
class Holding:
    """What one session must remember, as its client sees it: by backend, the last number it was told."""

    label: str
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEEPS, 0))
    late: Counter[str] = field(default_factory=Counter[str])
    """Calls of unknown outcome: each may be executed after calls that were made later."""
    used: float = field(default_factory=time.monotonic)

    @property
    def is_live(self) -> bool:
        """Used so recently that the gateway may not have ended it, however long it was down."""
        return time.monotonic() - self.used < IDLE - TOUCHED


class Ledger:
    """Everything that is known of every call."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.calls: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.told: dict[str, str] = {}
        """By call: `done`, `not done` or `unknown`."""
        self.faults: dict[str, list[str]] = {"wrong": [], "silent": [], "untyped": [], "double": []}
        self.counts: Counter[str] = Counter()
        self._ids = itertools.count(1)

    def fault(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if len(self.faults[kind]) < EXAMPLES:
            self.faults[kind].append(text)

    def new(self, label: str, stateful: bool, notes: bool) -> Call:
        """A random call."""
        backend = random.choices(("a", "b", "sdk", "notes"), (6, 3, 3, 1.5 if notes else 0))[0]
        id = f"{backend}-{next(self._ids)}"
        if backend == "notes":
            if random.random() < 0.3:
                return Call(id, backend, "read", {})
            return Call(id, backend, "write", {"text": f"{label}/{id}"})
        tool = random.choices(("echo", "effect", "count"), (3, 2, 4 if backend != "b" else 0))[0]
        if not stateful and tool == "count" and random.random() < 0.7:
            tool = "effect"
        arguments = {"call": id, **({"text": f"{label} says {id}"} if tool == "echo" else {})}
        return Call(id, backend, tool, arguments)

    def sent(self, kind: str, call: Call) -> None:
        self.calls[kind] += 1
        call.began = time.monotonic()
        self.told[call.id] = "unknown"

    def unknown(self, call: Call, holding: Holding | None) -> None:
        """It may have happened, and what it changed may have gone since."""
        if holding is not None and call.backend in holding.last:
            holding.last[call.backend] = ANY
            holding.late[call.backend] += call.tool in ("count", "write")

    def answered(
        self,
        kind: str,
        call: Call,
        holding: Holding | None,
        texts: list[str],
        is_error: bool,
        meta: Mapping[str, Any] | None,
    ) -> None:
        if is_error:
            error = (meta or {}).get(ERROR)
            family = error.get("family") if isinstance(error, dict) else None
            if family is None:
                self.fault("untyped", f"{kind}: {call.name}: a tool error without a family: {texts} {meta}")
                self.unknown(call, holding)
                return
            self.failed(call, holding, str(family), str(error.get("kind")))
            return
        self.outcomes["ok"] += 1
        self.told[call.id] = "done"
        if holding is not None:
            holding.used = call.began
        wrong = self._wrong(call, holding, texts)
        if wrong is not None:
            self.fault(wrong[0], f"{kind}: {call.name} {call.arguments}: {wrong[1]}; it answered {texts}")

    def failed(self, call: Call, holding: Holding | None, family: str, kind: str) -> None:
        self.outcomes[f"{family}: {kind}"] += 1
        if family == "OutcomeUnknown":
            self.unknown(call, holding)
            return
        self.told[call.id] = "not done"
        if kind == "SessionReplaced" and holding is not None and call.backend in holding.last:
            holding.last[call.backend] = 0
            holding.late[call.backend] = 0

    def _wrong(self, call: Call, holding: Holding | None, texts: list[str]) -> tuple[str, str] | None:
        first = texts[0] if texts else ""
        if call.tool == "echo":
            return None if first == call.arguments["text"] else ("wrong", "not its text")
        if call.tool == "effect":
            return None if first == "" else ("wrong", "not its answer")
        if call.tool == "read":
            own = f"{holding.label}/" if holding is not None else "nobody/"
            if len(set(texts)) < len(texts):
                return "double", "a note stands there twice"
            return None if all(text.startswith(own) for text in texts) else ("wrong", "another's notes")
        digits = first.removeprefix("noted, ").removesuffix(" so far")
        if not digits.isdigit():
            return "wrong", "not a number"
        number = int(digits)
        if holding is None:
            return None if number == 1 else ("wrong", "a call of its own met another's session")
        last, holding.last[call.backend] = holding.last[call.backend], number
        if last == ANY or last < number <= last + 1 + holding.late[call.backend]:
            return None
        return ("silent" if number <= last else "wrong"), f"the last was {last}"

    def disconnected(self, kind: str, call: Call | None, holding: Holding | None, since: float, error: object) -> None:
        """A connection that failed is the gateway's right only while it is down."""
        if call is not None:
            if _refused(error):
                self.told[call.id] = "not done"
            else:
                self.unknown(call, holding)
        if self.gateway.was_down(since):
            self.outcomes["no connection, the gateway was down"] += 1
        else:
            name = call.name if call is not None else "begin"
            self.fault("untyped", f"{kind}: {name}: the gateway was up, and {error!r}")

    def refused(self, kind: str, call: Call | None, status: int, body: object, lost: bool) -> None:
        """An HTTP status instead of an answer. `lost`: the session was in use a moment ago."""
        if call is not None:
            self.told[call.id] = "not done"
        if status == 404:
            self.outcomes["404, session over"] += 1
            if lost:
                self.fault("silent", f"{kind}: a session that was in use is not found: {body!r:.500}")
        elif status == 503:
            self.outcomes["503"] += 1
        else:
            self.fault("untyped", f"{kind}: {call.name if call else 'begin'}: HTTP {status}: {body!r:.2000}")

    def compare(self, effects: Mapping[str, int]) -> None:
        """Hold what callers were told against what was done."""
        for id, count in effects.items():
            if count > 1:
                self.fault("double", f"{id} was told as {self.told.get(id)}, and happened {count} times")
        for id, told in self.told.items():
            if id.startswith("notes"):
                continue
            if told == "done" and not effects.get(id):
                self.fault("wrong", f"{id} was answered, and never happened")
            if told == "not done" and effects.get(id):
                self.fault("wrong", f"{id} was told as not executed, and happened")


def _refused(error: object) -> bool:
    """Did nobody take the connection? Then nothing was sent."""
    own = getattr(error, "os_error", error)
    return isinstance(own, OSError) and own.errno == errno.ECONNREFUSED


# Clients


class World:
    """What clients and faults share."""

    def __init__(self, gateway: Gateway, ledger: Ledger) -> None:
        self.gateway = gateway
        self.ledger = ledger
        self.running = True
        self.calm = asyncio.Event()
        """Set when the faults are over."""
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.beginning = 0

    @contextlib.asynccontextmanager
    async def begins(self) -> AsyncGenerator[None]:
        """Something begins at the backends: not while we count what is there."""
        await self.may_begin.wait()
        self.beginning += 1
        try:
            yield
        finally:
            self.beginning -= 1

    async def rest(self, seconds: float) -> bool:
        """True when the faults are over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.calm.wait(), seconds)
        return self.calm.is_set()


async def raw_2025(world: World, number: int) -> None:
    """Sessions by hand: ended, abandoned, left to expire."""
    import aiohttp

    from tests.gateway.clients import Raw

    kind, ledger = "raw 2025", world.ledger
    for turn in itertools.count():
        if not world.running:
            return
        holding = Holding(f"raw{number}.{turn}")
        async with Raw(world.gateway.url) as client, contextlib.AsyncExitStack() as stack:
            began = time.monotonic()
            try:
                async with world.begins(), asyncio.timeout(PATIENCE):
                    initialized = await client.initialize()
            except (aiohttp.ClientError, OSError) as error:
                ledger.disconnected(kind, None, None, began, error)
                await asyncio.sleep(0.3)
                continue
            if initialized.status != 200:
                ledger.refused(kind, None, initialized.status, initialized.raw, False)
                await asyncio.sleep(0.3)
                continue
            if random.random() < 0.25:
                listening = asyncio.create_task(_listen(client))
                stack.callback(listening.cancel)
            notes = random.random() < 0.15
            for _ in range(random.randint(3, 60)):
                if not world.running or not await _call_2025(world, client, holding, notes):
                    break
                await asyncio.sleep(random.uniform(0.005, 0.08))
            else:
                await _leave(world, client)


async def _listen(client: Any) -> None:
    with contextlib.suppress(Exception):
        async with client.stream() as events:
            while True:
                await events.next(PATIENCE)


async def _leave(world: World, client: Any) -> None:
    import aiohttp

    how, ledger, began = random.random(), world.ledger, time.monotonic()
    try:
        if how < 0.45:
            answer = await client.delete()
            if answer.status not in (204, 404):
                ledger.refused("raw 2025", None, answer.status, answer.raw, False)
            after = await client.ask("ping")
            if after.status not in (404, 503):
                ledger.fault("wrong", f"raw 2025: a deleted session answers {after.status} {after.raw!r:.500}")
        elif how < 0.55:
            await world.rest(IDLE + 3)
            answer = await client.ask("ping")
            if answer.status != 200:
                ledger.refused("raw 2025", None, answer.status, answer.raw, False)
    except (aiohttp.ClientError, OSError) as error:
        ledger.disconnected("raw 2025", None, None, began, error)


async def _call_2025(world: World, client: Any, holding: Holding, notes: bool) -> bool:
    """False: the session is over, or nobody is there."""
    import aiohttp

    kind, ledger = "raw 2025", world.ledger
    call = ledger.new(holding.label, True, notes)
    ledger.sent(kind, call)
    if random.random() < 0.02:
        await _hang_up(client.call(call.name, **call.arguments))
        ledger.outcomes["hung up by the client"] += 1
        ledger.unknown(call, holding)
        return True
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await client.call(call.name, **call.arguments)
    except TimeoutError:
        _stuck(ledger, kind, call, holding)
        return False
    except (aiohttp.ClientError, OSError) as error:
        ledger.disconnected(kind, call, holding, call.began, error)
        await asyncio.sleep(0.3)
        return True
    if answer.status != 200:
        ledger.refused(kind, call, answer.status, answer.raw, holding.is_live)
        await asyncio.sleep(0.1)
        return answer.status == 503
    _take(ledger, kind, call, holding, answer)
    return True


def _take(ledger: Ledger, kind: str, call: Call, holding: Holding | None, answer: Any) -> None:
    """A raw answer with status 200."""
    last = answer.last if answer.messages else {}
    result = last.get("result")
    if isinstance(result, dict):
        texts = [str(part.get("text")) for part in result.get("content", ())]
        ledger.answered(kind, call, holding, texts, bool(result.get("isError")), result.get("_meta"))
        return
    family = ((last.get("error") or {}).get("data") or {}).get("family")
    if family is not None:
        ledger.failed(call, holding, str(family), str(last["error"]["data"].get("kind")))
        return
    ledger.fault("untyped", f"{kind}: {call.name}: {answer.status} {answer.raw!r:.2000}")
    ledger.unknown(call, holding)


def _stuck(ledger: Ledger, kind: str, call: Call, holding: Holding | None) -> None:
    ledger.fault("untyped", f"{kind}: {call.name} {call.arguments}: no answer in {PATIENCE:g} s")
    ledger.unknown(call, holding)


async def _hang_up(asking: Awaitable[Any]) -> None:
    """In the middle of the call."""
    task = asyncio.ensure_future(asking)
    await asyncio.wait((task,), timeout=random.uniform(0.0005, 0.02))
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


async def raw_2026(world: World, number: int) -> None:
    """Calls that stand by themselves."""
    import aiohttp

    from tests.gateway.clients import Raw

    kind, ledger = "raw 2026", world.ledger
    async with Raw(world.gateway.url) as client:
        while world.running:
            call = ledger.new(f"stateless{number}", False, random.random() < 0.02)
            async with world.begins():
                ledger.sent(kind, call)
                if random.random() < 0.03:
                    await _hang_up(client.call_2026(call.name, **call.arguments))
                    ledger.outcomes["hung up by the client"] += 1
                    continue
                try:
                    async with asyncio.timeout(PATIENCE):
                        answer = await client.call_2026(call.name, **call.arguments)
                    if answer.status == 503:
                        ledger.refused(kind, call, answer.status, answer.raw, False)
                    elif call.tool == "read":
                        ledger.outcomes["ok"] += 1
                    else:
                        _take(ledger, kind, call, None, answer)
                except TimeoutError:
                    _stuck(ledger, kind, call, None)
                except (aiohttp.ClientError, OSError) as error:
                    ledger.disconnected(kind, call, None, call.began, error)
                    await asyncio.sleep(0.3)
            await asyncio.sleep(random.uniform(0.02, 0.1))


async def library(world: World, number: int, kind: str) -> None:
    """Clients that others wrote. They are no good after their connection has failed, so each turn has a new one."""
    import fastmcp
    import mcp

    ledger = world.ledger
    for turn in itertools.count():
        if not world.running:
            return
        holding = Holding(f"{kind}{number}.{turn}")
        call: Call | None = None
        began = time.monotonic()
        beginning = contextlib.AsyncExitStack()
        await beginning.enter_async_context(world.begins())
        try:
            client: Any = (
                mcp.Client(world.gateway.url, read_timeout_seconds=PATIENCE)
                if kind == "mcp.Client"
                else fastmcp.Client(world.gateway.url, timeout=PATIENCE)
            )
            async with client:
                await beginning.aclose()
                ask: Callable[..., Awaitable[Any]] = client.call_tool if kind == "mcp.Client" else client.call_tool_mcp
                notes = random.random() < 0.15
                for _ in range(random.randint(3, 60)):
                    if not world.running:
                        break
                    call = ledger.new(holding.label, True, notes)
                    ledger.sent(kind, call)
                    result = await ask(call.name, call.arguments)
                    texts = [part.text for part in result.content]
                    ledger.answered(kind, call, holding, texts, bool(result.is_error), result.meta)
                    call = None
                    await asyncio.sleep(random.uniform(0.01, 0.1))
        except Exception as error:
            _library_failed(world, kind, call, holding, began if call is None else call.began, error)
            await asyncio.sleep(0.3)
        finally:
            await beginning.aclose()


def _library_failed(
    world: World, kind: str, call: Call | None, holding: Holding, since: float, error: Exception
) -> None:
    import httpx2
    import mcp

    ledger = world.ledger
    if call is not None:
        ledger.unknown(call, holding)
    for each in _leaves(error):
        if isinstance(each, mcp.MCPError):
            family = (each.error.data or {}).get("family") if isinstance(each.error.data, dict) else None
            if family is not None:
                ledger.outcomes[f"{family}: {each.error.data.get('kind')}"] += 1
                continue
            if each.error.code == -32001 and "not found" in each.error.message:
                ledger.refused(kind, None, 404, each.error.message, holding.is_live)
                continue
        connection = isinstance(each, httpx2.TransportError | mcp.MCPError | OSError) or "onnect" in str(each)
        if connection and world.gateway.was_down(since):
            ledger.outcomes["no connection, the gateway was down"] += 1
            continue
        ledger.fault("untyped", f"{kind}: {call.name if call else 'begin or end'}: {each!r:.2000}")


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


# Faults


async def trouble_faulty(world: World, server: Any, done: Counter[str]) -> None:
    """A scripted server: forgets, refuses, hangs, breaks answers."""
    from holdfast.testing import Fault

    effectful = (Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY, Fault.BROKEN_JSON, Fault.NOT_JSON_RPC, Fault.WRONG_ID)
    others = (Fault.CLOSE_AFTER, Fault.FORGET, Fault.STRAYS, Fault.CLOSE_IN_STREAM, Fault.HTML, Fault.ACCEPTED)
    while not await world.rest(random.uniform(1.0, 5.0)):
        server.lift()
        what = random.choice(("forget", "restart", "refuse", "hang", "break", "break", "status", "cut"))
        done[what] += 1
        match what:
            case "forget":
                server.sessions.sessions.clear()
            case "restart":
                await server.restart()
            case "refuse":
                await server.refuse()
                await world.rest(random.uniform(0.2, 3.0))
                await server.listen()
            case "hang":
                method = random.choice(("tools/call", "tools/call", "initialize", None))
                server.plan(Fault.HANG, method=method, times=10**6, effect=random.random() < 0.5)
                await world.rest(random.uniform(0.5, 4.0))
                server.lift()
                await server.cut()
            case "break":
                fault = random.choice((*effectful, *others))
                effect = fault in effectful and random.random() < 0.6
                server.plan(fault, method="tools/call", times=random.randint(1, 5), effect=effect)
            case "status":
                status = random.choice((429, 500, 502, 503, 504))
                server.plan(Fault.STATUS, method="tools/call", times=random.randint(1, 5), status=status)
            case _:
                await server.cut()
        server.requests.clear()
    server.lift()


async def trouble_sdk(world: World, sdk: Sdk, done: Counter[str]) -> None:
    """A real server: killed, or stopped for a while."""
    while not await world.rest(random.uniform(4.0, 12.0)):
        if random.random() < 0.5:
            done["kill"] += 1
            await sdk.kill()
            await world.rest(random.uniform(0.0, 2.0))
            await sdk.start()
        else:
            done["stop"] += 1
            sdk.send(signal.SIGSTOP)
            await world.rest(random.uniform(0.5, 4.0))
            sdk.send(signal.SIGCONT)


async def trouble_children(world: World, done: Counter[str]) -> None:
    """Programs that the gateway started."""
    while not await world.rest(random.uniform(2.0, 8.0)):
        running = [pid for pid in descendants(world.gateway.pid) if "notebook" in command(pid)]
        if running:
            done["kill"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(running), signal.SIGKILL)


async def trouble_gateway(world: World, seconds: float, began: float) -> None:
    """The gateway itself: often at first, later seldom enough for a memory curve that says something."""
    while True:
        early = began + seconds / 3 - time.monotonic()
        gap = random.uniform(0.15, 0.3) * seconds
        wait = min(gap, random.uniform(10, 35), early) if early > 0 else max(gap, WARM_UP + JUDGED + 10)
        if await world.rest(wait):
            return
        number = random.choice((signal.SIGTERM, signal.SIGKILL))
        code = await world.gateway.restart(number)
        if number is signal.SIGTERM and code != 0:
            world.ledger.fault("untyped", f"the gateway: SIGTERM, and it exited with {code}")


# Processes


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true in time"
        await asyncio.sleep(0.05)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [pid] if pid else []
    while todo:
        born = children.get(todo.pop(), [])
        found += born
        todo += born
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def opened(pid: int, ports: Mapping[int, str]) -> Iterable[str]:
    """What each open file is: for connections, to whom."""
    ends: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[2].rpartition(":")[2], 16)
        ends[f"socket:[{fields[9]}]"] = TO + ports[port] if port in ports else "connection of a client"
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            yield ends.get(target, target.partition("[")[0])


def megabytes(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


# Memory


@dataclass(frozen=True)
class Sample:
    at: float  # seconds since the beginning
    process: int
    age: float  # of the process
    size: float  # MB


class Curve:
    """The gateway's memory over time."""

    def __init__(self, gateway: Gateway, began: float) -> None:
        self._gateway = gateway
        self._began = began
        self.samples: list[Sample] = []

    async def run(self) -> None:
        while True:
            pid, now = self._gateway.pid, time.monotonic()
            if pid and (size := megabytes(pid)):
                self.samples.append(Sample(now - self._began, pid, now - self._gateway.began, size))
            await asyncio.sleep(SAMPLE)

    def slope(self) -> tuple[float | None, float]:
        """MB a minute over the last two thirds, within processes that had warmed up; and the seconds it stands on."""
        if not self.samples:
            return None, 0.0
        start = self.samples[-1].at / 3
        segments: dict[int, list[Sample]] = {}
        for sample in self.samples:
            if sample.at >= start and sample.age >= WARM_UP:
                segments.setdefault(sample.process, []).append(sample)
        above = below = seconds = 0.0
        for segment in segments.values():
            middle = sum(s.at for s in segment) / len(segment)
            level = sum(s.size for s in segment) / len(segment)
            above += sum((s.at - middle) * (s.size - level) for s in segment)
            below += sum((s.at - middle) ** 2 for s in segment)
            seconds += segment[-1].at - segment[0].at
        return (above / below * 60 if below and seconds >= JUDGED else None), seconds

    def line(self, width: int = 72) -> str:
        if not self.samples:
            return ""
        step = max(1, -(-len(self.samples) // width))
        sizes = [max(s.size for s in self.samples[n : n + step]) for n in range(0, len(self.samples), step)]
        low, high = min(sizes), max(sizes)
        blocks = "▁▂▃▄▅▆▇█"
        drawn = "".join(blocks[min(7, int((size - low) / max(high - low, 0.001) * 8))] for size in sizes)
        return f"{low:.0f} MB {drawn} {high:.0f} MB"

    def svg(self, title: str) -> str:
        width, height, left, foot, top = 900, 300, 56, 34, 34
        last = max(self.samples[-1].at, 1.0)
        high = max(s.size for s in self.samples) * 1.1

        def x(at: float) -> float:
            return left + at / last * (width - left - 16)

        def y(size: float) -> float:
            return height - foot - size / high * (height - foot - top)

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20">{title}</text>',
        ]
        for n in range(5):
            size = high * n / 4
            parts.append(f'<line x1="{left}" x2="{width - 16}" y1="{y(size):.1f}" y2="{y(size):.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y(size) + 4:.1f}" text-anchor="end">{size:.0f} MB</text>')
        for n in range(7):
            at = last * n / 6
            parts.append(f'<text x="{x(at):.1f}" y="{height - 12}" text-anchor="middle">{at / 60:.1f} min</text>')
        for _, group in itertools.groupby(self.samples, key=lambda s: s.process):
            points = list(group)
            parts.append(
                f'<line x1="{x(points[0].at):.1f}" x2="{x(points[0].at):.1f}" y1="{top}" y2="{height - foot}" stroke="#e8a33d" stroke-dasharray="3 3"/>'
            )
            drawn = " ".join(f"{x(s.at):.1f},{y(s.size):.1f}" for s in points)
            parts.append(f'<polyline points="{drawn}" fill="none" stroke="#2060a0" stroke-width="1.5"/>')
        return "\n".join([*parts, "</svg>", ""])


# The run


async def soak(minutes: float, seed: int) -> bool:
    from holdfast.testing import FaultServer

    random.seed(seed)
    seconds = minutes * 60
    print(f"soak: {minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdk = Sdk(folder)
        async with FaultServer(answers="sse") as a, FaultServer(era="2026") as b:
            servers: dict[str, Any] = {
                "a": {"url": a.url, "era": "2025"},
                "b": {"url": b.url, "era": "2026"},
                "sdk": {"url": sdk.url, "era": "2025"},
                "notes": {
                    "command": sys.executable,
                    "args": ["-m", "holdfast.gateway.demo.notebook"],
                    "era": "2025",
                    "start": "lazy",
                },
            }
            gateway = Gateway(folder, servers)
            try:
                await sdk.start()
                await gateway.start()
                return await Run(seconds, gateway, a, b, sdk).run()
            finally:
                if gateway.process is not None:
                    gateway.process.kill()
                    await gateway.process.wait()
                await sdk.kill()


class Run:
    """One soak from the first call to the report."""

    def __init__(self, seconds: float, gateway: Gateway, a: Any, b: Any, sdk: Sdk) -> None:
        self.seconds = seconds
        self.gateway, self.a, self.b, self.sdk = gateway, a, b, sdk
        self.ledger = Ledger(gateway)
        self.world = World(gateway, self.ledger)
        self.troubles: dict[str, Counter[str]] = {name: Counter() for name in ("a", "b", "sdk", "notes")}
        self.leaks: list[str] = []
        self.began = 0.0

    async def run(self) -> bool:
        await asyncio.sleep(3)  # its first look at the backends
        files = sum(count for kind, count in self._files().items() if not kind.startswith(TO))
        self.began = time.monotonic()
        curve = Curve(self.gateway, self.began)
        aside = [asyncio.create_task(curve.run()), asyncio.create_task(self._tell())]
        world = self.world
        clients = [
            asyncio.create_task(self._client(kind, number)) for kind, many in CLIENTS.items() for number in range(many)
        ]
        troubles = [
            asyncio.create_task(trouble_faulty(world, self.a, self.troubles["a"])),
            asyncio.create_task(trouble_faulty(world, self.b, self.troubles["b"])),
            asyncio.create_task(trouble_sdk(world, self.sdk, self.troubles["sdk"])),
            asyncio.create_task(trouble_children(world, self.troubles["notes"])),
            asyncio.create_task(trouble_gateway(world, self.seconds, self.began)),
        ]
        tail = min(max(self.seconds / 3, 10.0), WARM_UP + JUDGED + 30)
        await asyncio.sleep(self.seconds - tail)
        world.calm.set()
        await asyncio.gather(*troubles)
        await self._fresh_start()
        await asyncio.sleep(max(0.0, self.began + self.seconds - time.monotonic()))
        world.running = False
        _, late = await asyncio.wait(clients, timeout=4)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=4)
        for task in clients:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.ledger.fault("untyped", f"a client of the soak broke: {error!r}")
        for task in aside:
            task.cancel()
        await self._find_leaks(files)
        self.ledger.compare(Counter(self.a.effects) + Counter(self.b.effects) + self.sdk.effects())
        return self._report(curve)

    def _files(self) -> Counter[str]:
        ports = {self.a.port: "a", self.b.port: "b", self.sdk.port: "sdk"}
        return Counter(opened(self.gateway.pid, ports))

    async def _client(self, kind: str, number: int) -> None:
        match kind:
            case "raw 2025":
                await raw_2025(self.world, number)
            case "raw 2026":
                await raw_2026(self.world, number)
            case _:
                await library(self.world, number, kind)

    async def _tell(self) -> None:
        every = max(10.0, self.seconds / 20)
        while True:
            await asyncio.sleep(every)
            ledger, at = self.ledger, time.monotonic() - self.began
            bad = ", ".join(f"{kind} {count}" for kind, count in ledger.counts.items() if count) or "nothing amiss"
            print(
                f"{at / 60:5.1f} min  {sum(ledger.calls.values()):>8,} calls  {ledger.outcomes['ok']:>8,} ok  "
                f"{megabytes(self.gateway.pid):4.0f} MB  {sum(self.gateway.restarts.values())} restarts  {bad}",
                flush=True,
            )

    async def _fresh_start(self) -> None:
        """From here on what the backends keep is the gateway's to end: they forget, and one more process dies."""
        self.world.may_begin.clear()
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.world.beginning, PATIENCE)
        self.a.sessions.sessions.clear()
        await self.sdk.kill()
        await self.sdk.start()
        await asyncio.sleep(2)
        await self.gateway.restart(signal.SIGKILL)
        self.world.may_begin.set()

    async def _find_leaks(self, files: int) -> None:
        """What is left once every session was ended or has expired."""
        gateway, leaks = self.gateway, self.leaks
        own = 2  # sessions for lists: of this process, and of the one that was killed last

        async def left() -> list[str]:
            found: list[str] = []
            if (count := len(self.a.sessions.sessions)) > own:
                found.append(f"{count} sessions at a, {own} are the gateway's own")
            if (count := await self.sdk.sessions()) > own:
                found.append(f"{count} sessions at sdk, {own} are the gateway's own")
            found += [
                f"a child of the gateway: {command(pid)}"
                for pid in descendants(gateway.pid)
                if "warden" not in command(pid)
            ]
            kinds = self._files()
            kept = {kind: kinds.pop(kind) for kind in list(kinds) if kind.startswith(TO)}
            if kinds.total() > files + FILES:
                found.append(f"{kinds.total()} open files, {files} at the start: {_list(kinds)}")
            found += [f"{count} times a {kind}" for kind, count in kept.items() if count > CONNECTIONS]
            return found

        end = time.monotonic() + SETTLE
        found = await left()
        while found and time.monotonic() < end:
            await asyncio.sleep(0.5)
            found = await left()
        leaks += found
        code = await gateway.stop(signal.SIGTERM)
        if code != 0:
            leaks.append(f"the gateway exited with {code} on SIGTERM")
        leaks += [f"a process outlived its gateway: {pid} {command(pid)}" for pid in gateway.orphans]
        leaks += await self._records()
        log = gateway.log.read_text(errors="replace")
        if "Traceback" in log:
            at = log.index("Traceback")
            self.ledger.counts["untyped"] += log.count("Traceback")
            self.ledger.faults["untyped"].append(f"in the gateway's log: {log[max(0, at - 300) : at + 3000]}")

    async def _records(self) -> list[str]:
        from holdfast.gateway.sessions.record import KIND
        from holdfast.stores import open_store

        async with open_store(self.gateway.store) as store:
            count = await store.count(kind=KIND)
        return [f"{count} records of sessions in the store"] if count else []

    def _report(self, curve: Curve) -> bool:
        ledger, minutes = self.ledger, self.seconds / 60
        slope, judged = curve.slope()
        total = sum(ledger.calls.values())
        print(f"\n{minutes:g} minutes, {total:,} calls, {total / self.seconds:.0f} a second")
        print("calls:    " + ", ".join(f"{kind} {count:,}" for kind, count in ledger.calls.most_common()))
        print("outcomes:")
        for outcome, count in ledger.outcomes.most_common():
            print(f"  {count:>9,}  {outcome}")
        print("troubles: " + "; ".join(f"{name}: {_list(done)}" for name, done in self.troubles.items()))
        print(f"restarts of the gateway: {_list(self.gateway.restarts)}")
        good = True
        for kind, words in (
            ("double", "double effects"),
            ("wrong", "wrong answers"),
            ("silent", "silent losses"),
            ("untyped", "untyped errors"),
        ):
            count = ledger.counts[kind]
            good = good and not count
            print(f"{'ok  ' if not count else 'FAIL'} {words}: {count}")
            for text in ledger.faults[kind]:
                print(f"       {text}")
        good = good and not self.leaks
        print(f"{'ok  ' if not self.leaks else 'FAIL'} leaks: {len(self.leaks)}")
        for text in self.leaks:
            print(f"       {text}")
        flat = slope is None or slope < SLOPE
        good = good and flat
        said = f"{slope:+.2f} MB a minute over {judged:.0f} s" if slope is not None else "not judged, too few samples"
        print(f"{'ok  ' if flat else 'FAIL'} memory: {said}")
        print(f"  {curve.line()}")
        if minutes >= PLOT_MINUTES and curve.samples:
            PLOT.write_text(curve.svg(f"Memory of the gateway, soak of {minutes:g} minutes; dashed: a restart"))
        print("all of it held" if good else "something did not hold", flush=True)
        return good


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    main()
