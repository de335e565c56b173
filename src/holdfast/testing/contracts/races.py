"""Concurrency and cancellation: no lost update, no second owner, no half-written commit."""

import asyncio
from typing import cast

from holdfast.core.models import Claim, Record
from holdfast.core.values import JSON
from holdfast.errors import Busy, Conflict, Ended
from holdfast.stores.contract import Store
from holdfast.stores.update import update
from holdfast.testing.contracts.given import Contract, Given, contract


def _plus_one(data: JSON) -> JSON:
    return cast("int", data) + 1


class RaceContract(Contract):
    @contract("store.no-lost-update")
    async def test_concurrent_edits_through_two_handles_lose_nothing(self, given: Given) -> None:
        await given.create(data=0)

        async def edit(store: Store, name: str) -> None:
            for n in range(10):
                await update(store, given.kind, "a", _plus_one, entries=[f"{name}.{n}"])

        async with given.again() as other:
            await asyncio.gather(*(edit((given.store, other)[i % 2], f"writer{i}") for i in range(10)))
        record = await given.get()
        assert (record.data, record.rev) == (100, 101)
        log = await given.store.log(given.kind, "a", limit=1000)
        assert [e.seq for e in log] == list(range(1, 101))
        assert [e.rev for e in log] == list(range(2, 102))
        assert len({cast("str", e.data) for e in log}) == 100

    @contract("store.no-lost-update")
    async def test_of_many_creators_one_wins(self, given: Given) -> None:
        async def create(n: int) -> int | None:
            try:
                return (await given.create(data=n)).rev
            except Conflict:
                return None

        results = await asyncio.gather(*(create(n) for n in range(30)))
        assert sorted(r for r in results if r) == [1]
        assert (await given.get()).data == next(n for n, r in enumerate(results) if r)

    @contract("store.end-wins")
    async def test_end_racing_a_hundred_writers_is_final(self, given: Given) -> None:
        await given.create(data=0)
        ended = asyncio.Event()
        seen_alive_after_end = 0

        async def write(store: Store) -> None:
            nonlocal seen_alive_after_end
            while True:
                over = ended.is_set()
                record = await store.get(given.kind, "a")
                if record is None:
                    return
                seen_alive_after_end += over
                try:
                    await store.commit(record.with_data(_plus_one(record.data)), expect=record.rev)
                except Conflict:
                    continue
                except Ended:
                    return

        async def end(store: Store) -> None:
            while (await given.get()).rev < 20:
                await asyncio.sleep(0)
            assert await store.end(given.kind, "a") is True
            ended.set()

        async with given.again() as other:
            await asyncio.gather(end(other), *(write((given.store, other)[n % 2]) for n in range(100)))
        assert seen_alive_after_end == 0
        assert await given.store.get(given.kind, "a") is None

    @contract("store.claim")
    async def test_two_owners_never_hold_a_claim_at_once(self, given: Given) -> None:
        holding: list[str] = []
        most = turns = 0
        tokens: list[int] = []

        async def work(store: Store, owner: str) -> None:
            nonlocal most, turns
            while turns < 40:
                try:
                    claim: Claim = await store.claim(given.kind, "a", owner=owner, ttl=60)
                except Busy:
                    await asyncio.sleep(0)
                    continue
                holding.append(owner)
                tokens.append(claim.token)
                most, turns = max(most, len(holding)), turns + 1
                await asyncio.sleep(0)
                holding.remove(owner)
                assert await store.release(claim)

        async with given.again() as other:
            await asyncio.gather(*(work((given.store, other)[n % 2], f"owner{n}") for n in range(8)))
        assert most == 1
        assert tokens == sorted(set(tokens))

    @contract("store.cancel")
    async def test_a_cancelled_commit_happened_whole_or_not_at_all(self, given: Given) -> None:
        for turn in range(30):
            id = f"c{turn}"
            record = await given.create(id, data={"n": 0}, entries=("begin",))
            task = asyncio.create_task(given.store.commit(record.with_data({"n": 1}), expect=1, entries=["x", "y"]))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # A later write waits for the cancelled one, whose outcome is therefore known now.
            await given.store.commit(Record(given.kind, f"barrier{turn}"), expect=0)
            after = await given.get(id)
            log = [e.data for e in await given.store.log(given.kind, id)]
            assert (after.rev, after.data, log) in [
                (1, {"n": 0}, ["begin"]),
                (2, {"n": 1}, ["begin", "x", "y"]),
            ]
            assert (await given.store.commit(after, expect=after.rev)).rev == after.rev + 1

    @contract("store.concurrent-reads")
    async def test_readers_see_revs_that_only_grow_while_writers_write(self, given: Given) -> None:
        await given.create(data=0)
        done = asyncio.Event()

        async def write() -> None:
            for _ in range(50):
                await update(given.store, given.kind, "a", _plus_one)
            done.set()

        async def read(store: Store) -> None:
            last = 0
            while not done.is_set():
                record = await store.get(given.kind, "a")
                assert record is not None
                assert record.rev >= last
                assert record.data == record.rev - 1
                last = record.rev

        async with given.again() as other:
            await asyncio.gather(write(), read(other), read(given.store), read(other))
