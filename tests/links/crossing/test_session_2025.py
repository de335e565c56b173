"""2025 sessions of the SDK over 2026 servers: changes, subscriptions, log messages, questions, the shapes of 2025."""

import asyncio
from typing import Annotated, Any

import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from holdfast.links import LinkDispatcher, LinkTransport
from holdfast.links.crossing import changes
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to
from tests.links.server_process import RealServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),  # of what 2026 has no longer
]

OVER = pytest.mark.parametrize("over", ["dispatcher", "transport"])


class Row(BaseModel):
    row: int


class Inbox:
    """What a session was notified of."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.logs: list[Any] = []

    async def take(self, message: Any) -> None:
        self.messages.append(message)

    async def log(self, params: Any) -> None:
        self.logs.append((params.level, params.data))

    def kinds(self) -> list[str]:
        return [message.method for message in self.messages]

    def count(self, kind: str) -> int:
        return self.kinds().count(f"notifications/{kind}")


def session_over(over: str, link: Any, inbox: Inbox | None = None, **callbacks: Any) -> Any:
    """A 2025 session of the SDK, to be entered and then made by `begin`."""
    inbox = inbox or Inbox()
    if over == "dispatcher":
        return ClientSession(
            dispatcher=LinkDispatcher(link), message_handler=inbox.take, logging_callback=inbox.log, **callbacks
        )
    return Client(
        LinkTransport(link), mode="legacy", message_handler=inbox.take, logging_callback=inbox.log, **callbacks
    )


async def begin(entered: Any) -> ClientSession:
    if isinstance(entered, Client):
        return entered.session
    await entered.initialize()
    return entered


def both_eras() -> MCPServer:
    """A server of the SDK, which speaks both eras: the link decides."""
    server = MCPServer("both", instructions="Be kind.")

    def row() -> Elicit[Row]:
        return Elicit("Which row?", Row)

    def other() -> Elicit[Row]:
        return Elicit("Which other row?", Row)

    @server.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        return "changed"

    @server.tool()
    async def touch(uri: str, ctx: Context) -> str:
        await ctx.notify_resource_updated(uri)
        return "touched"

    @server.tool()
    async def say(level: Any, text: str, ctx: Context) -> str:
        await ctx.log(level, text)
        return "said"

    @server.tool()
    async def steps(ctx: Context) -> str:
        for number in range(3):
            await ctx.report_progress(number + 1, 3)
        return "done"

    @server.tool()
    async def book(first: Annotated[Row, Resolve(row)], second: Annotated[Row, Resolve(other)]) -> str:
        return f"rows {first.row} and {second.row}"

    @server.resource("note://one")
    def one() -> str:
        return "one"

    return server


@pytest.mark.promise("link.sdk-eras")
@OVER
async def test_changes_of_a_real_2026_server_reach_a_2025_session(over: str) -> None:
    inbox = Inbox()
    async with link_to(both_eras(), era="2026") as link, session_over(over, link, inbox) as entered:
        session = await begin(entered)
        assert session.protocol_version == "2025-11-25"
        assert session.instructions == "Be kind."
        await session.call_tool("change", {})
        await until(lambda: inbox.count("tools/list_changed") == 1)
        await session.call_tool("touch", {"uri": "note://one"})
        await session.subscribe_resource("note://one")
        await session.call_tool("touch", {"uri": "note://one"})
        await until(lambda: inbox.count("resources/updated") == 1)
        await session.call_tool("change", {})  # the lists are listened for as before
        await until(lambda: inbox.count("tools/list_changed") == 2)
        await session.unsubscribe_resource("note://one")
        await session.call_tool("touch", {"uri": "note://one"})
        await session.call_tool("change", {})
        await until(lambda: inbox.count("tools/list_changed") == 3)
        assert inbox.count("resources/updated") == 1
        for message in inbox.messages:
            assert "subscriptionId" not in str(message.params)


@pytest.mark.promise("link.sdk-eras")
@OVER
async def test_one_listen_a_link_feeds_all_and_ends_with_the_session(over: str) -> None:
    inbox = Inbox()
    async with FaultServer(era="2026", answers="sse") as server, link_to(server.url) as link:
        async with session_over(over, link, inbox) as entered:
            session = await begin(entered)
            assert server.streams == 1
            await session.subscribe_resource("x://a")
            await session.subscribe_resource("x://b")
            await until(lambda: server.streams == 1)
            wanted = [
                request.message["params"]["notifications"]
                for request in server.requests
                if request.message is not None and request.method == "subscriptions/listen"
            ]
            assert wanted[-1] == {"toolsListChanged": True, "resourceSubscriptions": ["x://a", "x://b"]}
            server.push({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "x://b"}})
            await until(lambda: inbox.count("resources/updated") == 1)
            server.drop_streams()  # it is listened for again, and everything may have changed meanwhile
            await until(lambda: inbox.count("resources/updated") == 3)
            assert inbox.count("tools/list_changed") == 1
            await session.list_tools()
        await until(lambda: server.streams == 0)
        assert not any(request.method == "resources/subscribe" for request in server.requests)


@pytest.mark.promise("link.sdk-eras")
async def test_a_link_that_was_closed_is_listened_to_again() -> None:
    inbox = Inbox()
    async with FaultServer(era="2026", answers="sse") as server, link_to(server.url) as link:
        async with session_over("dispatcher", link, inbox) as entered:
            session = await begin(entered)
            await link.close()
            await until(lambda: server.streams == 0)
            await session.list_tools()
            await session.list_tools()
            await until(lambda: server.streams == 1)
            server.push({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await until(lambda: inbox.count("tools/list_changed") == 1)


@pytest.mark.promise("link.sdk-eras")
async def test_a_server_that_refuses_to_be_listened_to_is_asked_once_and_serves() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        refusal = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32601, "message": "Method not found"}}'
        server.plan(Fault.STATUS, method="subscriptions/listen", times=9, status=404, body=refusal)
        async with session_over("dispatcher", link) as entered:
            session = await begin(entered)
            for _ in range(3):
                assert (await session.list_tools()).tools
            assert sum(request.method == "subscriptions/listen" for request in server.requests) == 1


@pytest.mark.promise("link.sdk-eras")
async def test_a_session_starts_although_the_server_never_acknowledges(monkeypatch: Any) -> None:
    monkeypatch.setattr(changes, "LISTEN_SECONDS", 0.01)
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        server.plan(Fault.HANG, method="subscriptions/listen")
        async with session_over("dispatcher", link) as entered:
            async with asyncio.timeout(patience(5)):
                session = await begin(entered)
                assert (await session.list_tools()).tools


@pytest.mark.promise("link.sdk-eras")
@OVER
async def test_a_log_level_and_a_ping_are_answered_here_and_messages_come(over: str) -> None:
    inbox, steps = Inbox(), list[float]()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async with link_to(both_eras(), era="2026") as link, session_over(over, link, inbox) as entered:
        session = await begin(entered)
        await session.send_ping()
        await session.call_tool("say", {"level": "error", "text": "unasked"})
        await session.set_logging_level("warning")
        await session.call_tool("say", {"level": "info", "text": "too little"})
        await session.call_tool("say", {"level": "error", "text": "heard"})
        await session.call_tool("steps", {}, progress_callback=progress)
        assert steps == [1, 2, 3]
        await until(lambda: inbox.logs)
        assert inbox.logs == [("error", "heard")]
        with pytest.raises(MCPError) as caught:
            await session._dispatcher.send_raw_request("logging/setLevel", {"level": "loud"})
        assert caught.value.code == -32602


@pytest.mark.promise("link.sdk-eras")
@OVER
@pytest.mark.parametrize("kind", ["object", "http"])
async def test_two_questions_at_once_are_put_at_once(over: str, kind: str) -> None:
    waiting = 0
    both = asyncio.Event()

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        nonlocal waiting
        waiting += 1
        if waiting == 2 or kind == "http":
            both.set()
        await asyncio.wait_for(both.wait(), patience(5))
        return types.ElicitResult(action="accept", content={"row": len(params.message)})

    async def run(target: Any, expected: str) -> None:
        async with link_to(target, era="2026") as link:
            async with session_over(over, link, elicitation_callback=answer) as entered:
                session = await begin(entered)
                [content] = (await session.call_tool("book", {})).content
                assert isinstance(content, types.TextContent)
                assert content.text == expected

    if kind == "object":
        await run(both_eras(), "rows 10 and 16")
    else:
        async with RealServer("sdk") as server:
            await run(server.url, "row 10 is yours")


@pytest.mark.promise("link.sdk-eras")
@OVER
@pytest.mark.parametrize("how", ["raises", "refuses"])
async def test_a_callback_that_fails_costs_its_call_and_not_the_session(over: str, how: str) -> None:
    async def fail(context: Any, params: Any) -> Any:
        if how == "raises":
            raise RuntimeError("a bug of the caller")
        return types.ErrorData(code=-32099, message="not now")

    async with link_to(both_eras(), era="2026") as link:
        async with session_over(over, link, elicitation_callback=fail) as entered:
            session = await begin(entered)
            with pytest.raises(MCPError) as caught:
                await session.call_tool("book", {})
            if how == "refuses":
                assert (caught.value.code, caught.value.message) == (-32099, "not now")
            assert (await session.list_tools()).tools


@pytest.mark.promise("link.sdk-eras")
@OVER
async def test_a_call_that_is_given_up_takes_its_questions_back(over: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, params: Any) -> types.ElicitResult:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with link_to(both_eras(), era="2026") as link:
        async with session_over(over, link, elicitation_callback=wait) as entered:
            session = await begin(entered)
            call = asyncio.ensure_future(session.call_tool("book", {}))
            await asyncio.wait_for(begun.wait(), patience(5))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(ended.wait(), patience(5))
            assert (await session.list_tools()).tools


@pytest.mark.promise("link.sdk-eras")
async def test_a_session_without_a_callback_gets_an_error_of_its_own_era() -> None:
    async with link_to(both_eras(), era="2026") as link, session_over("dispatcher", link) as entered:
        session = await begin(entered)
        with pytest.raises(MCPError, match="elicitation capability") as caught:
            await session.call_tool("book", {})  # it has not declared elicitation, so the server does not ask
        assert caught.value.code == -32600
        assert "elicitation" in caught.value.data["requiredCapabilities"]


@pytest.mark.promise("link.sdk-eras")
async def test_a_session_whose_server_comes_back_in_2026_keeps_its_subscriptions() -> None:
    inbox = Inbox()
    async with FaultServer(era="2025") as server, link_to(server.url, stateful=False) as link:
        async with session_over("dispatcher", link, inbox) as entered:
            session = await begin(entered)
            await session.subscribe_resource("x://a")
            server.plan(Fault.CHANGE_ERA, method="tools/list")
            await session.list_tools()
            await session.list_tools()
            await until(lambda: server.streams == 1)
            server.push({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "x://a"}})
            await until(lambda: inbox.count("resources/updated") == 1)


@pytest.mark.promise("link.sdk-eras")
async def test_notifications_that_2026_does_not_have_are_not_sent_to_its_servers() -> None:
    sent: list[str] = []
    async with link_to(both_eras(), era="2026") as link, session_over("dispatcher", link) as entered:
        session = await begin(entered)
        link_notify = link.notify

        async def notify(method: str, params: Any = None) -> None:
            sent.append(method)
            await link_notify(method, params)

        link.notify = notify  # type: ignore[method-assign]
        await session.send_roots_list_changed()
        await session.send_progress_notification("token", 1.0)
        await session._dispatcher.notify("vendor/said", {"a": 1})
        assert sent == ["vendor/said"]
