"""What stands between a link and its server: a TLS listener, a proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.testing import FaultServer
from tests.links.web import listening


def tls_context(certificates: Path) -> ssl.SSLContext:
    """A server's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return context


@asynccontextmanager
async def tls_front(server: FaultServer, certificates: Path, *, ask: bool = False) -> AsyncIterator[str]:
    """A TLS listener in front of a plain server."""
    context = tls_context(certificates)
    if ask:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    async with pipe_to(lambda _: ("127.0.0.1", server.port), context) as (port, _):
        yield f"https://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def pipe_to(where: Any, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Carry bytes both ways; `where` says whither, from the first bytes. Proxies answer CONNECT themselves."""
    heads: list[bytes] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65536)
        heads.append(first)
        there = await asyncio.open_connection(*where(first))
        if first.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(first)
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    async with listening(connected, context) as port:
        yield port, heads
