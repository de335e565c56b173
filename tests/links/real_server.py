"""`real_server.py PORT sdk|fastmcp json|sse KEEP_ALIVE`: a server that ends when whoever started it is gone."""

import os
import sys
import threading

import uvicorn


def main(port: int, kind: str, form: str, keep_alive: int) -> None:
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    counts: dict[str, int] = {}
    if kind == "sdk":
        from mcp.server.mcpserver import Context, MCPServer

        server = MCPServer("real")
    else:
        from fastmcp import Context, FastMCP

        server = FastMCP("real")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    def count(name: str) -> int:
        counts[name] = counts.get(name, 0) + 1
        return counts[name]

    @server.tool()
    async def slowly(a: int, ctx: Context) -> int:
        import anyio

        await anyio.sleep(0.05)
        return a

    app = (
        server.streamable_http_app(json_response=form == "json")
        if kind == "sdk"
        else server.http_app(json_response=form == "json")
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", timeout_keep_alive=keep_alive)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
