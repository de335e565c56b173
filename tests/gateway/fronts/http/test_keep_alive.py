"""A call that takes long: its client gets the head of an event stream and comments, so that no read timeout ends it."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.gateway.fronts.http.keep_alive import KeepAlive
from holdfast.gateway.server import Program
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient, messages_in
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Scripted
from tests.gateway.scripted_calls import call_of, ready

ERAS = [("2025", "2025"), ("2025", "2026"), ("2026", "2025"), ("2026", "2026")]
OFTEN = {"keep_alive": 0.05}


async def _comments(response: aiohttp.ClientResponse, count: int) -> bytes:
    """What came until there were so many comments."""
    came = b""
    async with asyncio.timeout(patience(10)):
        while came.count(b": the call goes on\n\n") < count:
            part = await response.content.readany()
            assert part, came
            came += part
    return came


@pytest.mark.promise("gateway.keep-alive")
@pytest.mark.parametrize(("client_era", "server_era"), ERAS)
async def test_a_silent_call_has_its_head_and_comments_before_its_answer(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    gate = asyncio.Event()
    async with Scripted(server_era).serving() as backend:
        backend.gates["tools/call"] = gate
        async with gateway(tmp_path, {"s": backend.entry}, clients=OFTEN) as program, RawClient(program.url) as client:
            headers = await ready(program, client, client_era)
            async with aiohttp.request("POST", program.url, json=call_of(client_era), headers=headers) as response:
                assert response.status == 200
                assert response.content_type == "text/event-stream"
                came = await _comments(response, 3)
                gate.set()
                came += await response.read()
            [answer] = messages_in(came, "text/event-stream")
            assert (answer["id"], "content" in answer["result"]) == (7, True)
            assert program.front is not None
            assert len(program.front.keep_alive) == 0
            assert backend.count("tools/call") == 1


@pytest.mark.promise("gateway.keep-alive")
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_a_quick_call_and_a_client_of_json_only_get_json(tmp_path: Path, client_era: str) -> None:
    gate = asyncio.Event()
    async with Scripted().serving() as backend:
        servers = {"s": backend.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            quick = await client.send(call_of(client_era), headers=await ready(program, client, client_era))
            assert quick.headers["content-type"] == "application/json"
        backend.gates["tools/call"] = gate
        async with gateway(tmp_path, servers, clients=OFTEN) as program, RawClient(program.url) as client:
            headers = await ready(program, client, client_era, "application/json")
            beats = _count_turns(program)
            slow = asyncio.create_task(client.send(call_of(client_era), headers=headers))
            await until(lambda: beats() >= 3)
            gate.set()
            answer = await slow
            assert answer.headers["content-type"] == "application/json"
            assert "content" in answer.result


def _count_turns(program: Program) -> Any:
    """How often the calls under way were due, counted by a call that does nothing."""

    class Counts:
        count = 0

        def keep_alive(self) -> None:
            self.count += 1

    counts = Counts()
    assert program.front is not None
    program.front.keep_alive.add(counts)
    return lambda: counts.count


@pytest.mark.promise("gateway.keep-alive")
async def test_a_long_call_of_a_2025_client_that_hung_up_is_resumed(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with Scripted().serving() as backend:
        backend.gates["tools/call"] = gate
        async with gateway(tmp_path, {"s": backend.entry}, clients=OFTEN) as program, RawClient(program.url) as client:
            headers = await ready(program, client, "2025")
            async with aiohttp.request("POST", program.url, json=call_of("2025"), headers=headers) as response:
                came = await _comments(response, 1)
                response.close()
            id = next(line for line in came.decode().splitlines() if line.startswith("id: "))[4:]
            async with client.stream(last_event_id=id) as events:
                gate.set()
                assert (await events.next(20))["id"] == 7
            assert not any(method == "notifications/cancelled" for method, _ in backend.requests)


@pytest.mark.promise("gateway.keep-alive")
async def test_a_client_that_reads_nothing_costs_one_comment_at_a_time(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with Scripted().serving() as backend:
        backend.gates["tools/call"] = gate
        limits = {"keep_alive": 0.001}
        async with gateway(tmp_path, {"s": backend.entry}, clients=limits) as program, RawClient(program.url) as client:
            headers = await ready(program, client, "2025")
            beats = _count_turns(program)
            async with aiohttp.request("POST", program.url, json=call_of("2025"), headers=headers) as response:
                await until(lambda: beats() >= 100)
                assert program.gateway is not None
                [session] = program.gateway.sessions.live.values()
                assert session.notices.open_streams().room.used == 0  # comments are not kept
                gate.set()
                [answer] = messages_in(await response.read(), "text/event-stream")
                assert answer["id"] == 7


@pytest.mark.promise("gateway.keep-alive")
async def test_errors_after_a_comment_come_on_the_stream(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with Scripted("2026").serving() as backend:
        backend.results.pop("tools/call")
        backend.gates["tools/call"] = gate
        async with gateway(tmp_path, {"s": backend.entry}, clients=OFTEN) as program, RawClient(program.url) as client:
            headers = await ready(program, client, "2026")
            async with aiohttp.request("POST", program.url, json=call_of("2026"), headers=headers) as response:
                came = await _comments(response, 1)
                gate.set()
                [answer] = messages_in(came + await response.read(), "text/event-stream")
            assert answer["error"]["code"] == -32601
            assert answer["id"] == 7


@pytest.mark.promise("gateway.keep-alive")
async def test_one_timer_serves_all_calls_each_in_its_time() -> None:
    beaten: list[str] = []

    class Call:
        def __init__(self, name: str) -> None:
            self.name = name

        def keep_alive(self) -> None:
            beaten.append(self.name)
            if beaten.count(self.name) == 2:
                alive.remove(self)

    alive = KeepAlive(lambda: 0.01)
    for name in "abc":
        alive.add(Call(name))
    gone = Call("gone")
    alive.add(gone)
    alive.remove(gone)
    await until(lambda: len(alive) == 0)
    assert beaten == [*"abcabc"]
    alive.add(gone)
    alive.close()
    assert len(alive) == 0
