"""A small HTTP server for tests: each request is given to a function, which returns the answer."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from json import dumps
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class WebRequest:
    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class WebAnswer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def json_answer(value: object, status: int = 200) -> WebAnswer:
    return WebAnswer(status, dumps(value).encode(), {"content-type": "application/json"})


@asynccontextmanager
async def listening(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Run a function on every connection, on loopback; yields the port. At the end, its tasks are cancelled."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


@asynccontextmanager
async def web_server(handle: Callable[[WebRequest], WebAnswer]) -> AsyncIterator[str]:
    """Serve on loopback; yields `http://127.0.0.1:port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            verb, target, _ = lines[0].split(" ")
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            answer = handle(WebRequest(verb, unquote(urlsplit(target).path), headers, body))
            head = {**answer.headers, "content-length": str(len(answer.body))}
            shown = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            writer.write(f"HTTP/1.1 {answer.status} X\r\n{shown}\r\n".encode("latin-1") + answer.body)
            await writer.drain()

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}"
