"""Which tools may be repeated after a fault, for how long that is known, and for whom."""

from typing import Any

import mcp_types as types
import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast import Server
from holdfast.client import hints
from holdfast.client.runs.pool import pool
from holdfast.integrations.langchain import definitions, tools
from holdfast.stores import ManualClock
from holdfast.testing import Fault, FaultServer
from tests.client.servers import FASTER, at
from tests.deadlines import until

pytestmark = pytest.mark.anyio
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


async def repeats(http: FaultServer, server: Server) -> bool:
    """Is a call that may have been executed sent again?"""
    http.plan(Fault.CLOSE, method="tools/call")
    try:
        await server.call_tool("echo", {"text": "x"})
    except holdfast.OutcomeUnknown:
        return False
    return True


@pytest.mark.promise("run.annotations")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_hints_outlive_the_session_and_the_run_that_listed_the_tools(era: str) -> None:
    async with FaultServer(era=era) as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run():
            assert not await repeats(http, server)  # nobody listed yet
            await server.list_tools()
            assert await repeats(http, server)
            await http.restart()
            await server.call_tool("echo")
            assert await repeats(http, server)
        async with holdfast.run():
            assert await repeats(http, server)
            assert await repeats(http, server)
        assert await repeats(http, server)  # and outside a run
        async with holdfast.run(principal="somebody else"):  # may be shown other tools
            assert not await repeats(http, server)
        async with holdfast.run():
            assert not await repeats(http, at(http, "another"))


@pytest.mark.promise("run.annotations")
async def test_hints_end_with_another_listing_version_or_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(pool, "clock", clock)
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run():
            await server.list_tools()
            http.sessions.read_only.clear()
            await server.list_tools()
            assert not await repeats(http, server)
            http.sessions.read_only.add("echo")
            await server.list_tools()
        async with holdfast.run():
            clock.advance(hints.HINT_SECONDS + 1)
            assert not await repeats(http, server)
            await server.list_tools()
            assert await repeats(http, server)
        http.sessions.version = "2"
        async with holdfast.run():
            await server.ping()
            assert not await repeats(http, server)


@pytest.mark.promise("run.annotations")
async def test_hints_end_when_the_server_says_that_its_tools_changed() -> None:
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run():
            await server.list_tools()
            assert await repeats(http, server)
            await until(lambda: http.push(CHANGED))
            await until(lambda: hints.known(server, holdfast.stores.ANONYMOUS, None, 0.0) is None)
            assert not await repeats(http, server)


@pytest.mark.promise("run.annotations")
async def test_saved_definitions_bring_their_hints_and_a_listing_knows_better() -> None:
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        async with holdfast.run():
            saved = await definitions([at(http)])
        server = at(http).with_(labels={"as": "in another process"})
        built = {tool.name: tool for tool in await tools([server], definitions=saved, errors="raise")}
        async with holdfast.run():
            http.plan(Fault.CLOSE, method="tools/call")
            await built["it__echo"].ainvoke({"text": "x"})
            http.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(holdfast.OutcomeUnknown):
                await built["it__count"].ainvoke({})
            http.sessions.read_only.clear()
            await server.list_tools()
            http.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(holdfast.OutcomeUnknown):
                await built["it__echo"].ainvoke({"text": "x"})


@pytest.mark.promise("run.annotations")
def test_what_is_kept_of_listings_is_bounded() -> None:
    server = Server("many", url="http://127.0.0.1:1/", limits=FASTER)
    for number in range(hints.SERVERS + 1):
        one = server.with_(headers={"authorization": str(number)})
        hints.learn(
            one, holdfast.stores.ANONYMOUS, None, [("x" * 300, True), *((str(n), True) for n in range(2000))], 0.0
        )
    assert len(hints._kept) == hints.SERVERS
    kept = hints.known(one, holdfast.stores.ANONYMOUS, None, 0.0)
    assert kept is not None
    assert len(kept.repeatable) == hints.TOOLS
    hints._kept.clear()


@pytest.mark.promise("run.annotations")
async def test_a_tool_that_says_it_is_harmless_is_replayed_once_it_was_listed() -> None:
    effects: list[str] = []
    app = MCPServer("app")

    @app.tool(annotations=types.ToolAnnotations(idempotent_hint=True))
    def note(text: str) -> str:
        effects.append(text)
        return text

    server = Server("app", app=app, limits=FASTER)
    async with holdfast.run() as run:
        await server.list_tools()
        link = await run.link(server)
        seen: list[Any] = []
        real = link.request

        async def spy(method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            seen.append(kwargs.get("safe"))
            return await real(method, *args, **kwargs)

        link.request = spy  # type: ignore[method-assign]
        await server.call_tool("note", {"text": "a"})
        await server.call_tool("note", {"text": "b"}, idempotent=False)
        assert seen == [True, False]


async def echo_of(server: Server, saved: Any = None) -> Any:
    [echo] = [tool for tool in await tools([server], definitions=saved, errors="raise") if tool.name == "it__echo"]
    return echo


async def is_repeated(http: FaultServer, echo: Any) -> bool:
    """Is a call of a LangChain tool that may have been executed sent again?"""
    http.plan(Fault.CLOSE, method="tools/call")
    try:
        await echo.ainvoke({"text": "x"})
    except holdfast.OutcomeUnknown:
        return False
    return True


@pytest.mark.promise("run.annotations")
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("ends", ["list_changed", "version", "hour"])
async def test_a_langchain_tools_hints_end_with_what_it_was_built_from(
    ends: str, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(pool, "clock", clock)
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run():
            echo = await echo_of(server, await definitions([server]) if saved else None)
            assert await is_repeated(http, echo)
            http.sessions.read_only.clear()
            if ends == "list_changed":
                await until(lambda: http.push(CHANGED))
                await until(lambda: hints.known(server, holdfast.stores.ANONYMOUS, None, 0.0) is None)
            elif ends == "version":
                http.sessions.version = "2"
                await http.restart()
                await server.ping()
            else:
                clock.advance(hints.HINT_SECONDS + 1)
            assert not await is_repeated(http, echo)
            assert not await is_repeated(http, echo)
            http.sessions.read_only.add("echo")
            await server.list_tools()
            assert await is_repeated(http, echo)


@pytest.mark.promise("run.annotations")
@pytest.mark.parametrize("ends", ["list_changed", "version"])
async def test_a_saved_definition_ends_when_its_server_changes_before_any_listing(ends: str) -> None:
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        async with holdfast.run():
            saved = await definitions([at(http)])
        server = at(http).with_(labels={"as": "in another process"})
        echo = await echo_of(server, saved)
        async with holdfast.run():
            assert await is_repeated(http, echo)
            http.sessions.read_only.clear()
            if ends == "list_changed":
                await until(lambda: http.push(CHANGED))
                await until(lambda: not hints.saved_count(server, holdfast.stores.ANONYMOUS, None))
            else:
                http.sessions.version = "2"
                await http.restart()
                await server.ping()
            assert not await is_repeated(http, echo)
        async with holdfast.run():
            assert not await is_repeated(http, echo)


@pytest.mark.promise("run.annotations")
async def test_a_tool_that_was_listed_for_one_caller_brings_no_hints_to_another() -> None:
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run(principal="alice"):
            echo = await echo_of(server)
            assert await is_repeated(http, echo)
        async with holdfast.run(principal="bob"):
            assert not await is_repeated(http, echo)


@pytest.mark.promise("run.annotations")
async def test_the_first_call_of_a_run_finds_the_version_out_before_it_is_repeated() -> None:
    async with FaultServer() as http:
        http.sessions.read_only.add("echo")
        server = at(http)
        async with holdfast.run():
            await server.list_tools()
        http.sessions.read_only.clear()
        http.sessions.version = "2"
        async with holdfast.run():
            assert not await repeats(http, server)


@pytest.mark.promise("run.annotations")
def test_what_is_kept_of_saved_definitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MARKS", 3)
    server = Server("many", url="http://127.0.0.1:1/")
    for number in range(5):
        hints.forget(server.with_(labels={"n": str(number)}), holdfast.stores.ANONYMOUS)
    assert len(hints._saved_version) == 3
