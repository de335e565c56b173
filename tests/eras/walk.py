"""What a walk has at hand in one cell: the raw server, raw clients that reach it, and names as the client has them."""

from contextlib import AsyncExitStack
from typing import Any

from tests.eras.cells import Cell
from tests.eras.client import Client, Json
from tests.eras.dispatcher_client import DispatcherClient
from tests.eras.http_client import HttpClient
from tests.eras.server import EraServer
from tests.eras.stdio_client import StdioClient
from tests.eras.transport_client import TransportClient

CLIENT_INFO: Json = {"name": "raw", "version": "3", "title": "Raw"}
BACKEND = "b"


class Walk:
    """One case of the table."""

    def __init__(self, cell: Cell, server: EraServer, gateway_url: str, stack: AsyncExitStack) -> None:
        self.cell = cell
        self.server = server
        self._gateway_url = gateway_url
        self._stack = stack

    def name(self, name: str) -> str:
        """A tool or prompt of the server, as the client calls it."""
        return f"{BACKEND}__{name}" if self.cell.way in ("gateway", "stdio") else name

    async def client(
        self, capabilities: Json | None = None, *, info: Json = CLIENT_INFO, version: str | None = None
    ) -> Any:
        """A client after its handshake."""
        client = await self.client_without_handshake(capabilities, info=info, version=version)
        await client.start()
        return client

    async def client_without_handshake(
        self, capabilities: Json | None = None, *, info: Json = CLIENT_INFO, version: str | None = None
    ) -> Any:
        known = (self.cell, capabilities or {}, info, version)
        client: Client
        if self.cell.way == "gateway":
            client = HttpClient(self._gateway_url, *known)
        else:
            kinds = {"stdio": StdioClient, "transport": TransportClient, "dispatcher": DispatcherClient}
            client = kinds[self.cell.way](self.server.url, *known)
            await client.open()
        self._stack.push_async_callback(client.close)
        return client
