"""What a client of a peer sees besides speed: sessions, counters, memory, lost sessions.

The measurements use `load.py`'s raw connection (2025) and `mcp.Client` (each era). Every answer's body is checked; an
unexpected answer is an error, whose text is the result. The caller sets a deadline for each measurement.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks import load

NAMING_HEADER = "x-conversation"
PAUSES = (0.2, 0.3, 0.5, 1.0, 1.0)
Mode = Literal["legacy", "auto", "2026-07-28"]


class Wrong(Exception):
    """An answer that is not the expected one."""


class Session:
    """One raw 2025 session at a peer."""

    def __init__(self, connection: load.Connection, extra: str, tools: list[str]) -> None:
        self._connection = connection
        self._extra = extra
        self._tools = tools

    async def call(self, tool: str) -> str:
        """The text of a tool's answer; `Wrong` names what came instead."""
        name = next(each for each in self._tools if each.endswith(tool))
        params = {"name": name, "arguments": {}}
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        status, _, body = await self._connection.post(json.dumps(message).encode(), self._extra)
        if status != 200:
            raise Wrong(f"HTTP {status}")
        answer: dict[str, Any] = load.content(body)
        if "error" in answer:
            raise Wrong(f"JSON-RPC error: {answer['error']['message']}")
        text = "".join(str(each.get("text")) for each in answer["result"]["content"])
        if answer["result"].get("isError"):
            raise Wrong(f"tool error: {text}")
        if tool == "echo" and text != "x" * 64:
            raise Wrong(f"not the echo: {text}")
        return text

    def close(self) -> None:
        self._connection.close()


async def opened(url: str, headers: dict[str, str]) -> Session:
    """Open a session, with initialize and tools/list, on a connection of its own."""
    connection = await load.connect(url)
    said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    try:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "probe", "version": "1"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
        status, got, answer = await connection.post(body, said)
        if status != 200 or "result" not in load.content(answer):
            raise Wrong(f"initialize: HTTP {status} {answer[:120]!r}")
        extra = said + "mcp-protocol-version: 2025-11-25\r\n"
        if session := got.get("mcp-session-id"):
            extra += f"mcp-session-id: {session}\r\n"
        await connection.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', extra)
        status, _, raw = await connection.post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', extra)
        if status != 200:
            raise Wrong(f"tools/list: HTTP {status} {raw[:120]!r}")
        listed: dict[str, Any] = load.content(raw)
        tools = [each["name"] for each in listed["result"]["tools"]]
        if not all(any(each.endswith(tool) for each in tools) for tool in ("echo", "count")):
            raise Wrong(f"the backend's tools are not listed: {tools}")
    except BaseException:
        connection.close()
        raise
    return Session(connection, extra, tools)


@dataclass(frozen=True, slots=True)
class Backend:
    """The backend: its counts, and its control requests."""

    url: str

    async def control(self, order: str) -> dict[str, int]:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET /control/{order} HTTP/1.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = await reader.readexactly(size)
        writer.close()
        return json.loads(body)


async def opening_ms(url: str, headers: dict[str, str], times: int) -> float:
    """The median time of initialize and tools/list on a new connection, after one that does not count."""
    spans: list[float] = []
    for _ in range(times + 1):
        began = time.perf_counter()
        session = await opened(url, headers)
        spans.append(time.perf_counter() - began)
        session.close()
    return sorted(spans[1:])[times // 2] * 1e3


async def requests_a_call(url: str, headers: dict[str, str], backend: Backend, calls: int) -> float:
    """Requests that reach the backend for a call on a session that is already in use."""
    session = await opened(url, headers)
    await session.call("echo")
    await asyncio.sleep(0.5)
    await backend.control("zero")
    for _ in range(calls):
        await session.call("echo")
    await asyncio.sleep(0.5)
    found = await backend.control("stats")
    session.close()
    return found["requests"] / calls


async def sessions_a_client(url: str, headers: dict[str, str], backend: Backend, clients: int, calls: int) -> str:
    """Backend sessions that a client session of initialize, list and some calls opens; and who shares."""
    await backend.control("zero")
    sessions = [await opened(url, headers) for _ in range(clients)]
    for _ in range(calls):
        for session in sessions:
            await session.call("echo")
    found = await backend.control("stats")
    for session in sessions:
        session.close()
    if found["served"] == 1:
        return "one for all"
    opened_each = f"{found['opened'] / clients:.3g}"
    return f"{opened_each} (one a call)" if found["served"] >= clients * calls else opened_each


async def counts(url: str, headers: dict[str, str], backend: Backend, mode: Mode) -> str:
    """The answers to three calls of a counter by one of two clients in turn: `1 2 3` is a session of its own."""
    await backend.control("zero")
    said: list[str] = []
    told: set[str] = set()

    async def client(index: int, calls: list[asyncio.Event], results: list[str]) -> None:
        named = {name: value.replace("{client}", str(index)) for name, value in headers.items()}
        timeout = httpx2.Timeout(20)
        async with (
            httpx2.AsyncClient(headers=named, timeout=timeout) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode, read_timeout_seconds=20) as one,
        ):
            names = [each.name for each in (await one.list_tools()).tools]
            if not any(each.endswith("count") for each in names):
                raise Wrong(f"it lists {names or 'no tools'}")
            name = next(each for each in names if each.endswith("count"))
            for turn in range(3):
                await calls[turn * 2 + index].wait()
                try:
                    result = await one.call_tool(name, {})
                    texts = [str(getattr(each, "text", "")) for each in result.content]
                    results.append(f"error ({_short(texts[0])})" if result.is_error else texts[0])
                    told.update(texts[1:])
                except Exception as error:
                    results.append(f"error ({_short(_root(error))})")
                calls[turn * 2 + index + 1].set()

    order = [asyncio.Event() for _ in range(7)]
    order[0].set()
    other: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(client(0, order, said))
            group.create_task(client(1, order, other))
    except ExceptionGroup as error:
        if len(said) < 3:
            return f"error ({_short(_root(error))})"
    if len(set(said)) == 1 and said[0].startswith("error"):
        return said[0]
    if said == ["1", "3", "5"] and other == ["2", "4", "6"]:
        return "1 3 5 (shared)"
    return " ".join(said) + (" (and says so)" if told else "")


async def after_forgetting(url: str, headers: dict[str, str], backend: Backend) -> str:
    """The outcomes of a client's calls of a counter after the backend lost every session."""
    session = await opened(url, headers)
    for expected in ("1", "2"):
        if (got := await session.call("count")) not in (expected, "1"):
            raise Wrong(f"the counter said {got} before anything was forgotten")
    await backend.control("forget")
    said: list[str] = []
    for pause in PAUSES:
        await asyncio.sleep(pause)
        try:
            said.append(await asyncio.wait_for(session.call("count"), 15))
        except Wrong as error:
            said.append(f"{error}")
            if str(error) == "HTTP 404":
                break
        except TimeoutError:
            said.append("no answer in 15 s")
            break
        except (OSError, EOFError):
            said.append("connection closed")
            break
    session.close()
    failed = [each for each in said if not each.isdigit()]
    if not failed:
        return "new session each call" if set(said) == {"1"} else f"goes on, unsaid ({' '.join(said)})"
    if failed == ["HTTP 404"]:
        return "404 to the client"
    if len(failed) == 1 and said[0] == failed[0] and said[1].isdigit():
        return f"reported once, then goes on ({' '.join(said[1:])})"
    if len(failed) == len(said):
        try:
            fresh = await asyncio.wait_for(opened(url, headers), 15)
            await asyncio.wait_for(fresh.call("count"), 15)
            fresh.close()
            others = "a new client works"
        except Exception:
            others = "so does a new client"
        return f"all {len(said)} calls in {sum(PAUSES[: len(said)]):g} s fail ({_short(failed[-1])}), {others}"
    return "; ".join(_short(each) for each in said)


def memory(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    total, todo = 0, [pid]
    while todo:
        each = todo.pop()
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * 4096
            for task in Path(f"/proc/{each}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return total


async def idle_kilobytes(
    url: str, headers: dict[str, str], pid: int, *, limit: int, seconds: float, mebibytes: int = 400
) -> tuple[float, int]:
    """KB of memory for each session that was opened, used for one call and left open; and the number of sessions."""
    warm = min(100, limit // 4)

    async def some(count: int, until: float) -> int:
        made = 0
        while made < count and time.monotonic() < until and memory(pid) - start < mebibytes * 2**20:
            batch = [await opened(url, headers) for _ in range(min(8, count - made))]
            for each in batch:
                await each.call("echo")
                each.close()
            made += len(batch)
        return made

    start = memory(pid)
    await some(warm, time.monotonic() + seconds / 2)
    await asyncio.sleep(0.5)
    start = memory(pid)
    made = await some(limit - warm, time.monotonic() + seconds)
    await asyncio.sleep(1)
    return (memory(pid) - start) / made / 1024, made


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= 60 else text[:59] + "…"


def _root(error: BaseException) -> str:
    """The text of the first error within exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
