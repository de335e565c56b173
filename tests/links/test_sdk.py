"""A link behind the SDK: as dispatcher of a ClientSession, as transport of mcp.Client. Both eras, and faults."""

import asyncio
import sys
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.links import LinkDispatcher, LinkTransport, sdk
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


def said(result: types.CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "x"})


ASK = {"params": {"message": "name?", "requestedSchema": {"type": "object", "properties": {}}}}


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("handshakes", ["initialize", "discover"])
async def test_a_session_over_a_link_works_whatever_era_it_believes_in(era: Any, handshakes: str) -> None:
    steps: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async with FaultServer(era=era, answers="sse") as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=accept) as session:
            if handshakes == "discover" and era == "2025":
                with pytest.raises(MCPError):
                    await session.discover()
                await session.initialize()
            else:
                await getattr(session, handshakes)()
            assert (await session.list_tools()).tools[0].name == "echo"
            assert said(await session.call_tool("echo", {"text": "hi"})) == "hi"
            await session.call_tool("progress", {"steps": 2}, progress_callback=progress)
            assert steps == [1, 2]
            if era == "2025":
                assert "accept" in said(await session.call_tool("ask", ASK))
                initialized = next(r.message for r in server.requests if r.method == "initialize")
                assert initialized is not None
                assert "elicitation" in initialized["params"]["capabilities"]
        assert link.statistics().handshakes == 1


@pytest.mark.promise("link.sdk")
async def test_out_of_the_dispatcher_comes_only_mcp_error_with_ours_as_its_cause() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await session.initialize()
            await session.list_tools()
            server.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(MCPError) as caught:
                await session.call_tool("echo", {})
            assert isinstance(caught.value.__cause__, holdfast.errors.ConnectionLost)
            assert caught.value.data["holdfast"]["family"] == "OutcomeUnknown"
            server.plan(Fault.STATUS, method="tools/call", status=403)
            with pytest.raises(MCPError) as caught:
                await session.call_tool("echo", {})
            assert caught.value.data["holdfast"] == {
                "error": "Forbidden", "family": "Rejected", "status": 403, "attempts": 1,
            }  # fmt: skip
            await server.refuse()
            with pytest.raises(MCPError) as caught:
                await session.call_tool("echo", {})
            assert isinstance(caught.value.__cause__, holdfast.errors.ConnectFailed)
            await server.listen()
            # The SDK's own client would be dead by now.
            assert said(await session.call_tool("echo", {"text": "alive"})) == "alive"


@pytest.mark.promise("link.sdk")
async def test_no_command_output_or_session_id_leaves_the_dispatcher() -> None:
    """An agent shows an MCPError's text to its model, and a proxy sends both text and data on."""
    script = "import sys; sys.stderr.write('password is hunter2'); sys.exit(3)"
    crashing = holdfast.links.CommandTarget(sys.executable, ["-c", script, "secret-argument"])
    async with link_to(crashing) as link, ClientSession(dispatcher=LinkDispatcher(link)) as session:
        with pytest.raises(MCPError) as caught:
            await session.initialize()
        ours = caught.value.__cause__
        assert isinstance(ours, holdfast.errors.ConnectFailed)
        assert "hunter2" in str(ours.stderr_tail)
        told = f"{caught.value} {caught.value.error.model_dump_json()}"
        assert "ConnectFailed: 'it' " in told
        for secret in ("hunter2", "secret-argument", sys.executable):
            assert secret not in told
    async with FaultServer() as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await session.initialize()
            await session.call_tool("count", {})
            old = link.session_id
            server.sessions.sessions.clear()
            with pytest.raises(MCPError) as caught:
                await session.call_tool("count", {})
            assert isinstance(caught.value.__cause__, holdfast.SessionReplaced)
            told = f"{caught.value} {caught.value.error.model_dump_json()}"
            assert "call again to continue" in told
            assert str(old) not in told
            assert str(link.session_id) not in told


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("believes", ["2025", "2026"])
async def test_a_session_outlives_its_servers_change_of_era(believes: Any) -> None:
    async with FaultServer(era=believes) as server, link_to(server.url, stateful=False) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await (session.initialize() if believes == "2025" else session.discover())
            await session.list_tools()
            server.plan(Fault.CHANGE_ERA, method="tools/call")
            assert said(await session.call_tool("echo", {"text": "still"})) == "still"
            assert (await session.list_tools()).tools
            assert link.era is not None
            assert link.era.value != believes


@pytest.mark.promise("link.sdk")
async def test_a_server_restarted_under_twenty_session_calls() -> None:
    async with (
        RealServer("sdk") as server,
        link_to(server.url, era="2025", limits=holdfast.links.Limits(replays=5)) as link,
    ):
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await session.initialize()
            await session.list_tools()
            await server.restart()
            results = await asyncio.gather(*(session.call_tool("add", {"a": n, "b": 1}) for n in range(20)))
            assert [said(result) for result in results] == [str(n + 1) for n in range(20)]
            assert (link.statistics().opens, link.statistics().handshakes) == (1, 2)


@pytest.mark.promise("link.sdk")
async def test_tools_annotated_as_harmless_are_replayed_and_others_are_not() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await session.initialize()
            tools = [
                {"name": "effect", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}},
                {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}},
            ]
            link_request = link.request

            async def listed(method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
                return {"tools": tools} if method == "tools/list" else await link_request(method, *args, **kwargs)

            link.request = listed  # type: ignore[method-assign]
            await session.list_tools()
            server.plan(Fault.CLOSE, method="tools/call", effect=True)
            await session.call_tool("effect", {"call": "x"})
            assert server.effects["x"] == 2
            server.plan(Fault.CLOSE, method="tools/call", effect=True)
            with pytest.raises(MCPError):
                await session.call_tool("echo", {"call": "y"})
            assert server.effects["y"] == 1
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:  # a later one over the same link
            await session.initialize()
            server.plan(Fault.CLOSE, method="tools/call")
            await session.call_tool("effect")
            changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            await until(lambda: server.push(changed))
            await until(lambda: link not in sdk._safe_tools)
            server.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(MCPError):
                await session.call_tool("effect")


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_mcp_client_over_a_link(era: Any) -> None:
    changes: list[Any] = []

    async def heard(message: Any) -> None:
        changes.append(message)

    async with FaultServer(era=era, answers="sse") as server:
        transport = LinkTransport(link_to(server.url, stateful=False))
        async with Client(transport, elicitation_callback=accept, message_handler=heard) as client:
            assert client.protocol_version.startswith(era)
            assert said(await client.call_tool("echo", {"text": "hi"})) == "hi"
            if era == "2025":
                assert "accept" in said(await client.call_tool("ask", ASK))
                await until(lambda: server.streams == 1)
                server.push({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                await until(lambda: changes)
            await server.restart()
            assert said(await client.call_tool("echo", {"text": "again"})) == "again"
            server.plan(Fault.CLOSE, method="tools/call")
            with pytest.raises(MCPError):
                await client.call_tool("echo", {})
            assert said(await client.call_tool("echo", {"text": "and again"})) == "and again"
        assert not server.sessions.sessions


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_cancelled_session_call_is_cancelled_at_the_server(over: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        if over == "dispatcher":
            context: Any = ClientSession(dispatcher=LinkDispatcher(link))
        else:
            context = Client(LinkTransport(link))
        async with context as client:
            if over == "dispatcher":
                await client.initialize()
            await client.list_tools()
            call = asyncio.ensure_future(client.call_tool("wait", {"call": "w"}))
            await until(lambda: server.effects["w"])
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: server.sessions.cancelled)


@pytest.mark.promise("link.sdk")
async def test_the_sdks_own_listen_is_told_of_a_drop_and_no_call_is_harmed() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            from mcp.client.subscriptions import listen

            await session.discover()
            await session.list_tools()
            call = asyncio.ensure_future(session.call_tool("wait", {"call": "w"}))
            await until(lambda: server.effects["w"])
            with pytest.raises(SubscriptionLost):
                async with listen(session, tools_list_changed=True) as subscription:
                    server.push({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                    assert await anext(subscription) is not None
                    server.drop_streams()
                    await anext(subscription)
            server.sessions.release.set()
            await call


@pytest.mark.promise("link.sdk")
async def test_an_id_in_use_is_refused_as_the_sdk_expects() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        dispatcher = LinkDispatcher(link)
        params = {"name": "wait", "arguments": {"call": "w"}}
        first = asyncio.ensure_future(dispatcher.send_raw_request("tools/call", params, {"request_id": "a"}))
        await until(lambda: server.effects["w"])
        with pytest.raises(ValueError, match="already in flight"):
            await dispatcher.send_raw_request("tools/list", None, {"request_id": "a"})
        server.sessions.release.set()
        await first


@pytest.mark.promise("link.sdk")
async def test_a_client_over_a_link_that_somebody_closes_gets_an_answer() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        async with Client(LinkTransport(link)) as client:
            await client.list_tools()
            call = asyncio.ensure_future(client.call_tool("wait", {"call": "w"}))
            await until(lambda: server.effects["w"])
            await link.close()
            with pytest.raises(MCPError):
                await asyncio.wait_for(call, patience(5))
            await client.call_tool("echo", {})


@pytest.mark.promise("link.sdk")
async def test_a_malformed_result_is_answered_and_kills_nothing() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
            await session.discover()

            async def malformed(method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
                return {"tools": ["x", {"name": 7}, {"name": "y", "annotations": 3}]}

            real, link.request = link.request, malformed  # type: ignore[method-assign]
            with pytest.raises((MCPError, ValueError)):
                await session.list_tools()
            link.request = real  # type: ignore[method-assign]
            assert (await session.list_tools()).tools
