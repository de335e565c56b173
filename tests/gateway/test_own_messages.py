"""What a server and a 2025 client send each other of themselves: updates, ends of questions, progress, unasked for."""

import asyncio
from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Scripted
from tests.gateway.test_whole_messages import UPDATED


@pytest.mark.promise("gateway.announcements")
async def test_an_update_that_nobody_subscribed_to_reaches_the_session_that_the_server_sends_it_to(
    tmp_path: Path,
) -> None:
    async with (
        Scripted().serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
        RawClient(program.url) as other,
    ):
        await other.initialize()
        await client.initialize()
        async with client.stream() as events, other.stream() as others:
            await other.call("b__t")
            await client.call("b__t")
            await until(lambda: server.listening == 3)  # the sessions' and the gateway's own
            sessions = [f"s{number + 1}" for number in range(server.count("initialize"))]
            got: list[list[str]] = []
            for _ in range(2):
                for session in sessions:
                    server.push(UPDATED, {"uri": f"x://{session}"}, session)
                got.append([(await each.next(20))["params"]["uri"] for each in (events, others)])
            assert got[0] == got[1]  # nothing else came
            assert got[0][0] != got[0][1]


@pytest.mark.promise("gateway.reverse")
async def test_the_reason_why_a_server_cancels_its_question_reaches_the_client(tmp_path: Path) -> None:
    async with (
        Scripted().serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize({"sampling": {}})
        async with client.stream() as events:
            await client.call("b__t")
            await until(lambda: server.listening == 2)
            asked = asyncio.ensure_future(server.ask("sampling/createMessage", {"messages": [], "maxTokens": 1}))
            try:
                question = await events.next(20)
                assert question["method"] == "sampling/createMessage"
                server.push("notifications/cancelled", {"requestId": "q1", "reason": "took too long"})
                cancelled = await events.next(20)
            finally:
                asked.cancel()
            assert cancelled["method"] == "notifications/cancelled"
            assert cancelled["params"] == {"requestId": question["id"], "reason": "took too long"}


@pytest.mark.promise("gateway.reverse")
async def test_the_first_call_of_a_client_that_listens_waits_until_its_servers_stream_is_open(tmp_path: Path) -> None:
    """A server that asks, or says something, on a stream that is not open yet loses it, and may wait for an answer."""
    async with (
        Scripted().serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
    ):
        await until(lambda: server.listening == 1)  # the gateway's own
        listening: list[int] = []
        server.results["tools/call"] = lambda _: listening.append(server.listening) or {"content": []}
        server.delays["GET"] = 0.2
        await client.initialize()  # it may be asked nothing
        async with client.stream():
            assert program.gateway is not None
            (session,) = program.gateway.sessions.live.values()
            await until(lambda: session.notices.is_read)
            await client.call("b__t")
            assert listening == [2]


@pytest.mark.promise("gateway.reverse")
@pytest.mark.parametrize("count", [1, 2])
async def test_progress_with_a_clients_own_token_goes_to_the_only_server(tmp_path: Path, count: int) -> None:
    async with Scripted().serving() as server, Scripted().serving() as other:
        servers = {"b": server.entry, **({"c": other.entry} if count == 2 else {})}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            await client.call("b__t")
            for token in ("hf-1-00000000", "upload-1"):
                params = {"progressToken": token, "progress": 1}
                message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
                assert (await client.send(message)).status == 202
            if count == 1:
                await until(lambda: server.count("notifications/progress"))
            await client.call("b__t")
            tokens = [params["progressToken"] for params in server.params_of("notifications/progress")]
            assert tokens == (["upload-1"] if count == 1 else [])
            assert other.count("notifications/progress") == 0


@pytest.mark.promise("gateway.era-choice")
async def test_a_2025_client_gets_2025_from_a_server_of_both_eras_that_holds_no_session(tmp_path: Path) -> None:
    async with FaultServer(era="both") as server:
        server.sessions.gives_sessions = False
        async with gateway(tmp_path, {"b": {"url": server.url}}) as program, RawClient(program.url) as client:
            await client.initialize()
            assert "error" not in (await client.call("b__count")).last
            (call,) = [request for request in server.requests if request.method == "tools/call"]
            assert call.headers["mcp-protocol-version"] == "2025-11-25"
