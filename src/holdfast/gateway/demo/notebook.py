"""A notebook over stdio: its notes live as long as its process, so they are kept only as long as the session is."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notebook", instructions="Keeps notes for the session.", log_level="WARNING")
notes: list[str] = []


@server.tool()
def write(text: str) -> str:
    """Write a note down."""
    notes.append(text)
    return f"noted, {len(notes)} so far"


@server.tool(annotations={"readOnlyHint": True})  # pyright: ignore[reportArgumentType]
def read() -> list[str]:
    """Read all notes of this session."""
    return notes


@server.resource("notebook://last")
def last() -> str:
    """The last note."""
    return notes[-1] if notes else ""


@server.prompt()
def summarise(style: str = "short") -> str:
    """Ask for a summary of the notes."""
    return f"Summarise my notes, {style}."


if __name__ == "__main__":
    server.run()
