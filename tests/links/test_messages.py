"""Messages: caps, values that are not JSON, numbers and characters, hostile senders."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.links import Limits
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.bad-input")
async def test_messages_over_the_cap_in_either_direction() -> None:
    limits = Limits(message_bytes=100_000, close=2)
    async with FaultServer() as server, link_to(server.url, limits=limits) as link:
        await link.request("tools/list")
        before = len(server.requests)
        with pytest.raises(holdfast.errors.LimitReached) as caught:
            await link.request("tools/call", tool("echo", text="x" * 200_000))
        assert caught.value.limit == 100_000
        assert len(server.requests) == before
        server.plan(Fault.OVERSIZE, method="tools/call")
        with pytest.raises(holdfast.errors.LimitReached) as caught:
            await link.request("tools/call", tool("echo"))
        assert "message_bytes" in str(caught.value.remedy)
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"x"])
async def test_parameters_that_are_not_json(value: Any) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        with pytest.raises(holdfast.UsageError, match="not JSON"):
            await link.request("tools/call", tool("echo", text=value))
        await link.request("tools/list")


@pytest.mark.promise("link.values")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_half_a_character_is_no_lost_call(era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        answer = await link.request("tools/call", tool("echo", text="half \ud83d"))
        assert text_of(answer) == "half \ufffd"  # as it stands in Python: only a gateway passes it on as it is
        assert server.requests[-1].message is not None
        assert server.requests[-1].message["params"]["arguments"] == {"text": "half \ud83d"}
        await link.request("tools/call", tool("\ud83d"))  # 2026 has the name in a header, too: the server's to judge


@pytest.mark.promise("link.values")
async def test_numbers_come_back_as_they_were_sent() -> None:
    for form in ("json", "sse"):
        async with FaultServer(answers=form) as server, link_to(server.url) as link:  # type: ignore[arg-type]
            big = 2**80 + 1
            echoed = await link.request("tools/call", tool("echo", text=big))
            assert echoed["content"][0]["text"] == str(big)


@pytest.mark.promise("link.bad-input")
async def test_an_answer_that_is_an_error_is_the_servers_word() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        with pytest.raises(holdfast.errors.ErrorAnswer) as caught:
            await link.request("no/such/method", {})
        assert (caught.value.code, caught.value.message) == (-32601, "Method not found")
        assert caught.value.server == "it"


@pytest.mark.promise("link.bad-input")
async def test_hostile_messages_on_the_servers_stream_harm_nothing() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        from tests.deadlines import until

        await until(lambda: server.streams == 1)
        hostile: list[Any] = [
            {},
            {"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"},
            {"jsonrpc": "2.0", "id": None, "method": 7},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": [], "progress": "x"}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}},
            {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"_meta": 7}},
            {"jsonrpc": "2.0", "method": "notifications/message", "params": [1, 2]},
            {"jsonrpc": "2.0", "id": "x", "result": {}},
        ]
        for message in hostile:
            server.push(message)
        await asyncio.gather(*(link.request("tools/list") for _ in range(5)))
        await until(lambda: link.statistics().strays >= 3)
        assert server.streams == 1
        assert link.generation == 1
