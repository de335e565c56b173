"""Apps of foreign tests on real sockets: what a test reaches by an httpx2 client in its process, a link can reach, too."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import uvicorn

ASGI = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]
OURS = (b"host", b"content-length", b"connection", b"transfer-encoding")  # of each connection, not of the request


class Relay:
    """An app that sends each request on with a test's own client, so that the test sees what reaches its server."""

    def __init__(self, client: httpx2.AsyncClient, origin: str) -> None:
        self._client = client
        self._origin = origin

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        request = self._client.build_request(
            scope["method"],
            f"{self._origin}{scope['raw_path'].decode()}{query}",
            headers=[header for header in scope["headers"] if header[0] not in OURS],
            content=body,
        )
        host = dict(scope["headers"])[b"host"]
        answering = asyncio.ensure_future(self._answer(request, send, host))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            results = await asyncio.gather(answering, leaving, return_exceptions=True)
        if isinstance(results[0], Exception):
            send.__self__.transport.abort()  # the test's transport failed, and so does ours

    async def _answer(self, request: httpx2.Request, send: Any, host: bytes) -> None:
        response = await self._client.send(request, stream=True, follow_redirects=False, auth=None)
        try:
            headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in OURS]
            there, here = self._origin.encode(), b"http://" + host
            headers = [(name, value.replace(there, here) if name == b"location" else value) for name, value in headers]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            if response.is_stream_consumed:  # the client's hook, or a fake transport, has read it
                await send({"type": "http.response.body", "body": response.content, "more_body": True})
            else:
                async for part in response.aiter_raw():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.bind(("127.0.0.1", 0))
    return sock


@asynccontextmanager
async def served(app: ASGI, port: int = 0) -> AsyncGenerator[str]:
    """An app on a socket, at that port where it is free."""
    sock = _bound(port)
    # Tests count the log records of their own servers.
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}
    config = uvicorn.Config(app, lifespan="off", ws="none", timeout_graceful_shutdown=0, **quiet)  # pyright: ignore[reportArgumentType]
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[sock])
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[sock])


@asynccontextmanager
async def relayed(url: str, client: httpx2.AsyncClient | None) -> AsyncGenerator[str]:
    """A URL on a socket that leads where this one leads with this client, but for its OAuth flow, which is the link's."""
    if client is None:
        yield url
        return
    parts = urlsplit(str(client.base_url.join(url)))
    app = Relay(client, f"{parts.scheme}://{parts.netloc}")
    # An OAuth flow of ours compares the URLs that it reads with the one that it goes to.
    own = client.auth is not None and parts.hostname in ("127.0.0.1", "localhost")
    async with served(app, (parts.port or 0) if own else 0) as origin:
        yield f"{origin}{parts.path}{f'?{parts.query}' if parts.query else ''}"
