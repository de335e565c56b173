"""Who may run a program: one process at a time; renewed, released, and taken over from a process that is dead."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.core.clock import ManualClock
from holdfast.core.models import Record
from holdfast.errors import RunsElsewhere, StoreDown
from holdfast.gateway import ownership
from holdfast.gateway.ownership import CLAIM_SECONDS, PROCESSES, Programs
from holdfast.stores import open_store
from holdfast.stores.base import Store
from tests.links.kit import until


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    async with open_store("memory:", clock=clock) as store:
        yield store


@pytest.mark.promise("gateway.one-owner")
async def test_only_one_process_has_it_until_it_is_released(store: Store) -> None:
    one, other = (Programs(store).claim("p", "notebook") for _ in range(2))
    await one.take()
    with pytest.raises(RunsElsewhere) as caught:
        await other.take()
    assert caught.value.retry_after == pytest.approx(CLAIM_SECONDS, abs=1)
    await one.release()
    await other.take()
    assert (one.held, other.held) == (False, True)
    await other.release()


@pytest.mark.promise("gateway.one-owner")
async def test_a_process_that_said_goodbye_is_not_waited_for(store: Store) -> None:
    dead, living = Programs(store), Programs(store)
    await store.commit(Record(PROCESSES, dead.owner), expect=0)
    left = dead.claim("p", "notebook")
    await left.take()
    await store.end(PROCESSES, dead.owner)
    mine = living.claim("p", "notebook")
    await mine.take()
    await mine.release()
    await left.release()


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("taken", [False, True])
async def test_a_claim_that_ran_out_is_had_again_unless_another_began_the_program(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(ownership, "RENEW_SECONDS", 0.01)
    mine, ended = Programs(store).claim("p", "notebook"), asyncio.Event()

    async def unchanged() -> bool:
        return True

    async def lost() -> None:
        ended.set()

    mine.still_ours, mine.lost = unchanged, lost
    await mine.take()
    before = await store.holder("program", "p")
    clock.advance(CLAIM_SECONDS + 1)  # both happen in one turn of the loop: nothing was renewed
    if taken:
        claim = await store.claim("program", "p", owner="other", ttl=CLAIM_SECONDS)
        await asyncio.wait_for(ended.wait(), 5)
        assert not mine.held
        assert await store.holder("program", "p") == claim
    else:
        async with asyncio.timeout(5):
            while (now := await store.holder("program", "p")) is None or now == before:
                await asyncio.sleep(0.005)
        assert mine.held
        assert not ended.is_set()
    await mine.release()
    await until(lambda: not any(task.get_name() == "own notebook" for task in asyncio.all_tasks()))


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("taken", [False, True])
async def test_a_process_that_stood_still_asks_before_it_uses_its_program_again(
    store: Store, clock: ManualClock, taken: bool
) -> None:
    mine, other = (Programs(store, clock).claim("p", "notebook") for _ in range(2))
    ended = asyncio.Event()

    async def unchanged() -> bool:
        return True

    async def lost() -> None:
        ended.set()

    mine.still_ours, mine.lost = unchanged, lost
    await mine.take()
    assert mine.held
    clock.advance(CLAIM_SECONDS + 1)
    assert not mine.held
    if taken:
        await other.take()
        with pytest.raises(RunsElsewhere):
            await mine.take()
        assert ended.is_set()
        assert other.held
    else:
        await mine.take()
        assert mine.held
        assert not ended.is_set()
    for each in (mine, other):
        await each.release()


@pytest.mark.promise("gateway.one-owner")
async def test_while_the_store_is_away_only_a_process_that_stood_still_is_in_doubt(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()

    async def away(*_: object, **__: object) -> None:
        tried.set()
        raise StoreDown("away")

    mine = Programs(store, clock).claim("p", "notebook")
    await mine.take()
    with monkeypatch.context() as patch:
        patch.setattr(ownership, "RENEW_SECONDS", 0.0)
        await mine.release()
        await mine.take()
        patch.setattr(store, "renew", away)
        for _ in range(3):  # it is asked again and again, and goes on
            tried.clear()
            await asyncio.wait_for(tried.wait(), 5)
            clock.advance(CLAIM_SECONDS / 2)
        await until(lambda: mine.held)
        patch.setattr(ownership, "RENEW_SECONDS", 60.0)
        tried.clear()
        await asyncio.wait_for(tried.wait(), 5)
        clock.advance(CLAIM_SECONDS + 1)
        with pytest.raises(StoreDown):
            await mine.take()
    await mine.take()
    assert mine.held
    await mine.release()
