"""A pytest plugin for python-sdk's own suite: its clients reach their servers by way of a link or of a gateway."""
# ruff: noqa: SLF001 (it takes the place of the SDK's own connections, which no public name does)

from contextlib import AsyncExitStack
from typing import Any

import mcp.client._memory
import mcp.client.client
import mcp.client.stdio
import mcp.client.streamable_http
from blockbuster import BlockBuster

from conformance.judges import ways

_own_transport = mcp.client.client._connect_transport


def _transport(transport: Any) -> Any:
    if ways.WAY != "dispatcher" or not isinstance(transport, ways.Connection):
        return _own_transport(transport)

    async def connect(stack: AsyncExitStack, _mode: str, _raises: bool) -> Any:
        return await transport.dispatcher(stack)

    return connect


def _object(server: Any) -> Any:
    return _transport(ways.to_object(server))


def _url(url: str, *, http_client: Any = None, **_: Any) -> Any:
    return ways.to_url(url, http_client)


def _program(program: Any, errlog: Any = None) -> ways.Connection:
    return ways.to_program(program)


def _memory(server: Any, *, raise_exceptions: bool = False) -> ways.Connection:
    return ways.to_object(server)


for module in (mcp.client.streamable_http, mcp.client.client):
    module.streamable_http_client = _url  # type: ignore[assignment]
for module in (mcp.client.stdio, mcp.client.client, mcp.client, mcp):
    module.stdio_client = _program  # type: ignore[assignment]
for module in (mcp.client._memory, mcp.client.client):
    module.InMemoryTransport = _memory  # type: ignore[assignment]
mcp.client.client._connect_transport = _transport
mcp.client.client._connect_inproc = _object
if ways.WAY == "gateway":  # a program of its own, which reads small files as it starts
    BlockBuster.activate = lambda self: None  # type: ignore[method-assign]
