"""A stdio server whose tool asks its client, by the SDK."""

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel


class Name(BaseModel):
    a: str


server = MCPServer("asks")


@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("name?", Name)
    return str(answer)


server.run()
