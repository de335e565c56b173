"""A pytest plugin for FastMCP's suite: its clients and proxies reach servers by way of a link or of a gateway."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import fastmcp.client.transports.http
from fastmcp import FastMCP
from fastmcp.client.transports import FastMCPTransport
from fastmcp.client.transports.base import TransportOptions

from conformance.judges import ways
from conformance.judges.relay import served
from holdfast.integrations.fastmcp import LinkClientTransport
from holdfast.links import HttpTarget, ObjectTarget
from holdfast.links.target import Target


@asynccontextmanager
async def _session(
    self: FastMCPTransport, *, transport_options: TransportOptions | None = None, **session: Any
) -> AsyncGenerator[Any]:
    if ways.WAY != "gateway":
        ways.connections += 1
        transport = LinkClientTransport(ways.link_to(ObjectTarget(self.server)), close=True)
        async with transport.connect_session(transport_options=transport_options, **session) as own:
            yield own
        return
    kind = (transport_options or TransportOptions()).session_class
    async with ways.Connection(lambda: _on_a_socket(self.server)) as (read, write), kind(read, write, **session) as own:
        yield own


@asynccontextmanager
async def _on_a_socket(server: Any) -> AsyncGenerator[Target]:
    if isinstance(server, FastMCP):
        app = server.http_app()
        async with app.lifespan(app), served(app) as origin:
            yield HttpTarget(f"{origin}/mcp")
    else:
        async with ways.to_object(server).target() as target:
            yield target


def _url(url: str, *, http_client: Any = None, **_: Any) -> Any:
    return ways.to_url(url, http_client)


FastMCPTransport.connect_session = _session  # type: ignore[method-assign]
fastmcp.client.transports.http.streamable_http_client = _url  # type: ignore[attr-defined]
