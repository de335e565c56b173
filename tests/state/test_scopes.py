"""The five scopes on real servers: one table of what survives what, and nested calls that leave nothing behind."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.middleware import Middleware
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.events import Event, ServerCounted
from holdfast.state.scopes import ENDS, SURVIVES
from tests.state.replicas import FRAMEWORKS, Replica, replicas
from tests.state.test_baskets import client, value

pytestmark = pytest.mark.anyio


@dataclass
class Trace:
    steps: list[str] = field(default_factory=list)


@dataclass
class Figures:
    calls: int = 0
    names: list[str] = field(default_factory=list)


class Basket(holdfast.SessionState):
    items: list[str] = []


@pytest.mark.promise("state.scopes")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_what_survives_what_is_as_the_table_says(framework: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/b.db"
    seen: dict[str, dict[str, bool]] = {scope: {} for scope in SURVIVES}
    async with replicas(Replica(framework, store), Replica(framework, store)) as (one, other):

        async def mark(replica: Replica, session: str) -> dict[str, int]:
            """Add one in every scope, and tell what is there."""
            async with client(replica.url, "2026") as asking:
                return dict(await value(asking, "mark", basket_id=session))

        async def begin() -> str:
            async with client(one.url, "2026") as asking:
                return str((await value(asking, "create_basket"))["basket_id"])

        session = await begin()
        assert set((await mark(one, session)).values()) == {1}
        again = await mark(one, session)
        elsewhere = await mark(other, session)
        async with client(one.url, "2026") as asking:
            await value(asking, "end_basket", basket_id=session)
        after_end = await mark(one, await begin())
        await one.restart()
        session = await begin()
        await mark(other, session)
        restarted = await mark(one, session)
    for scope in SURVIVES:
        seen[scope] = {
            "request ends": again[scope] == 2,
            "session ends": after_end[scope] > 1,
            "server restarts": restarted[scope] > 1,
            "other replica": elsewhere[scope] == 3,
        }
    assert tuple(seen["session"]) == ENDS
    assert seen == SURVIVES


class Tracing(Middleware):
    """A user's own middleware, inside ours."""

    def __init__(self, trace: "holdfast.state.RequestScope[Trace]") -> None:
        self.trace = trace

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        self.trace.get().steps.append(f"before {context.message.name}")
        return await call_next(context)


@pytest.mark.promise("state.scopes")
async def test_a_nested_call_sees_a_copy_and_leaves_nothing_on_fastmcp() -> None:
    trace = holdfast.state.RequestScope(Trace)
    sessions = holdfast.Sessions(Basket)
    server = FastMCP("shop")
    sessions.install(server)
    server.add_middleware(Tracing(trace))
    seen: list[list[str]] = []

    @server.tool
    async def outer(ctx: Context) -> list[str]:
        trace.get().steps.append("outer")
        await ctx.fastmcp.call_tool("inner", {})
        return trace.get().steps

    @server.tool
    async def inner(mine: Trace = Depends(trace)) -> str:
        mine.steps.append("inner")
        seen.append(list(trace.get().steps))
        return "done"

    async with Client(server) as asking:
        for _ in range(2):  # and nothing is left for the next request
            assert (await asking.call_tool("outer", {})).data == ["before outer", "outer"]
        together = await asyncio.gather(*(asking.call_tool("outer", {}) for _ in range(20)))
        assert all(each.data == ["before outer", "outer"] for each in together)
    assert all(steps == ["before outer", "outer", "before inner", "inner"] for steps in seen)
    assert await (await sessions.open()).count() == 0  # nothing of it lands in the store


@pytest.mark.promise("state.scopes")
async def test_a_nested_call_sees_a_copy_and_leaves_nothing_on_mcpserver() -> None:
    trace = holdfast.state.RequestScope(Trace)
    sessions = holdfast.Sessions(Basket)

    async def tracing(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/call":
            trace.get().steps.append("before")
        return await call_next(ctx)

    server = MCPServer("shop")
    sessions.install(server, tools=False)
    server.middleware.append(tracing)

    @server.tool()
    async def outer(ctx: SdkContext[Any, Any]) -> list[str]:
        trace.get().steps.append("outer")
        with holdfast.state.nested_scope():
            await ctx.mcp_server.call_tool("inner", {}, ctx)
        return trace.get().steps

    @server.tool()
    async def inner(mine: Annotated[Trace, Resolve(trace)]) -> list[str]:
        mine.steps.append("inner")
        return list(trace.get().steps)

    async with mcp.Client(server) as asking:
        for _ in range(2):
            answer = await asking.call_tool("outer", {})
            assert answer.structured_content == {"result": ["before", "outer"]}
        answer = await asking.call_tool("inner", {})
        assert answer.structured_content == {"result": ["before", "inner"]}
    with pytest.raises(holdfast.UsageError, match="no request scope"):
        trace.get()


@pytest.mark.promise("state.scopes")
async def test_server_wide_figures_count_in_threads_and_as_events() -> None:
    told: list[Event] = []
    figures = holdfast.state.ServerScope(Figures, name="shop", on_event=told.append)
    server = FastMCP("shop")

    @server.tool
    def count(everywhere: "holdfast.state.ServerScope[Figures]" = Depends(figures)) -> int:
        with everywhere.edit() as draft:
            draft.names.append("x")
        return everywhere.count("calls")

    async with Client(server) as asking:
        await asyncio.gather(*(asking.call_tool("count", {}) for _ in range(50)))
    assert figures.get() == Figures(50, ["x"] * 50)
    assert sorted(event.value for event in told if isinstance(event, ServerCounted)) == list(range(1, 51))
    with pytest.raises(RuntimeError), figures.edit() as draft:
        draft.calls = -1
        raise RuntimeError
    assert figures.get().calls == 50
    with pytest.raises(holdfast.UsageError, match="'names' is not an integer field"):
        figures.count("names")
