"""A link behind the SDK: as dispatcher of a ClientSession, as transport of mcp.Client. Both eras, and faults."""

import asyncio
import sys
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ClientMessageMetadata, SessionMessage

import holdfast
from holdfast.links import LinkDispatcher, LinkTransport, sdk
from holdfast.stores import ManualClock
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to, tool
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
            await getattr(session, handshakes)()
            assert (await session.list_tools()).tools[0].name == "echo"
            assert said(await session.call_tool("echo", {"text": "hi"})) == "hi"
            await session.call_tool("progress", {"steps": 2}, progress_callback=progress)
            assert steps == [1, 2]
            if era == "2025":
                asked = await session.call_tool("ask", ASK, allow_input_required=True)
                if handshakes == "discover":
                    assert isinstance(asked, types.InputRequiredResult)
                    answers = {name: await accept(None, None) for name in asked.input_requests or {}}
                    asked = await session.call_tool(
                        "ask", ASK, input_responses=answers, request_state=asked.request_state
                    )
                assert isinstance(asked, types.CallToolResult)
                assert "accept" in said(asked)
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


async def repeats(http: FaultServer, session: ClientSession) -> bool:
    http.plan(Fault.CLOSE, method="tools/call")
    try:
        await session.call_tool("echo", {"text": "x"})
    except MCPError as error:
        assert isinstance(error.__cause__, holdfast.OutcomeUnknown)
        return False
    return True


@pytest.mark.promise("run.annotations")
@pytest.mark.parametrize("ends", ["version", "version, found out by the call", "hour"])
async def test_a_sessions_hints_end_with_another_version_or_an_hour(ends: str) -> None:
    clock = ManualClock()
    async with FaultServer() as http, link_to(http.url, stream=False, clock=clock) as link:
        http.sessions.read_only.add("echo")
        async with ClientSession(dispatcher=holdfast.links.LinkDispatcher(link)) as session:
            await session.initialize()
            await session.list_tools()
            assert await repeats(http, session)
            http.sessions.read_only.clear()
            if ends == "hour":
                clock.advance(3_601)
            else:
                http.sessions.version = "2"
                if ends == "version":
                    await http.restart()
                    await session.send_ping()
                else:
                    await link.close()
            assert not await repeats(http, session)
            http.sessions.read_only.add("echo")
            await session.list_tools()
            assert await repeats(http, session)


@pytest.mark.promise("link.sdk")
async def test_the_listen_of_an_mcp_client_over_a_link_is_acknowledged_and_gets_changes() -> None:
    async with FaultServer(era="2026") as server:
        async with Client(LinkTransport(link_to(server.url, stateful=False))) as client:
            async with asyncio.timeout(patience(10)), client.listen(tools_list_changed=True) as subscription:
                server.push({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                assert await anext(subscription) is not None
            await until(lambda: not server.streams)  # leaving it ends it at the server
            assert (await client.list_tools()).tools


@pytest.mark.promise("link.reverse")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_question_that_the_server_takes_back_is_taken_from_the_sessions_callback(over: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, params: Any) -> types.ElicitResult:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with FaultServer() as server, link_to(server.url) as link:
        if over == "dispatcher":
            context: Any = ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=wait)
        else:
            context = Client(LinkTransport(link), elicitation_callback=wait)
        async with context as client:
            if over == "dispatcher":
                await client.initialize()
            await client.list_tools()
            await until(lambda: server.streams == 1)
            server.push({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", **ASK})
            await asyncio.wait_for(begun.wait(), patience(5))
            taken_back = {"requestId": 7, "reason": "too late"}
            server.push({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back})
            await asyncio.wait_for(ended.wait(), patience(5))
            assert said(await client.call_tool("echo", {"text": "alive"})) == "alive"
            assert not any((request.message or {}).get("id") == 7 for request in server.requests)  # nor answered


@pytest.mark.promise("link.reverse")
async def test_the_reason_of_a_servers_cancellation_reaches_the_transports_session() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        async with LinkTransport(link) as (for_session, from_session):
            hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "c"}}
            start = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=hello)
            await from_session.send(SessionMessage(start))
            await for_session.receive()
            await until(lambda: server.streams == 1)
            server.push({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", **ASK})
            question = (await for_session.receive()).message
            taken_back = {"requestId": 7, "reason": "too late"}
            server.push({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back})
            cancelled = (await for_session.receive()).message
            assert cancelled.params == {"requestId": question.id, "reason": "too late"}


@pytest.mark.promise("link.sdk")
async def test_the_reason_of_the_transports_session_for_a_cancellation_reaches_the_server() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        async with LinkTransport(link) as (for_session, from_session):
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
            start = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=hello)
            await from_session.send(SessionMessage(start))
            await for_session.receive()
            call = types.JSONRPCRequest(jsonrpc="2.0", id=2, method="tools/call", params=tool("wait", call="w"))
            await from_session.send(SessionMessage(call))
            await until(lambda: server.effects["w"])
            given_up = {"requestId": 2, "reason": "the person left"}
            notice = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=given_up)
            await from_session.send(SessionMessage(notice))
            await until(lambda: server.sessions.cancelled)
            sent = [r.message for r in server.requests if (r.message or {}).get("method") == "notifications/cancelled"]
            assert [each["params"]["reason"] for each in sent if each] == ["the person left"]


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_cancellation_of_an_id_that_the_session_has_not_used_goes_to_the_server(over: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        if over == "dispatcher":
            context: Any = ClientSession(dispatcher=LinkDispatcher(link))
        else:
            context = Client(LinkTransport(link), mode="legacy")
        async with context as client:
            session = client if over == "dispatcher" else client.session
            if over == "dispatcher":
                await session.initialize()
            params = types.CancelledNotificationParams(request_id="of-the-server", reason="aborted")
            await session.send_notification(types.CancelledNotification(params=params))

            def cancelled() -> list[Any]:
                sent = (request.message or {} for request in server.requests)
                return [each["params"] for each in sent if each.get("method") == "notifications/cancelled"]

            await until(lambda: bool(cancelled()))
            assert cancelled() == [{"requestId": "of-the-server", "reason": "aborted"}]


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("prior", [True, False])
async def test_a_client_that_knows_its_server_costs_no_discover(prior: bool) -> None:
    async with FaultServer(era="2026") as server:
        saved = None
        if prior:
            async with link_to(server.url) as first:
                saved = types.DiscoverResult.model_validate(await first.request("server/discover"))
        server.requests.clear()
        link = link_to(server.url)
        async with Client(LinkTransport(link), mode="2026-07-28", prior_discover=saved) as client:
            assert said(await client.call_tool("echo", {"text": "hi"})) == "hi"
            assert {request.method for request in server.requests} <= {"tools/call", "tools/list"}
            with pytest.raises(MCPError):  # a refusal of one call is none of the era
                await client.get_prompt("x")
            assert link.statistics().why == "the client knows the server"
            handshake = await link.open()  # somebody wants to know after all
            assert handshake.server_info == {"name": "faulty", "version": "1"}
            assert "tools" in handshake.capabilities


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("refusal", ["400", "404", "words"])
async def test_a_client_that_is_wrong_about_its_server_is_served_in_the_other_era(refusal: str) -> None:
    async with FaultServer(era="2025") as server:
        if refusal != "words":
            server.plan(Fault.STATUS, method="tools/call", status=int(refusal), body=b"what?")
        link = link_to(server.url)
        async with Client(LinkTransport(link), mode="2026-07-28") as client:
            assert said(await client.call_tool("effect", {"call": "x"})) == ""
            assert (await client.list_tools()).tools
            assert link.era is not None
            assert link.era.value == "2025"
        assert server.effects["x"] == 1


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_session_goes_on_with_an_answer_by_its_resumption_token(over: str) -> None:
    tokens: list[str] = []

    async def take(token: str) -> None:
        tokens.append(token)
        raise RuntimeError("a bug of the caller")

    async with FaultServer(resumable=True) as server, link_to(server.url, stream=False) as link:
        if over == "dispatcher":
            context: Any = ClientSession(dispatcher=LinkDispatcher(link))
        else:
            context = Client(LinkTransport(link))
        async with context as client:
            session = client if over == "dispatcher" else client.session
            if over == "dispatcher":
                await session.initialize()

            def call(hints: ClientMessageMetadata) -> asyncio.Future[types.CallToolResult]:
                params = types.CallToolRequestParams(name="effect", arguments={"call": "x", "text": "the answer"})
                request = types.CallToolRequest(params=params)
                return asyncio.ensure_future(session.send_request(request, types.CallToolResult, metadata=hints))

            server.plan(Fault.CLOSE_IN_STREAM, method="tools/call")
            server.plan(Fault.HANG, method="GET")
            first = call(ClientMessageMetadata(on_resumption_token_update=take))
            await until(lambda: server.effects["x"] == 1 and tokens)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            again = await asyncio.wait_for(call(ClientMessageMetadata(resumption_token=tokens[-1])), patience(5))
            assert said(again) == "the answer"
            assert server.effects["x"] == 1
            assert not server.sessions.cancelled  # it was left, not cancelled
            before = len(server.requests)
            with pytest.raises(MCPError) as caught:
                await call(ClientMessageMetadata(resumption_token="a\r\nx-evil: 1"))
            assert caught.value.data["holdfast"]["error"] == "UsageError"
            assert len(server.requests) == before
