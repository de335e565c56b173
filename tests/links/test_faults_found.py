"""Faults that a hunt found in the first link, one test each, so that none comes back."""

import asyncio
import gc
from typing import Any

import pytest
from mcp import Client, ClientSession
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import HttpTarget, Limits, LinkDispatcher, LinkTransport, StoreMemory
from holdfast.core.lifecycle import LinkState
from holdfast.testing import Fault, FaultServer
from tests.links.kit import FAST, link_to, text_of, tool, until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.close")
async def test_a_close_at_any_step_of_coming_up_leaves_a_link_that_works_and_no_session() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        for steps in range(45):
            opening = asyncio.ensure_future(link.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            await link.close()
            await asyncio.gather(opening, return_exceptions=True)
            if link.phase is not LinkState.CLOSED:
                await link.close()  # the opening began after the close
            assert not server.sessions.sessions, steps
        assert (await link.request("tools/list"))["tools"]
        await link.close()


@pytest.mark.promise("link.close")
async def test_a_session_whose_handshake_was_never_finished_is_ended() -> None:
    async with FaultServer() as server:
        link = link_to(server.url)
        server.plan(Fault.HANG, method="notifications/initialized")
        call = asyncio.ensure_future(link.request("tools/list"))
        await until(lambda: server.sessions.sessions)
        await link.close()
        await asyncio.gather(call, return_exceptions=True)
        assert not server.sessions.sessions


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


@pytest.mark.promise("link.server-stream")
async def test_a_404_for_the_servers_stream_is_no_lost_session() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="GET", status=404, times=100)
        for n in range(4):
            assert text_of(await link.request("tools/call", tool("count"))) == str(n + 1)
        assert link.generation == 1


@pytest.mark.promise("link.close")
async def test_a_memory_that_fails_to_close_does_not_poison_the_link() -> None:
    class Broken(StoreMemory):
        async def close(self) -> None:
            raise OSError("disk on fire")

    async with holdfast.open_store("memory:") as store, FaultServer() as server:
        link = link_to(server.url, memory=Broken(store, "x"))
        await link.request("tools/list")
        await link.close()
        assert link.statistics().close_failures == 1
        await link.request("tools/list", timeout=2)
        await link.close(end=True)


@pytest.mark.promise("link.loops")
@pytest.mark.filterwarnings("ignore")  # whoever closes a loop under a link leaves its sockets to the garbage collector
def test_a_link_whose_loop_died_under_it_starts_over_in_the_next() -> None:
    ports: list[int] = []

    async def use(link: holdfast.Link | None, close: bool) -> holdfast.Link:
        server = FaultServer()
        server.port = ports[0] if ports else 0
        async with server:
            ports[:] = [server.port]
            link = link or link_to(server.url, stream=False)
            await link.request("tools/list", timeout=5)
            if close:
                await link.close()
        return link

    loop = asyncio.new_event_loop()
    link = loop.run_until_complete(use(None, False))
    loop.close()
    again = asyncio.new_event_loop()
    again.run_until_complete(use(link, True))
    again.close()
    assert link.phase is LinkState.CLOSED
    gc.collect()


@pytest.mark.promise("link.loops")
def test_a_link_whose_first_use_failed_works_in_the_next_loop() -> None:
    async def fail() -> tuple[holdfast.Link, int]:
        async with FaultServer() as server:
            await server.refuse()
            link = link_to(server.url)
            with pytest.raises(holdfast.ConnectFailed):
                await link.request("ping")
            return link, server.port

    async def work(link: holdfast.Link, port: int) -> None:
        server = FaultServer()
        server.port = port
        async with server:
            await link.request("tools/list")
            await link.close()

    link, port = asyncio.run(fail())
    asyncio.run(work(link, port))


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
                await asyncio.wait_for(call, 5)
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


@pytest.mark.promise("link.watch")
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.STATUS])
async def test_a_watch_that_is_not_agreed_to_ends_in_time(fault: Fault) -> None:
    limits = Limits(start=0.5, handshake=0.5, close=1, stream_retry=0.02)
    async with FaultServer(era="2026") as server, link_to(server.url, limits=limits) as link:
        server.plan(fault, method="subscriptions/listen", times=1000)
        with pytest.raises(holdfast.HoldfastError):
            await asyncio.wait_for(link.watch(tools=True), 5)


@pytest.mark.promise("link.watch")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_watch_heals_a_lost_session_and_a_401(era: Any) -> None:
    tokens = iter(f"t{n}" for n in range(1, 100))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(era=era, bearer="t1", get_stream=False) as server:
        async with link_to(HttpTarget(server.url, headers=headers)) as link:
            await link.request("tools/list")
            server.bearer = "t2"
            server.sessions.sessions.clear()
            watch = await asyncio.wait_for(link.watch(tools=True, uris=["a:1"]), 5)
            if era == "2025":
                [session] = server.sessions.sessions.values()
                assert session.subscribed == {"a:1"}
            watch.close()


@pytest.mark.promise("link.credentials")
async def test_the_stream_of_an_idle_link_renews_credentials() -> None:
    tokens = iter(("t1", "t2", "t3"))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(bearer="t1") as server, link_to(HttpTarget(server.url, headers=headers)) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        session, server.bearer = link.session_id, "t2"
        server.drop_streams()
        await until(lambda: server.streams == 1)
        assert link.session_id == session


@pytest.mark.promise("link.bad-input")
async def test_a_server_that_speaks_first_is_not_flooded() -> None:
    accepted = 0

    async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handshake, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with link_to(f"http://127.0.0.1:{port}/mcp") as link:
        with pytest.raises(holdfast.HoldfastError):
            await link.request("ping")
    listener.close()
    assert accepted < 20


@pytest.mark.promise("link.close")
async def test_a_call_that_waits_to_try_again_does_not_reopen_a_closed_link() -> None:
    limits = Limits(backoff=0.3, close=1)
    async with FaultServer() as server:
        link = link_to(server.url, limits=limits)
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=500)
        call = asyncio.ensure_future(link.request("tools/list"))
        await until(lambda: link.statistics().unknown_outcomes)
        await link.close()
        with pytest.raises(holdfast.Unavailable):
            await call
        assert link.phase is LinkState.CLOSED
        assert not server.sessions.sessions


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("method", "params", "headers"),
    [
        ("tools/call", {"name": "x", "_meta": "x"}, None),
        ("tools/call", {"name": "x", "_meta": 5}, None),
        ("tools/call", [1, 2], None),
        (7, None, None),
        ("", None, None),
        ("tools/call", {"name": "x"}, {"x-a": 5}),
        ("tools/call", {"name": "x"}, {"x-a": "a\r\nb"}),
        ("tools/call", {"name": "x"}, {"mcp-session-id": "y"}),
    ],
)
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_callers_mistake_is_a_usage_error(era: Any, method: Any, params: Any, headers: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        with pytest.raises(holdfast.UsageError):
            await link.request(method, params, headers=headers)
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
async def test_odd_answers_of_a_server_are_typed() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(
            Fault.STATUS,
            method="tools/call",
            status=503,
            headers={"retry-after": "Mon, 01 Jan 2030 00:00:00 +9999999999999"},
        )
        with pytest.raises(holdfast.HoldfastError):
            await link.request("tools/call", tool("echo"))
        for odd in (
            b'{"jsonrpc":"2.0","id":"x","result":{},"error":"oops"}',
            b'{"id":"x","error":{"code":"no"}}',
            b"null",
        ):
            server.plan(Fault.STATUS, method="tools/call", status=200, body=odd)
            with pytest.raises(holdfast.HoldfastError):
                await link.request("tools/call", tool("echo"), id="x", timeout=2)
                raise holdfast.UsageError("an empty result is an answer too")
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
async def test_a_temporary_redirect_is_followed_and_not_remembered() -> None:
    async with FaultServer() as server, link_to(server.url, stream=False) as link:
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=307, headers={"location": "/busy"})
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=307, headers={"location": "/a"}, times=100)
        with pytest.raises(holdfast.HoldfastError):
            await link.request("tools/list")
        server.lift()
        assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("link.state-loss")
async def test_an_executed_call_whose_answer_was_too_large_counts_as_state() -> None:
    limits = Limits(message_bytes=50_000, close=1)
    async with FaultServer() as server, link_to(server.url, limits=limits, stream=False) as link:
        with pytest.raises(holdfast.LimitReached):
            await link.request("tools/call", tool("large", bytes=60_000))
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("count"))


@pytest.mark.promise("link.state-loss")
async def test_a_safe_call_that_was_told_leaves_the_next_unsafe_one_to_be_told() -> None:
    limits = Limits(replays=0, close=1)
    async with FaultServer() as server, link_to(server.url, limits=limits, stream=False) as link:
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        for safe in (True, False):
            with pytest.raises(holdfast.SessionReplaced):
                await link.request("tools/call", tool("count"), safe=safe)
        assert text_of(await link.request("tools/call", tool("count"))) == "1"


@pytest.mark.promise("link.memory")
async def test_links_that_share_a_session_lose_none_of_each_others_subscriptions() -> None:
    async with holdfast.open_store("memory:") as store, FaultServer() as server:
        links = [link_to(server.url, memory=StoreMemory(store, "one"), stream=False) for _ in range(2)]
        for link in links:
            await link.request("tools/list")
        await links[0].request("resources/subscribe", {"uri": "a:1"})
        await until(lambda: links[0].statistics().in_flight == 0)
        server.sessions.sessions.clear()
        await links[1].request("tools/list")
        await links[0].request("tools/list")
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        await links[0].close()
        await links[1].close(end=True)


@pytest.mark.promise("link.memory")
async def test_an_ended_sessions_name_can_be_used_again_and_one_in_use_does_not_expire() -> None:
    clock = holdfast.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store, FaultServer() as server:
        for turn in range(3):
            link = link_to(server.url, memory=StoreMemory(store, "one", idle=0.3), stream=False)
            assert text_of(await link.request("tools/call", tool("count"))) == "1", turn
            if turn < 2:
                await link.close(end=True)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begun < 0.5:
            await link.request("tools/call", tool("count"))
            clock.advance(0.01)
            await asyncio.sleep(0.01)
        await link.close()
        async with link_to(server.url, memory=StoreMemory(store, "one", idle=0.3), stream=False) as heir:
            await heir.request("tools/list")
            assert heir.statistics().adoptions == 1


@pytest.mark.promise("link.circuit")
async def test_a_trial_whose_caller_was_cancelled_does_not_hold_up_the_next() -> None:
    async with FaultServer() as server, link_to(server.url, limits=FAST) as link:
        await server.refuse()
        loop, opened = asyncio.get_running_loop(), False
        while not opened:
            with pytest.raises(holdfast.Unavailable) as caught:
                await link.request("tools/list")
            opened = isinstance(caught.value, holdfast.CircuitOpen)
        await server.listen()
        server.plan(Fault.HANG, method="initialize")
        end = loop.time() + 8
        while True:
            try:
                await asyncio.wait_for(link.request("tools/list"), 0.3)
            except TimeoutError:
                break
            except holdfast.CircuitOpen as error:
                assert loop.time() < end
                await asyncio.sleep(error.retry_after or 0)
        server.lift()
        await link.request("tools/list")


@pytest.mark.promise("link.sse")
async def test_events_of_other_types_and_a_byte_order_mark_are_no_trouble() -> None:
    from holdfast.core.sse import Parser

    parser = Parser(1000)
    events = parser.feed(b"\xef\xbb\xbfdata: {}\n\nevent: ping\ndata: keepalive\n\nid: 7\ndata: {")
    assert [event.is_message for event in events] == [True, False]
    assert parser.last_id is None  # the event with the id was cut


@pytest.mark.promise("link.reverse")
async def test_a_handlers_result_that_is_not_json_is_answered() -> None:
    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        return {"x": object()}

    async with FaultServer(answers="sse") as server, link_to(server.url, on_request=answer) as link:
        assert "-32603" in text_of(await link.request("tools/call", tool("ask"), timeout=3))


@pytest.mark.promise("link.local")
async def test_local_parameters_that_are_not_json_are_a_usage_error() -> None:
    async with link_to(MCPServer("local")) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.UsageError):
            await link.request("tools/call", {1: 2})  # type: ignore[dict-item]
        await link.request("tools/list")
        assert link.statistics().opens == 1


@pytest.mark.promise("link.reseed")
async def test_a_hook_that_uses_the_link_itself_is_told() -> None:
    async def reseed(lost: holdfast.Reseeding) -> bool:
        await link.request("tools/list")
        return True

    async with FaultServer() as server:
        link = link_to(server.url, reseed=reseed)
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await asyncio.wait_for(link.request("tools/call", tool("count")), 3)
        await link.close()
