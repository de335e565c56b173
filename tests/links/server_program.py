"""A server of the SDK or of FastMCP over HTTP, with a few tools, which `server_process.py` runs.

`ledger` keeps one SQLite transaction per session, and rolls it back when the session ends. `book` asks its caller.
"""

import sqlite3
from typing import Annotated, Any

import uvicorn
from pydantic import BaseModel


class Seat(BaseModel):
    row: int


def ask_for_seat() -> Any:
    from mcp.server.mcpserver import Elicit

    return Elicit("Which row?", Seat)


def ledger(server: Any, file: str) -> None:
    """A transaction per session: only a session that holds keeps it together."""
    from mcp.server.mcpserver import Context

    def database(ctx: Any) -> sqlite3.Connection:
        connection = ctx.session._connection
        if "db" not in connection.state:
            db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
            connection.state["db"] = db
            connection.exit_stack.callback(db.close)  # closing rolls back
        return connection.state["db"]

    @server.tool()
    async def begin(ctx: Context) -> str:
        database(ctx).execute("BEGIN")
        return "begun"

    @server.tool()
    async def insert(text: str, ctx: Context) -> str:
        database(ctx).execute("INSERT INTO notes VALUES (?)", (text,))
        return "inserted"

    @server.tool(annotations={"readOnlyHint": True})
    async def notes(ctx: Context) -> list[str]:
        return [text for (text,) in database(ctx).execute("SELECT text FROM notes")]

    @server.tool()
    async def commit(ctx: Context) -> str:
        database(ctx).execute("COMMIT")
        return "committed"


def main(port: int, kind: str, form: str, keep_alive: int, file: str = "") -> None:
    counts: dict[str, int] = {}
    if kind != "fastmcp":
        from mcp.server.mcpserver import Context, MCPServer, Resolve

        server = MCPServer("real")

        @server.tool()
        async def book(seat: Annotated[Seat, Resolve(ask_for_seat)]) -> str:
            return f"row {seat.row} is yours"

        @server.tool()
        async def announce(ctx: Context[Any, Any]) -> str:
            await ctx.notify_resource_updated("note://unlisted")
            await ctx.notify_tools_changed()
            return "announced"

        if kind == "ledger":
            ledger(server, file)
    else:
        from fastmcp import Context, FastMCP

        server = FastMCP("real")

        @server.tool()
        async def book(ctx: Context) -> str:
            seat = await ctx.elicit("Which row?", response_type=Seat)
            return f"row {seat.data.row} is yours"

    @server.tool()
    async def turn(ctx: Context) -> int:
        """Counts the calls of a session."""
        if kind == "fastmcp":
            number = (await ctx.get_state("turn") or 0) + 1
            await ctx.set_state("turn", number)
            return number
        state = ctx.session._connection.state
        state["turn"] = state.get("turn", 0) + 1
        return state["turn"]

    @server.tool()
    async def roots(ctx: Context) -> str:
        """Asks on the session's own stream, not on the call's."""
        return str(await ctx.session.list_roots())

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

    @server.tool()
    async def steps(count: int, ctx: Context) -> str:
        for number in range(count):
            await ctx.report_progress(number + 1, count, f"step {number + 1}")
        return "done"

    @server.resource("note://one")
    def one() -> str:
        return "note one"

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return f"note {name}"

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name}."

    if kind != "fastmcp":

        @server.completion()
        async def complete(ref: Any, argument: Any, context: Any) -> Any:
            from mcp_types import Completion

            return Completion(values=[name for name in ("moss", "myrtle") if name.startswith(argument.value)])

    app = (
        server.streamable_http_app(json_response=form == "json")
        if kind != "fastmcp"
        else server.http_app(json_response=form == "json")
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", timeout_keep_alive=keep_alive)
