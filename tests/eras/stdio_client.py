"""A raw client of the gateway's stdio front: JSON lines over pipes, to a gateway of its own in this process."""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.gateway.fronts.stdio import StdioFront
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from tests.deadlines import until
from tests.eras.cells import Cell
from tests.eras.client import Json
from tests.eras.message_client import MessageClient
from tests.gateway.gateways import config_of

BACKEND = "b"


class StdioClient(MessageClient):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._url = url
        self._stack = AsyncExitStack()
        self._stdin = asyncio.StreamReader()
        self._stdout = asyncio.StreamReader(limit=10_000_000)
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
        await self._end_tasks()
        await self._stack.aclose()
        self.give_up()

    async def send(self, message: Json, **headers: str) -> None:
        self._stdin.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def send_batch(self, batch: list[Json]) -> list[Json]:
        """The answers to several messages in one line."""
        self._stdin.feed_data(json.dumps(batch).encode() + b"\n")
        return await self._batches.get()

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            message = json.loads(line)
            if isinstance(message, list):
                self._batches.put_nowait(message)
            else:
                self.take(message)
