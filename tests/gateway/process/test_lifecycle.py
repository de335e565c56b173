"""Going down: the port stays open while calls end, and what is cut is answered with an unknown outcome."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.gateways import config_of, gateway


@asynccontextmanager
async def going_down(folder: Path, url: str, **settings: Any) -> AsyncGenerator[tuple[Program, asyncio.Event]]:
    """A gateway that goes down when the event is set, while the block goes on."""
    program = Program(config_of(folder, {"counter": {"url": url}}, **settings))
    up, stop = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with program.running():
            up.set()
            await stop.wait()

    serving = asyncio.create_task(serve())
    async with asyncio.timeout(patience(30)):
        await up.wait()
        try:
            yield program, stop
        finally:
            stop.set()
            await serving


async def _one_of_a_batch(url: str, tool: str) -> Answer:
    """A call in a batch of its own."""
    async with RawClient(url) as client:
        await client.initialize(version="2025-03-26")
        call = {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        answer = await client.send([call])
        [message] = answer.messages[0] if isinstance(answer.messages[0], list) else answer.messages
        return Answer(answer.status, answer.headers, [message], answer.raw)


def is_unknown(answer: Answer) -> bool:
    return answer.result["_meta"]["dev.holdfast/error"]["family"] == "OutcomeUnknown"


@pytest.mark.promise("gateway.program")
@pytest.mark.parametrize("keep_alive", [60, 0.05], ids=["json", "streams"])
async def test_while_it_drains_the_port_answers_and_calls_that_last_longer_are_cut_as_unknown(
    tmp_path: Path, keep_alive: float
) -> None:
    async with FaultServer() as http, RawClient("") as client, RawClient("") as modern, RawClient("") as probe:
        settings = {"drain": 1.5, "steer": False}
        clients = {"keep_alive": keep_alive}
        async with going_down(tmp_path, http.url, sessions=settings, clients=clients) as (program, stop):
            client.url = modern.url = program.url
            await client.initialize()
            gate = program.gateway
            assert gate is not None
            calls = [
                asyncio.create_task(client.call("counter__wait")),
                asyncio.create_task(modern.call_2026("counter__wait")),
                asyncio.create_task(_one_of_a_batch(program.url, "counter__wait")),
            ]
            await until(lambda: gate.lifecycle.calls == 3)
            began = time.monotonic()
            stop.set()
            probe.url = program.url.replace("/mcp", "/readyz")
            await until(lambda: not gate.lifecycle.takes_sessions)
            ready = await probe.send(b"", "GET")
            assert (ready.status, ready.raw) == (503, b"draining\n")
            probe.url = program.url
            refused = await probe.initialize()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert (await client.call("counter__count")).text == "1"  # who has a session is still served
            answers = await asyncio.gather(*calls)
            took = time.monotonic() - began
        assert all(is_unknown(answer) for answer in answers), [answer.last for answer in answers]
        assert 1.4 < took < 6


@pytest.mark.promise("gateway.program")
async def test_it_goes_down_at_once_when_nobody_calls_and_when_told_twice(tmp_path: Path) -> None:
    async with FaultServer() as http, RawClient("") as client:
        async with going_down(tmp_path, http.url, sessions={"drain": 600}) as (program, _):
            client.url = program.url
            await client.initialize()
        async with going_down(tmp_path, http.url, sessions={"drain": 600}) as (program, stop):
            client.url, client.session = program.url, None
            await client.initialize()
            gate = program.gateway
            assert gate is not None
            call = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: gate.lifecycle.calls == 1)
            stop.set()
            await until(lambda: not gate.lifecycle.takes_sessions)
            program.stop()
            program.stop()
            assert is_unknown(await call)


@pytest.mark.promise("gateway.program")
async def test_a_call_that_is_cut_by_the_end_of_its_session_is_unknown_too(tmp_path: Path) -> None:
    async with FaultServer() as http, RawClient("") as client:
        async with going_down(tmp_path, http.url, sessions={"drain": 0.2}) as (program, _):
            client.url = program.url
            await client.initialize()
            gate = program.gateway
            assert gate is not None
            call = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: gate.lifecycle.calls == 1)
            assert (await client.delete()).status == 204
            assert is_unknown(await call)


@pytest.mark.promise("gateway.program")
async def test_a_load_balancer_is_given_time_to_notice(tmp_path: Path) -> None:
    async with FaultServer() as http, RawClient("") as client, RawClient("") as probe:
        async with going_down(tmp_path, http.url, listen={"port": 0, "linger": 600}) as (program, stop):
            client.url = program.url
            probe.url = program.url.replace("/mcp", "/readyz")
            stop.set()
            gate = program.gateway
            assert gate is not None
            await until(lambda: not gate.lifecycle.is_ready)
            assert (await probe.send(b"", "GET")).status == 503
            assert (await client.initialize()).status == 200
            assert (await client.call("counter__count")).text == "1"
            call = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: gate.lifecycle.calls == 1)
            gate.lifecycle.cut()
            assert is_unknown(await call)


@pytest.mark.promise("gateway.program")
async def test_a_drain_lasts_as_long_as_it_was_given_and_ends_subscriptions(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"drain": 15, "steer": False}) as program:
            client = RawClient(program.url)
            await client.initialize()
            waiting = asyncio.create_task(client.call("counter__wait"))
            gate = program.gateway
            assert gate is not None
            await until(lambda: any(session.calls for session in gate.sessions.live.values()))
            loop = asyncio.get_running_loop()
            loop.call_later(6.0, http.sessions.release.set)
        assert not (await waiting).result["isError"]
        await client.__aexit__()
