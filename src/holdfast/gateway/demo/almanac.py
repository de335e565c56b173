"""`python -m holdfast.gateway.demo.almanac PORT`: a server of the 2026 era, whose answers need no session."""

import datetime
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("almanac", log_level="WARNING")


@server.tool(annotations={"readOnlyHint": True})  # pyright: ignore[reportArgumentType]
def weekday(date: str) -> str:
    """The weekday of a date like 2026-11-16."""
    return datetime.date.fromisoformat(date).strftime("%A")


@server.resource("almanac://leap/{year}")
def leap(year: int) -> str:
    """Whether a year is a leap year."""
    return "yes" if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else "no"


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
