"""A clock that is set back lengthens no turn of a dead process, and ends none of a living one."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.state.calls.stale_turns import lease_owner
from holdfast.state.calls.transaction import Transaction
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.stores.contract import Store
from tests.deadlines import patience

pytestmark = pytest.mark.anyio
TTL = 0.2


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    own = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(request.param)
    return own or str(request.getfixturevalue(request.param).url)


def _handle(store: Store) -> StoreHandle:
    return StoreHandle(store, keys=None, max_bytes=1_000_000, owner="test")


@pytest.mark.promise("state.call")
async def test_the_turn_of_a_dead_process_ends_although_the_clock_was_set_back(place: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(place, clock=clock) as store:
        key = KIND, f"s_{id(store)}"
        await store.claim(*key, owner="turn-of-a-dead-process", ttl=TTL)
        clock.step(-3_600)
        transaction = Transaction()
        async with asyncio.timeout(patience(30)):
            await transaction.take(_handle(store), [key], wait=patience(30), ttl=TTL)
        await transaction.abandon()
        assert await store.holder(*key) is None


@pytest.mark.promise("state.call")
async def test_the_turn_of_a_living_process_and_a_lease_are_left_alone(place: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(place, clock=clock) as store:
        key = KIND, f"s_{id(store)}"
        for owner in ("turn-of-a-living-process", "lease-of-somebody"):
            claim = await store.claim(*key, owner=owner, ttl=TTL)
            clock.step(-3_600)
            waiting = Transaction()
            taking = asyncio.ensure_future(waiting.take(_handle(store), [key], wait=1.0, ttl=TTL))
            while not taking.done():
                clock.step(0.001)  # time goes on, and the renewals with it
                if owner.startswith("turn-"):
                    claim = await store.renew(claim, ttl=3_600)
                await asyncio.wait([taking], timeout=TTL / 10)
            with pytest.raises(holdfast.errors.Busy):
                await taking
            await waiting.abandon()
            assert await store.holder(*key) == claim
            await store.release(claim)


class Board(holdfast.SessionState):
    moves: int = 0


@pytest.mark.promise("state.leases")
async def test_the_lease_of_a_dead_process_ends_although_the_clock_was_set_back(place: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(place, clock=clock) as store:
        boards = holdfast.Sessions(Board, store, turn_ttl=TTL)
        for taken in ("lease", "turn"):
            begun = await boards.begin()
            await store.claim(KIND, begun.handle, owner=lease_owner(TTL), ttl=TTL)
            clock.step(-3_600)
            async with asyncio.timeout(patience(30)):
                if taken == "lease":
                    await _leased(begun)
                else:
                    transaction = Transaction()
                    await transaction.take(_handle(store), [(KIND, begun.handle)], wait=patience(30), ttl=TTL)
                    await transaction.abandon()
            assert await store.holder(KIND, begun.handle) is None


async def _leased(board: "holdfast.Session[Board]") -> None:
    while True:
        with suppress(holdfast.errors.Busy):
            async with board.lease(ttl=TTL) as state:
                state.moves += 1
            return
        await asyncio.sleep(TTL / 10)  # as a client does that is refused


@pytest.mark.promise("state.leases")
async def test_the_lease_of_a_living_process_stands_although_the_clock_was_set_back(place: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(place, clock=clock) as store:
        boards = holdfast.Sessions(Board, store, turn_ttl=TTL)
        begun = await boards.begin()
        other = await boards.find(begun.handle)
        async with begun.lease(ttl=TTL) as state:
            clock.step(-3_600)
            until = asyncio.get_running_loop().time() + 4 * TTL
            while asyncio.get_running_loop().time() < until:
                clock.step(TTL / 100)  # time goes on, and the renewals with it
                with pytest.raises(holdfast.errors.Busy):
                    async with other.lease(ttl=TTL):
                        pass
                await asyncio.sleep(TTL / 10)
            state.moves += 1
        assert (await other.read()).moves == 1


@pytest.mark.promise("state.call")
async def test_a_clock_that_is_set_back_shortens_no_life(place: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(place, clock=clock) as store:
        record = holdfast.stores.Record(KIND, f"s_{id(store)}", idle=60.0)
        made = await store.commit(record, expect=0)
        clock.step(-3_600)
        again = await store.commit(made.with_data(1), expect=1)
        assert again.touched == made.touched
        clock.step(3_600)
        clock.advance(59)
        assert await store.get(record.kind, record.id) is not None
        clock.advance(2)
        assert await store.get(record.kind, record.id) is None
