"""An aiohttp application as a server for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving_app(app: web.Application, *, cancels: bool = False) -> AsyncGenerator[str]:
    """Serve on loopback; yields the URL of `/mcp`. `cancels`: a client that hangs up cancels its handler."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=cancels)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()
