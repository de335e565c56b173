"""Lifetimes: what keeps a session alive, and what does not."""

import asyncio
import time
from pathlib import Path

import pytest

from holdfast.core.clock import ManualClock
from holdfast.core.models import Record
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes, Usage, is_over
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.expiry")
async def test_use_keeps_a_session_alive_but_not_beyond_its_age(tmp_path: Path) -> None:
    async with FaultServer() as http:
        sessions = {"idle": 0.5, "max_age": 1.5}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=sessions) as program:
            async with RawClient(program.url) as client:
                await client.initialize()
                loop = asyncio.get_running_loop()
                begun, statuses = loop.time(), [200]
                while statuses[-1] == 200:
                    statuses.append((await client.ask("ping")).status)
                    lived = loop.time() - begun
                    assert lived < 5
                assert statuses[-1] == 404
                assert 1.4 < lived < 2.5


@pytest.mark.promise("gateway.expiry")
async def test_a_call_longer_than_the_idle_time_keeps_its_session(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"idle": 0.4}) as program:
            gate = program.gateway
            assert gate is not None
            async with RawClient(program.url) as client:
                await client.initialize()
                assert (await client.call("counter__count")).text == "1"
                waiting = asyncio.create_task(client.call("counter__wait"))
                await until(lambda: any(session.calls for session in gate.sessions.live.values()))
                began = time.monotonic()
                await until(lambda: time.monotonic() - began > 1.2)
                http.sessions.release.set()
                assert not (await waiting).result["isError"]
                assert (await client.call("counter__count")).text == "2"


@pytest.mark.promise("gateway.expiry")
@pytest.mark.parametrize(
    ("idle", "age", "over"), [(10.0, 100.0, False), (10.1, 20.0, True), (0.0, 100.1, True), (0.0, 0.0, False)]
)
def test_a_session_is_over_when_it_was_idle_too_long_or_is_too_old(idle: float, age: float, over: bool) -> None:
    assert is_over(Settings(idle=10.0, max_age=100.0), idle, age) is over


@pytest.mark.promise("gateway.expiry")
def test_a_session_in_use_is_not_idle_and_is_touched_once_in_a_while() -> None:
    clock = ManualClock()
    lifetimes = Lifetimes(Settings(idle=10.0, max_age=100.0), clock)
    usage = Usage(clock.monotonic())
    clock.advance(11)
    assert lifetimes.is_over(usage, in_use=False)
    assert not lifetimes.is_over(usage, in_use=True)
    assert usage.take_touch(clock.monotonic(), lifetimes.touch_every)
    assert not usage.take_touch(clock.monotonic(), lifetimes.touch_every)
    clock.advance(90)
    assert lifetimes.is_over(usage, in_use=True), "too old, however much it is used"


@pytest.mark.promise("gateway.expiry")
def test_only_the_stores_clock_says_how_old_a_record_is() -> None:
    clock = ManualClock()
    lifetimes = Lifetimes(Settings(idle=10.0, max_age=100.0), clock)
    ahead = clock.now() + 1_000
    lifetimes.learn(Record("session", "a", touched=ahead, created=ahead))
    clock.advance(5)
    assert lifetimes.ages(Record("session", "a", touched=ahead, created=ahead - 50)) == (5.0, 55.0)
