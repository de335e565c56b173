"""Who may run a program: one process at a time; renewed, released, and taken over from a process that is dead."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.core.clock import ManualClock
from holdfast.core.models import Record
from holdfast.errors import RunsElsewhere
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
