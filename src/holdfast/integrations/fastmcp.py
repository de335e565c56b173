"""A link as a FastMCP client transport: `fastmcp.Client(holdfast_transport("https://…/mcp"))` recovers from faults.

A transport keeps its link, and so its session, for as long as FastMCP keeps the transport open; FastMCP's own handshake
is answered from what the link knows.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from mcp import ClientSession
from typing_extensions import Unpack

from holdfast.integrations import missing
from holdfast.links.link import Link
from holdfast.links.options import Options
from holdfast.links.sdk import LinkDispatcher

try:
    from fastmcp.client.transports import ClientTransport
    from fastmcp.client.transports.base import SessionKwargs, TransportOptions
except ModuleNotFoundError as error:
    raise missing(__name__, "fastmcp", error) from None


class LinkClientTransport(ClientTransport):
    """A transport for one client's sessions over one link. Leaving the client closes the link unless it was given."""

    def __init__(self, link: Link, *, close: bool) -> None:
        self.link = link
        self._close = close

    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncGenerator[ClientSession, None]:
        session_class = (transport_options or TransportOptions()).session_class
        try:
            async with session_class(dispatcher=LinkDispatcher(self.link, probes=True), **session_kwargs) as session:
                yield session
        finally:
            if self._close:
                await self.link.close()

    async def close(self) -> None:
        if self._close:
            await self.link.close()

    def get_session_id(self) -> str | None:
        return self.link.session_id

    def __repr__(self) -> str:
        return f"<LinkClientTransport {self.link!r}>"


def holdfast_transport(target: Any, options: Options | None = None) -> LinkClientTransport:
    """A transport to a URL, an `HttpTarget`, a `CommandTarget` or a server object, or over an existing `Link`, which is
    not closed."""
    if isinstance(target, Link):
        return LinkClientTransport(target, close=False)
    return LinkClientTransport(Link(target, options), close=True)
