"""`python -m holdfast.gateway.demo.counter PORT`: a server of the 2025 era that counts in each session."""

import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("counter", log_level="WARNING")
counts: dict[str, int] = {}


def _session(ctx: Context) -> str:
    headers = ctx.headers or {}
    return str(headers.get("mcp-session-id") or "nobody")


@server.tool()
async def count(ctx: Context) -> int:
    """Count one up in this session."""
    session = _session(ctx)
    counts[session] = counts.get(session, 0) + 1
    return counts[session]


@server.tool(annotations={"readOnlyHint": True})  # pyright: ignore[reportArgumentType]
async def look(ctx: Context) -> int:
    """The count of this session."""
    return counts.get(_session(ctx), 0)


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
