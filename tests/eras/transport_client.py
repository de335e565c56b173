"""A raw client over `LinkTransport`: JSON-RPC by hand on its streams, as an SDK session writes it."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import jsonrpc_message_adapter

from holdfast.links import LinkTransport
from tests.eras.cells import Cell
from tests.eras.client import Json
from tests.eras.message_client import MessageClient
from tests.gateway.gateways import PATIENT
from tests.links.quick_links import link_to


class TransportClient(MessageClient):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._url = url
        self._stack = AsyncExitStack()
        self._written: Any = None

    async def open(self) -> None:
        link = link_to(self._url, limits=PATIENT)
        incoming, self._written = await self._stack.enter_async_context(LinkTransport(link))
        task = asyncio.ensure_future(self._read(incoming))
        self._stack.push_async_callback(_end, task)

    async def close(self) -> None:
        await self._end_tasks()
        await self._stack.aclose()
        self.give_up()

    async def send(self, message: Json, **headers: str) -> None:
        parsed = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        await self._written.send(SessionMessage(parsed, ClientMessageMetadata(headers=sent) if sent else None))

    async def _read(self, incoming: Any) -> None:
        async for item in incoming:
            assert isinstance(item, SessionMessage), item  # the transport gives exceptions in this way
            self.take(item.message.model_dump(by_alias=True, exclude_unset=True))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
