"""`python benchmarks/servers/bare_proxy.py BACKEND`: the least that a reverse proxy on uvicorn and aiohttp can do, without MCP."""

import asyncio
import socket
import sys

import aiohttp
import uvicorn

KEPT = (b"content-type", b"accept", b"mcp-session-id", b"mcp-protocol-version")


class Proxy:
    def __init__(self, url: str) -> None:
        self._url = url
        self._http: aiohttp.ClientSession | None = None

    async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] != "http":
            return
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in KEPT}
        async with self._http.request(scope["method"], self._url, data=body, headers=headers) as response:
            data = await response.read()
            kept = [
                (name.lower().encode(), value.encode())
                for name, value in response.headers.items()
                if name.lower() in ("content-type", "mcp-session-id")
            ]
        kept.append((b"content-length", str(len(data)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": kept})
        await send({"type": "http.response.body", "body": data})


async def main() -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(Proxy(sys.argv[1]), log_config=None, access_log=False, lifespan="off", proxy_headers=False)
    await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main())
