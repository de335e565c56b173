"""The line for turns across processes: woken by a release, the one that waits longest first, and no notice needed."""

import asyncio
import time
from typing import Any

import pytest

import holdfast
from holdfast.state.calls.transaction import Transaction
from holdfast.state.calls.turn_line import WAITING, begin_line, line_of
from holdfast.state.calls.turn_wait import LONGEST_SILENCE, wait_for_notice
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.stores.contract import TURNS, Store
from tests.deadlines import patience, until

pytestmark = pytest.mark.anyio
KEY = (KIND, "s_one")


@pytest.fixture(params=["memory", "postgres", "valkey"])
def place(request: pytest.FixtureRequest) -> str:
    """A store whose notices come at once."""
    return "memory:" if request.param == "memory" else request.getfixturevalue(request.param).url


def _handle(store: Store) -> StoreHandle:
    return StoreHandle(store, keys=None, max_bytes=1_000_000, owner="test")


async def _turn(store: Store, done: list[str], name: str) -> None:
    transaction = Transaction()
    await transaction.take(_handle(store), [KEY], wait=patience(30))
    done.append(name)
    await transaction.abandon()


@pytest.mark.promise("state.call")
async def test_a_waiter_is_woken_by_the_release_and_does_not_ask_meanwhile(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.state.calls.transaction.wait_for_notice", lambda *_: 3_600.0)
    async with holdfast.open_store(place) as store:
        held = await store.claim(*KEY, owner="another process", ttl=3_600)
        begin, asked = store.begin_turns, 0

        async def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            asked += 1
            return await begin(*args, **kwargs)

        store.begin_turns = counted  # type: ignore[method-assign]
        done: list[str] = []
        waiting = asyncio.create_task(_turn(store, done, "mine"))
        await until(lambda: asked == 2, 10)  # once in vain, and once to be woken
        await store.release(held)
        async with asyncio.timeout(patience(10)):
            await waiting
        assert (asked, done) == (3, ["mine"])
        assert await store.holder(*KEY) is None


@pytest.mark.promise("state.call")
async def test_a_lost_notice_costs_a_moment_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with holdfast.open_store("memory:") as store:
        held = await store.claim(*KEY, owner="another process", ttl=3_600)
        done: list[str] = []
        waiting = asyncio.create_task(_turn(store, done, "mine"))
        line = await _line(store)
        monkeypatch.setattr(line, "_hear", lambda _: None)
        await store.release(held)
        async with asyncio.timeout(patience(10)):
            await waiting
        assert done == ["mine"]
    waits = [wait_for_notice(None, rounds) for rounds in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_SILENCE
    assert wait_for_notice(0.05, 9) == 0.05


async def _line(store: Store) -> Any:
    line = begin_line(store)
    assert line is not None
    assert await line.listens(patience(10))
    return line


@pytest.mark.promise("state.call")
async def test_who_waits_longer_in_another_process_is_let_pass(place: str) -> None:
    async with holdfast.open_store(place) as store, holdfast.open_store(place) as talk:
        speaker = store if place == "memory:" else talk
        line, now = await _line(store), time.monotonic()
        assert line.is_next([KEY], now)

        async def say(by: str, age: float | None, *, free: bool = False) -> None:
            await speaker.publish(WAITING, {"kind": KEY[0], "id": KEY[1], "by": by, "age": age, "free": free})

        await say("other", 5.0)
        await until(lambda: not line.is_next([KEY], now), 10)
        assert line.is_next([KEY], now - 60)
        assert line.is_next([(KIND, "s_two")], now)
        news = line.news([KEY])
        passing = asyncio.create_task(line.let_pass([KEY], now, 60))
        await say("other", None, free=True)  # it had its turn, and nobody there waits
        async with asyncio.timeout(patience(10)):
            await passing
        await until(lambda: line.news([KEY]) > news and line.is_next([KEY], now), 10)
        await say("dead", 5.0)
        await until(lambda: not line.is_next([KEY], now), 10)
        async with asyncio.timeout(patience(10)):
            await line.let_pass([KEY], now, 60)  # one that never comes is not waited for
        for wrong in ({"kind": 1}, {"kind": KEY[0], "id": KEY[1], "by": 3, "age": "x"}, "text", None):
            await speaker.publish(WAITING, wrong)  # type: ignore[arg-type]
        await speaker.publish(TURNS, {"kind": KEY[0], "id": KEY[1]})
        heard = line.news([KEY])
        await until(lambda: line.news([KEY]) >= heard, 10)
        assert line.is_listening


@pytest.mark.promise("state.call")
async def test_a_process_says_who_waits_there_and_that_it_has_given_up_its_turn(place: str) -> None:
    if place == "memory:":
        pytest.skip("there is no other process")
    async with holdfast.open_store(place) as store, holdfast.open_store(place) as other:
        async with other.listen(WAITING) as notices:
            held = await other.claim(*KEY, owner="another process", ttl=3_600)
            done: list[str] = []
            waiting = asyncio.create_task(_turn(store, done, "mine"))
            async with asyncio.timeout(patience(10)):
                first: Any = await anext(notices)
            assert (first.data["kind"], first.data["id"], first.data["free"]) == (*KEY, False)
            assert first.data["age"] >= 0
            await other.release(held)
            async with asyncio.timeout(patience(10)):
                await waiting
                last: Any = await anext(notices)
                while not last.data["free"]:
                    last = await anext(notices)
            assert last.data["age"] is None
            assert first.data["by"] == last.data["by"]


@pytest.mark.promise("state.call")
async def test_sqlite_has_no_line_since_each_notice_is_a_write(tmp_path: Any) -> None:
    async with holdfast.open_store(f"sqlite:///{tmp_path}/a.db") as store:
        held = await store.claim(*KEY, owner="another process", ttl=3_600)
        done: list[str] = []
        waiting = asyncio.create_task(_turn(store, done, "mine"))
        await asyncio.sleep(0)
        await store.release(held)
        async with asyncio.timeout(patience(10)):
            await waiting
        assert line_of(store) is None
