"""2026 sessions of the SDK over 2025 servers: discover, listens, questions in mid-call, log levels, cancellation."""

import asyncio
from json import dumps
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from holdfast.links import LinkDispatcher, LinkTransport
from holdfast.links.crossing import parked
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to
from tests.links.server_process import RealServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ASK = {"params": {"message": "name?", "requestedSchema": {"type": "object", "properties": {}}}}
SAMPLE = {"maxTokens": 9, "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}
TOOLS_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
LOG = {"params": {"level": "info", "data": "said"}, "method": "notifications/message", "jsonrpc": "2.0"}


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "x", "row": 7})


def said(result: Any) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def updated(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}


def pinned(link: Any, **callbacks: Any) -> Client:
    """A client of 2026 alone, over whatever the link finds."""
    return Client(LinkTransport(link), mode="2026-07-28", **callbacks)


# The start


@pytest.mark.promise("link.sdk-eras")
async def test_a_session_that_discovers_gets_the_handshake_of_its_2025_server() -> None:
    server = MCPServer("named", version="7", instructions="Be kind.")

    @server.tool()
    async def hello() -> str:
        return "hello"

    async with link_to(server, era="2025") as link, ClientSession(dispatcher=LinkDispatcher(link)) as session:
        result = await session.discover()
        assert result.supported_versions == ["2026-07-28", "2025-11-25"]
        assert session.protocol_version == "2026-07-28"
        assert session.instructions == "Be kind."
        assert session.server_info is not None
        assert (session.server_info.name, session.server_info.version) == ("named", "7")
        assert session.server_capabilities is not None
        assert session.server_capabilities.tools is not None
        assert said(await session.call_tool("hello", {})) == "hello"
        assert [tool.name for tool in (await session.list_tools()).tools] == ["hello"]
        assert link.statistics().handshakes == 1


@pytest.mark.promise("link.sdk-eras")
async def test_a_client_that_takes_either_era_is_told_at_the_start_which_one_it_is() -> None:
    async with FaultServer(answers="sse") as server:
        async with link_to(server.url) as link:
            async with ClientSession(dispatcher=LinkDispatcher(link, probes=True)) as session:
                with pytest.raises(MCPError, match="begin with initialize") as caught:
                    await session.discover()
                assert caught.value.code == -32022
                assert caught.value.data["supported"] == ["2025-11-25"]
        async with Client(LinkTransport(link_to(server.url)), elicitation_callback=accept) as client:
            assert client.protocol_version == "2025-11-25"
            assert "accept" in said(await client.call_tool("ask", ASK))


@pytest.mark.promise("link.sdk-eras")
async def test_a_pinned_client_tells_the_2025_server_what_it_can_do() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        async with pinned(link, elicitation_callback=accept) as client:
            await client.list_tools()
            initialized = next(r.message for r in server.requests if r.method == "initialize")
            assert initialized is not None
            assert "elicitation" in initialized["params"]["capabilities"]


# Changes


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_listen_is_fed_by_the_servers_own_stream(over: str) -> None:
    async with FaultServer() as server, link_to(server.url, stream=False) as link:
        context: Any = ClientSession(dispatcher=LinkDispatcher(link)) if over == "dispatcher" else pinned(link)
        async with context as entered, asyncio.timeout(patience(20)):
            session = entered if over == "dispatcher" else entered.session
            if over == "dispatcher":
                await session.discover()
            wanted = {"tools_list_changed": True, "prompts_list_changed": True, "resource_subscriptions": ["x://a"]}
            async with listen(session, **wanted) as subscription:
                assert subscription.honored.tools_list_changed is True
                assert subscription.honored.prompts_list_changed is None  # the server does not announce those
                assert subscription.honored.resource_subscriptions == ["x://a"]
                server.push(TOOLS_CHANGED)
                assert type(await anext(subscription)).__name__ == "ToolsListChanged"
                server.push(updated("x://b"))
                server.push(updated("x://a/part"))
                changed = await anext(subscription)
                assert getattr(changed, "uri", None) == "x://a/part"
                [known] = server.sessions.sessions.values()
                assert known.subscribed == {"x://a"}
            await until(lambda: not known.subscribed)
            assert (await session.list_tools()).tools


@pytest.mark.promise("link.sdk-eras")
async def test_two_listens_get_what_each_has_asked_for_and_share_subscriptions() -> None:
    async with FaultServer() as server, link_to(server.url) as link, pinned(link) as client:
        async with asyncio.timeout(patience(20)):
            async with client.listen(resource_subscriptions=["x://a", "x://b"]) as both:
                async with client.listen(tools_list_changed=True, resource_subscriptions=["x://a"]) as one:
                    server.push(updated("x://b"))
                    server.push(updated("x://a"))
                    server.push(TOOLS_CHANGED)
                    assert [getattr(await anext(both), "uri", None) for _ in range(2)] == ["x://b", "x://a"]
                    assert [getattr(await anext(one), "uri", None) for _ in range(2)] == ["x://a", None]
                [known] = server.sessions.sessions.values()
                server.push(updated("x://a"))
                assert getattr(await anext(both), "uri", None) == "x://a"
                assert known.subscribed == {"x://a", "x://b"}
            await until(lambda: not known.subscribed)


@pytest.mark.promise("link.sdk-eras")
async def test_a_listen_goes_on_in_a_new_session_and_says_that_all_may_have_changed() -> None:
    async with FaultServer() as server, link_to(server.url, stateful=False) as link, pinned(link) as client:
        async with asyncio.timeout(patience(20)):
            async with client.listen(tools_list_changed=True, resource_subscriptions=["x://a"]) as subscription:
                server.plan(Fault.FORGET, method="tools/list")
                await client.list_tools(cache_mode="bypass")
                seen = {type(await anext(subscription)).__name__ for _ in range(2)}
                assert seen == {"ToolsListChanged", "ResourceUpdated"}
                [known] = server.sessions.sessions.values()
                assert known.subscribed == {"x://a"}


@pytest.mark.promise("link.sdk-eras")
async def test_a_listen_ends_as_lost_when_its_link_is_closed() -> None:
    async with FaultServer() as server, link_to(server.url) as link, pinned(link) as client:
        async with asyncio.timeout(patience(20)):
            async with client.listen(tools_list_changed=True) as subscription:
                await link.close()
                with pytest.raises(SubscriptionLost):
                    await anext(subscription)


@pytest.mark.promise("link.sdk-eras")
async def test_a_listen_ends_as_lost_when_its_server_comes_back_in_2026_and_the_next_goes_there() -> None:
    async with FaultServer() as server, link_to(server.url, stateful=False) as link, pinned(link) as client:
        async with asyncio.timeout(patience(20)):
            await client.list_tools()
            async with client.listen(tools_list_changed=True) as subscription:
                server.plan(Fault.CHANGE_ERA, method="tools/call")
                await client.call_tool("echo", {})
                with pytest.raises(SubscriptionLost):
                    await anext(subscription)
            async with client.listen(tools_list_changed=True) as subscription:
                server.push(TOOLS_CHANGED)
                assert type(await anext(subscription)).__name__ == "ToolsListChanged"
                assert any(request.method == "subscriptions/listen" for request in server.requests)


@pytest.mark.promise("link.sdk-eras")
async def test_a_session_that_does_not_listen_is_not_notified_of_changes() -> None:
    messages: list[Any] = []

    async def take(message: Any) -> None:
        messages.append(message)

    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        async with pinned(link, message_handler=take) as client:
            await client.list_tools()
            await until(lambda: server.streams == 1)
            server.push(TOOLS_CHANGED)
            server.push(LOG)
            server.push({"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {}})
            async with asyncio.timeout(patience(20)), client.listen(tools_list_changed=True) as subscription:
                server.push(TOOLS_CHANGED)
                await anext(subscription)
                await until(lambda: messages)
            assert [message.method for message in messages] == ["notifications/tools/list_changed"]


# Questions


def asking() -> MCPServer:
    server = MCPServer("asking")

    class Row(BaseModel):
        row: int

    @server.tool()
    async def book(ctx: Context) -> str:
        first = await ctx.elicit("Which row?", Row)
        await ctx.report_progress(1, 2)
        second = await ctx.elicit("And then?", Row)
        await ctx.report_progress(2, 2)
        assert first.action == second.action == "accept"
        return f"rows {first.data.row} and {second.data.row}"

    @server.tool()
    async def both(ctx: Context) -> int:
        answers = await asyncio.gather(*(ctx.elicit(f"Row {number}?", Row) for number in range(3)))
        return sum(answer.data.row for answer in answers if answer.action == "accept")

    return server


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("kind", ["object", "http"])
async def test_questions_of_a_real_2025_server_are_answered_in_rounds(kind: str) -> None:
    steps: list[float] = []

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///here")])

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    if kind == "object":
        async with link_to(asking(), era="2025") as link, pinned(link, elicitation_callback=accept) as client:
            assert said(await client.call_tool("book", {}, progress_callback=progress)) == "rows 7 and 7"
            await until(lambda: steps == [1, 2])  # of the requests that go on with the call
            two = await asyncio.gather(*(client.call_tool("book", {}) for _ in range(2)))
            assert [said(each) for each in two] == ["rows 7 and 7"] * 2
            assert said(await client.call_tool("both", {})) == "21"  # of three questions at once
        return
    async with RealServer("fastmcp") as server, link_to(server.url, era="2025") as link:
        async with pinned(link, elicitation_callback=accept, list_roots_callback=roots) as client:
            assert said(await client.call_tool("book", {})) == "row 7 is yours"  # on the call's own stream
            assert "file:///here" in said(await client.call_tool("roots", {}))


@pytest.mark.promise("link.sdk-eras")
async def test_questions_on_the_servers_own_stream_belong_to_the_call_under_way() -> None:
    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        async with pinned(link, elicitation_callback=accept) as client:
            await client.list_tools()
            await until(lambda: server.streams == 1)
            call = asyncio.ensure_future(client.call_tool("wait", {"call": "w"}))
            await until(lambda: server.effects["w"])
            server.push({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", **ASK})
            await until(lambda: any((r.message or {}).get("id") == 7 for r in server.requests))
            [answer] = [r.message for r in server.requests if (r.message or {}).get("id") == 7]
            assert answer is not None
            assert answer["result"] == {"action": "accept", "content": {"name": "x", "row": 7}}
            server.sessions.release.set()
            assert said(await call) == ""
            server.push({"jsonrpc": "2.0", "id": 8, "method": "elicitation/create", **ASK})  # no call is under way
            await until(lambda: any((r.message or {}).get("id") == 8 for r in server.requests))
            [refusal] = [r.message for r in server.requests if (r.message or {}).get("id") == 8]
            assert refusal is not None
            assert refusal["error"]["code"] == -32601


@pytest.mark.promise("link.sdk-eras")
async def test_a_question_that_the_session_can_not_answer_is_the_reason_of_the_failure() -> None:
    server = MCPServer("sampling")

    @server.tool()
    async def ask(ctx: Context) -> str:
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="hi"))
        return str(await ctx.session.create_message([message], max_tokens=5))

    async with FaultServer(answers="sse") as raw, link_to(raw.url) as link:
        async with pinned(link, elicitation_callback=accept) as client:
            # The server asks although nobody has declared it, and goes on without an answer.
            asked = await client.call_tool("ask", {"method": "sampling/createMessage", "params": SAMPLE})
            assert "-32601" in said(asked)
    async with link_to(server, era="2025", capabilities={"sampling": {}}) as link:
        async with pinned(link, elicitation_callback=accept) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("ask", {})
            assert caught.value.code == -32021
            assert caught.value.data["requiredCapabilities"] == {"sampling": {}}


@pytest.mark.promise("link.sdk-eras")
async def test_a_state_is_used_once_and_for_its_request_only() -> None:
    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=accept) as session:
            await session.discover()
            asked = await session.call_tool("ask", ASK, allow_input_required=True)
            assert isinstance(asked, types.InputRequiredResult)
            state = asked.request_state
            answers = {name: await accept(None, None) for name in asked.input_requests or {}}
            other = {"params": {**ASK["params"], "message": "another"}}
            for arguments, used in ((other, state), (ASK, "made up")):
                with pytest.raises(MCPError) as caught:
                    await session.call_tool("ask", arguments, input_responses=answers, request_state=used)
                assert (caught.value.code, caught.value.data) == (-32602, {"reason": "invalid_request_state"})
            again = await session.call_tool("ask", ASK, request_state=state, allow_input_required=True)
            assert isinstance(again, types.InputRequiredResult)  # without an answer it is asked again
            assert again.request_state != state
            with pytest.raises(MCPError):
                await session.call_tool("ask", ASK, input_responses=answers, request_state=state)
            done = await session.call_tool("ask", ASK, input_responses=answers, request_state=again.request_state)
            assert "accept" in said(done)
            assert len([r for r in server.requests if r.method == "tools/call"]) == 1


@pytest.mark.promise("link.sdk-eras")
async def test_a_state_of_a_2026_server_is_sent_although_it_is_not_yet_known_to_be_one() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link, pinned(link) as client:
        answers = {"who": await accept(None, None)}
        await client.session.call_tool("echo", {"text": "x"}, input_responses=answers, request_state="sealed")
        [call] = [r.message for r in server.requests if r.method == "tools/call"]
        assert call is not None
        assert call["params"]["requestState"] == "sealed"
        assert call["params"]["inputResponses"]["who"]["action"] == "accept"


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("ends", ["its lifetime", "its session", "too many"])
async def test_a_call_that_nobody_comes_back_for_is_cancelled_at_the_server(ends: str, monkeypatch: Any) -> None:
    if ends == "its lifetime":
        monkeypatch.setattr(parked, "LIFETIME", 0.01)
    if ends == "too many":
        monkeypatch.setattr(parked, "CALLS", 0)
    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=accept) as session:
            await session.discover()
            if ends == "too many":
                with pytest.raises(MCPError, match="too many calls"):
                    await session.call_tool("ask", ASK, allow_input_required=True)
            else:
                asked = await session.call_tool("ask", ASK, allow_input_required=True)
                assert isinstance(asked, types.InputRequiredResult)
            if ends != "its session":
                await until(lambda: server.sessions.cancelled)
        await until(lambda: server.sessions.cancelled)


@pytest.mark.promise("link.sdk-eras")
async def test_a_server_that_dies_while_a_call_waits_for_its_session_costs_that_call_only() -> None:
    async with FaultServer(answers="sse") as server, link_to(server.url, stateful=False) as link:
        async with ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=accept) as session:
            await session.discover()
            asked = await session.call_tool("ask", ASK, allow_input_required=True)
            assert isinstance(asked, types.InputRequiredResult)
            await server.restart()
            answers = {name: await accept(None, None) for name in asked.input_requests or {}}
            with pytest.raises(MCPError) as caught:
                await session.call_tool("ask", ASK, input_responses=answers, request_state=asked.request_state)
            assert caught.value.data["holdfast"]["family"] == "OutcomeUnknown"
            assert said(await session.call_tool("echo", {"text": "again"})) == "again"


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
@pytest.mark.parametrize("how", ["cancelled", "timeout"])
async def test_a_call_of_a_2026_session_is_cancelled_at_its_2025_server(over: str, how: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        context: Any = ClientSession(dispatcher=LinkDispatcher(link)) if over == "dispatcher" else pinned(link)
        async with context as entered:
            session = entered if over == "dispatcher" else entered.session
            if over == "dispatcher":
                await session.discover()
            await session.list_tools()
            if how == "timeout":
                with pytest.raises(MCPError) as caught:
                    await session.call_tool("wait", {"call": "w"}, read_timeout_seconds=0.2)
                assert caught.value.code == -32001
            else:
                call = asyncio.ensure_future(session.call_tool("wait", {"call": "w"}))
                await until(lambda: server.effects["w"])
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            await until(lambda: server.sessions.cancelled)


# Log messages, codes


@pytest.mark.promise("link.sdk-eras")
async def test_each_request_gets_the_log_messages_of_its_own_level() -> None:
    logs: list[str] = []

    async def take(params: Any) -> None:
        logs.append(params.data)

    async with FaultServer(answers="sse") as server, link_to(server.url) as link:
        async with pinned(link, logging_callback=take) as client:
            meta: Any = {types.LOG_LEVEL_META_KEY: "warning"}
            await client.list_tools()
            await client.call_tool("log", {"text": "not wanted"})
            await client.call_tool("log", {"text": "too little"}, meta=meta)
            meta = {types.LOG_LEVEL_META_KEY: "debug"}
            await client.call_tool("log", {"text": "wanted"}, meta=meta)
            meta = {types.LOG_LEVEL_META_KEY: "error"}
            await client.call_tool("log", {"text": "too little again"}, meta=meta)
            await until(lambda: logs)
            assert logs == ["wanted"]
            levels = [(r.message or {})["params"]["level"] for r in server.requests if r.method == "logging/setLevel"]
            assert levels == ["warning", "debug"]  # the most verbose that was wanted: the rest is left out here


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_urls_that_a_person_must_visit_first_are_asked_for(action: Any) -> None:
    asked: list[Any] = []

    async def visit(context: Any, params: Any) -> types.ElicitResult:
        asked.append((params.mode, params.url))
        return types.ElicitResult(action=action)

    url = {"mode": "url", "elicitationId": "e1", "url": "https://example.com/x", "message": "sign in"}
    error = {"code": -32042, "message": "sign in first", "data": {"elicitations": [url]}}
    body = dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    async with FaultServer() as server, link_to(server.url) as link:
        async with pinned(link, elicitation_callback=visit) as client:
            await client.list_tools()
            server.plan(Fault.STATUS, method="tools/call", times=1 if action == "accept" else 9, status=200, body=body)
            if action == "accept":
                assert said(await client.call_tool("echo", {"text": "in"})) == "in"
            else:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("echo", {"text": "in"})
                assert caught.value.code == -32600
            assert asked == [("url", "https://example.com/x")]
