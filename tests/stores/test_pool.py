"""Slots: never more than their number, first come first served, nothing lost to a cancel or a failed connect."""

import asyncio
import itertools

import pytest

import holdfast
from holdfast.stores.pool import ConnectionPool
from tests.deadlines import patience

pytestmark = pytest.mark.anyio


def _connections(size: int, timeout: float = 5.0, fail: int = 0) -> ConnectionPool[int]:
    numbers = itertools.count()
    failing = iter([True] * fail)

    async def connect() -> int:
        await asyncio.sleep(0)
        if next(failing, False):
            raise holdfast.errors.StoreDown("no")
        return next(numbers)

    return ConnectionPool("test", size, timeout, connect, lambda _: None)


@pytest.mark.promise("store.slots")
async def test_a_hundred_tasks_share_three_connections_in_order() -> None:
    slots = _connections(3)
    served: list[int] = []
    most = using = 0

    async def use(n: int) -> None:
        nonlocal most, using
        connection = slots.take_idle()
        if connection is None:
            connection = await slots.take()
        using += 1
        most = max(most, using)
        served.append(n)
        await asyncio.sleep(0)
        using -= 1
        slots.give_back(connection)

    await asyncio.gather(*(use(n) for n in range(100)))
    assert most == 3
    assert served == list(range(100))
    assert len(await slots.close(5)) == 3


@pytest.mark.promise("store.slots")
async def test_whoever_waits_too_long_is_told_and_its_place_is_not_lost() -> None:
    slots = _connections(1, timeout=0.05)
    held = await slots.take()
    with pytest.raises(holdfast.errors.StoreDown, match=r"gave no connection within 0\.05 s; 1 may be in use"):
        await slots.take()
    slots.give_back(held)
    assert await slots.take() == held


@pytest.mark.promise("store.slots")
async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    for late in (False, True):
        slots = _connections(1)
        held = await slots.take()
        waiting = asyncio.create_task(slots.take())
        await asyncio.sleep(0)
        if late:
            slots.give_back(held)  # its turn has come in the very moment in which it is cancelled
            waiting.cancel()
        else:
            waiting.cancel()
            await asyncio.wait([waiting])
            slots.give_back(held)
        await asyncio.wait([waiting])
        async with asyncio.timeout(patience(5)):
            assert await slots.take() == held


@pytest.mark.promise("store.slots")
async def test_lost_connections_and_failed_connects_free_their_place() -> None:
    slots = _connections(2, fail=3)
    for _ in range(3):
        with pytest.raises(holdfast.errors.StoreDown):
            await slots.take()
    one, two = await slots.take(), await slots.take()
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    slots.lose()
    assert await waiting not in (one, two)


@pytest.mark.promise("store.slots")
async def test_an_exchange_that_takes_too_long_is_cut() -> None:
    cut: list[int] = []
    done = asyncio.Event()

    async def connect() -> int:
        return 7

    def note(connection: int) -> None:
        cut.append(connection)
        done.set()

    slots = ConnectionPool("test", 2, 0.05, connect, note)
    slots.begin(1, 0.01)
    slots.begin(2, 60)
    async with asyncio.timeout(patience(5)):
        await done.wait()
    assert cut == [1]
    assert slots.end(1) is False
    assert slots.end(2) is True
    await slots.close(0)


@pytest.mark.promise("store.slots")
async def test_closing_refuses_the_waiting_and_waits_for_those_in_use() -> None:
    slots = _connections(1)
    held = await slots.take()
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    closing = asyncio.create_task(slots.close(5))
    with pytest.raises(holdfast.errors.LeaseClosed):
        await waiting
    with pytest.raises(holdfast.errors.LeaseClosed):
        await slots.take()
    assert not closing.done()
    slots.give_back(held)
    assert await closing == [held]
    slots.open()
    assert await slots.take() != held
