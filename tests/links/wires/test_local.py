"""The same link to a server object in this process: SDK Server and MCPServer, FastMCP; both eras; no socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from fastmcp import FastMCP
from mcp.server.mcpserver import Context, MCPServer

import holdfast
from holdfast.core.lifecycle import LinkState
from tests.deadlines import patience, until
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


def sdk_server() -> MCPServer:
    server = MCPServer("local")
    gate = asyncio.Event()
    server.gate = gate  # type: ignore[attr-defined]

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def wait() -> str:
        await gate.wait()
        return "done"

    @server.tool()
    async def report(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await ctx.report_progress(2, 2)
        return "reported"

    return server


def fastmcp_server() -> FastMCP:
    server = FastMCP("local")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    return server


@pytest.mark.promise("link.local")
@pytest.mark.parametrize("make", [sdk_server, fastmcp_server])
@pytest.mark.parametrize("era", ["auto", "2025", "2026"])
async def test_a_server_object_is_served_like_any_other(make: Any, era: Any) -> None:
    async with link_to(make(), era=era) as link:
        results = await asyncio.gather(*(link.request("tools/call", tool("add", a=n, b=1)) for n in range(20)))
        assert [text_of(result) for result in results] == [str(n + 1) for n in range(20)]
        assert link.era is not None
        assert link.era.value == ("2025" if era == "auto" else era)
        assert (link.statistics().opens, link.statistics().handshakes) == (1, 1)
        with pytest.raises(holdfast.errors.ErrorAnswer):
            await link.request("no/such/method", {})
        await link.close()
        assert link.phase is LinkState.CLOSED
        assert text_of(await link.request("tools/call", tool("add", a=1, b=1))) == "2"


@pytest.mark.promise("link.local")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_progress_and_cancellation_work_without_a_socket(era: Any) -> None:
    server, steps = sdk_server(), list[float]()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async with link_to(server, era=era) as link:
        await link.request("tools/call", tool("report"), on_progress=progress)
        await until(lambda: steps == [1, 2])
        call = asyncio.ensure_future(link.request("tools/call", tool("wait")))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(holdfast.errors.AnswerTimeout):
            await link.request("tools/call", tool("wait"), timeout=0.1)
        assert text_of(await link.request("tools/call", tool("add", a=1, b=1))) == "2"


@pytest.mark.promise("link.local")
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_server_may_ask_us() -> None:
    server = MCPServer("asks")

    @server.tool()
    async def ask(ctx: Context) -> str:
        answer = await ctx.session.create_message(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(type="text", text="hi"))],
            max_tokens=5,
        )
        return str(answer.model)

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        assert method == "sampling/createMessage"
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m1"}

    async with link_to(server, era="2025", on_request=answer, capabilities={"sampling": {}}) as link:
        assert text_of(await link.request("tools/call", tool("ask"))) == "m1"


@pytest.mark.promise("link.local")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_run_that_ends_is_told_to_its_calls_and_begun_again(era: Any) -> None:
    server = sdk_server()
    async with link_to(server, era=era) as link:
        await link.request("tools/list")
        call = asyncio.ensure_future(link.request("tools/call", tool("wait")))
        await until(lambda: link.statistics().in_flight == 1)
        [running] = [task for task in asyncio.all_tasks() if "Server.run" in repr(task.get_coro())]
        running.cancel()
        with pytest.raises(holdfast.errors.ConnectionLost):
            await asyncio.wait_for(call, patience(5))
        await until(lambda: link.phase is not LinkState.READY)
        # A 2025 run was a session, and an unsafe call had an unknown outcome in it.
        if era == "2025":
            with pytest.raises(holdfast.SessionReplaced):
                await link.request("tools/call", tool("add", a=1, b=1))
        assert text_of(await link.request("tools/call", tool("add", a=1, b=1))) == "2"
        assert link.statistics().opens == 2


@pytest.mark.promise("link.local")
async def test_a_server_that_does_not_start_is_typed() -> None:
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    async with link_to(MCPServer("broken", lifespan=lifespan)) as link:
        with pytest.raises(holdfast.HoldfastError, match="no database") as caught:
            await link.request("tools/list")
        assert isinstance(caught.value, holdfast.Unavailable | holdfast.OutcomeUnknown)
        assert caught.value.server == "it"


@pytest.mark.promise("link.blast-radius")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_local_calls_own_timeout_harms_no_other(era: Any) -> None:
    server, gate = MCPServer("local"), asyncio.Event()

    @server.tool()
    async def wait(ctx: Context) -> str:
        for step in range(50):
            await ctx.report_progress(step)
        await gate.wait()
        return "done"

    async def progress(done: float, total: float | None, message: str | None) -> None:
        pass

    async with link_to(server, era=era) as link:
        waiting = asyncio.ensure_future(link.request("tools/call", tool("wait"), on_progress=progress))
        await until(lambda: link.statistics().in_flight == 1)
        for timeout in (0, 0.001, 0.01, 0.0, 0.002):
            with pytest.raises(holdfast.HoldfastError):
                await link.request("tools/call", tool("wait"), timeout=timeout, on_progress=progress)
        gate.set()
        assert text_of(await waiting) == "done"
        assert link.statistics().opens == 1


@pytest.mark.promise("link.progress")
async def test_a_local_progress_callback_may_use_the_link() -> None:
    server = MCPServer("local")

    @server.tool()
    async def report(ctx: Context) -> str:
        await ctx.report_progress(1)
        return "done"

    async with link_to(server) as link:
        listed: list[Any] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            listed.append(await link.request("tools/list"))

        assert text_of(await link.request("tools/call", tool("report"), on_progress=progress)) == "done"
        assert len(listed) == 1


@pytest.mark.promise("link.local")
async def test_local_parameters_that_are_not_json_are_a_usage_error() -> None:
    async with link_to(MCPServer("local")) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.UsageError):
            await link.request("tools/call", {1: 2})  # type: ignore[dict-item]
        await link.request("tools/list")
        assert link.statistics().opens == 1
