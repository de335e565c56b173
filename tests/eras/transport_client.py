"""A raw client over `LinkTransport`: JSON-RPC by hand on its streams, as an SDK session writes it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from holdfast.links import LinkTransport
from tests.eras.cells import Cell
from tests.eras.client import Client, Json, Reply, Running
from tests.gateway.gateways import PATIENT
from tests.links.quick_links import link_to


class TransportClient(Client):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._url = url
        self._stack = AsyncExitStack()
        self._calls: dict[int, tuple[asyncio.Future[Reply], int]] = {}
        self._written: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        link = link_to(self._url, limits=PATIENT)
        incoming, self._written = await self._stack.enter_async_context(LinkTransport(link))
        task = asyncio.ensure_future(self._read(incoming))
        self._stack.push_async_callback(_end, task)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            await _end(task)
        await self._stack.aclose()
        for answer, _ in self._calls.values():
            answer.cancel()

    async def begin(self, method: str, params: Json | None = None, **headers: str) -> "TransportRunning":
        id = next(self.ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[id] = (answer, len(self.notices))
        message = JSONRPCRequest(jsonrpc="2.0", id=id, method=method, params=self.stamped(params))
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        await self._written.send(SessionMessage(message, ClientMessageMetadata(headers=sent) if sent else None))
        return TransportRunning(self, id, answer)

    async def notify(self, method: str, params: Json | None = None) -> None:
        await self._written.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params)))

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

    async def _read(self, incoming: Any) -> None:
        async for item in incoming:
            assert isinstance(item, SessionMessage), item  # the transport gives exceptions in this way
            message = item.message.model_dump(by_alias=True, exclude_unset=True)
            if "method" not in message:
                answer, before = self._calls.pop(message["id"], (None, 0))
                if answer is not None and not answer.done():
                    answer.set_result(Reply(message, self.notices[before:]))
            elif "id" in message and self.era == "2026":
                for answer, _ in self._calls.values():
                    answer.set_exception(AssertionError(f"a 2026 client got the request {message['method']}"))
            elif "id" in message:
                task = asyncio.ensure_future(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self.notices.append(message)

    async def _answer(self, question: Json) -> None:
        said = await self.answer_to(question)
        if "error" in said:
            answer: Any = JSONRPCError(jsonrpc="2.0", id=question["id"], error=ErrorData(**said["error"]))
        else:
            answer = JSONRPCResponse(jsonrpc="2.0", id=question["id"], result=said["result"])
        await self._written.send(SessionMessage(answer))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


class TransportRunning(Running):
    """A request under way."""

    def __init__(self, client: TransportClient, id: int, answer: "asyncio.Future[Reply]") -> None:
        self.id = id
        self._client = client
        self._answer = answer

    async def cancel(self) -> None:
        await self._client.notify("notifications/cancelled", {"requestId": self.id, "reason": "no more"})

    async def reply(self) -> Reply:
        return await self._answer
