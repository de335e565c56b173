"""A stdio server that has one more tool after a call, and says so."""

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

revealed = False


async def list_tools(ctx, params):  # type: ignore[no-untyped-def]
    names = ["reveal", "secret"] if revealed else ["reveal"]
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names])


async def call_tool(ctx, params):  # type: ignore[no-untyped-def]
    global revealed
    if params.name == "reveal":
        revealed = True
        await ctx.session.send_tool_list_changed()
    return types.CallToolResult(content=[types.TextContent(type="text", text="moss")])


async def main() -> None:
    server = Server("reveals", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
