"""A raw client of the gateway's stdio front: JSON lines over pipes, to a gateway of its own in this process."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.gateway.fronts.stdio import StdioFront
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from tests.deadlines import until
from tests.eras.cells import Cell
from tests.eras.client import Client, Json, Reply, Running
from tests.gateway.gateways import config_of

BACKEND = "b"


class StdioClient(Client):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._url = url
        self._stack = AsyncExitStack()
        self._stdin = asyncio.StreamReader()
        self._stdout = asyncio.StreamReader(limit=10_000_000)
        self._calls: dict[Any, tuple[asyncio.Future[Reply], int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: asyncio.Queue[list[Json]] = asyncio.Queue()

    async def open(self) -> None:
        folder = Path(self._stack.enter_context(TemporaryDirectory()))
        store = await self._stack.enter_async_context(open_store("memory:"))
        servers = {BACKEND: {"url": self._url}}
        gateway = Gateway(config_of(folder, servers, sessions={"steer": False, "drain": 0.1}), store)
        inside, outside = os.pipe()
        self._stack.callback(os.close, outside)
        await self._stack.enter_async_context(gateway.running())
        await until(lambda: gateway.table.tools)
        front = asyncio.create_task(StdioFront(gateway, outside).run(self._stdin))
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._stdout), os.fdopen(inside, "rb")
        )
        self._stack.callback(transport.close)
        reading = asyncio.create_task(self._read())
        self._stack.push_async_callback(self._end, front, reading)

    async def _end(self, front: "asyncio.Task[None]", reading: "asyncio.Task[None]") -> None:
        self._stdin.feed_eof()
        await front
        reading.cancel()
        await asyncio.wait([reading])

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()
        for answer, _ in self._calls.values():
            answer.cancel()

    def _send(self, message: Json) -> None:
        self._stdin.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def begin(self, method: str, params: Json | None = None, **headers: str) -> "StdioRunning":
        id = next(self.ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[id] = (answer, len(self.notices))
        stamped = self.stamped(params)
        self._send({"id": id, "method": method, **({"params": stamped} if stamped is not None else {})})
        return StdioRunning(self, id, answer)

    async def notify(self, method: str, params: Json | None = None) -> None:
        self._send({"method": method, **({"params": params} if params is not None else {})})

    async def send_batch(self, batch: list[Json]) -> list[Json]:
        """The answers to several messages in one line."""
        self._stdin.feed_data(json.dumps(batch).encode() + b"\n")
        return await self._batches.get()

    @asynccontextmanager
    async def _notices_2025(self) -> AsyncGenerator[None]:
        yield

    @asynccontextmanager
    async def _listen_2026(self, params: Json) -> AsyncGenerator[int]:
        running = await self.begin("subscriptions/listen", params)
        try:
            yield running.id
        finally:
            await running.cancel()

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            message = json.loads(line)
            if isinstance(message, list):
                self._batches.put_nowait(message)
            elif "method" not in message:
                answer, before = self._calls.pop(message["id"], (None, 0))
                if answer is not None and not answer.done():
                    answer.set_result(Reply(message, self.notices[before:]))
            elif "id" in message and self.era == "2026":
                for answer, _ in self._calls.values():
                    answer.set_exception(AssertionError(f"a 2026 client got the request {message['method']}"))
            elif "id" in message:
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self.notices.append(message)

    async def _answer(self, question: Json) -> None:
        self._send({"id": question["id"], **await self.answer_to(question)})


class StdioRunning(Running):
    """A request under way."""

    def __init__(self, client: StdioClient, id: int, answer: "asyncio.Future[Reply]") -> None:
        self.id = id
        self._client = client
        self._answer = answer

    async def cancel(self) -> None:
        await self._client.notify("notifications/cancelled", {"requestId": self.id, "reason": "no more"})

    async def reply(self) -> Reply:
        return await self._answer
