"""Turns: a claim and the record it is about, in one step; several at once or none; and word of a release."""

import asyncio
from typing import cast

from holdfast.core.models import Claim, Gap, Notice, Record, Write
from holdfast.errors import Busy, Conflict, LimitReached, UnstorableValue, UsageError
from holdfast.stores.contract import MAX_AT_ONCE, TURNS, Store
from holdfast.testing.contracts.given import Contract, Given, contract, refused
from holdfast.testing.contracts.notices import received


class TurnContract(Contract):
    @contract("store.turn")
    async def test_a_turn_is_a_claim_and_the_record_as_it_is(self, given: Given) -> None:
        store, kind = given.store, given.kind
        a = await given.create(data=1)
        turn = await store.begin_turn(kind, "a", owner="me", ttl=10)
        assert turn.record == a
        assert (
            await store.holder(kind, "a")
            == turn.claim
            == Claim(kind, "a", "me", turn.claim.token, given.clock.now() + 10)
        )
        given.clock.advance(4)
        busy = await refused(Busy, store.begin_turn(kind, "a", owner="you", ttl=10))
        assert (busy.kind, busy.id) == (kind, "a")
        assert abs(busy.retry_after - 6) < 0.01
        await refused(Busy, store.claim(kind, "a", owner="you", ttl=10))
        [b] = await store.commit_all([Write(a.with_data(2), expect=1, fence=turn.claim.token)], release=[turn.claim])
        yours = await store.begin_turn(kind, "a", owner="you", ttl=10)
        assert yours.record == b
        assert yours.claim.token > turn.claim.token
        renewed = await store.renew(yours.claim, ttl=20)
        await store.commit(b.with_data(3), expect=2, fence=renewed.token)
        assert await store.release(renewed)

    @contract("store.turn")
    async def test_a_turn_on_what_is_absent_or_dead_has_no_record_unless_asked(self, given: Given) -> None:
        store, kind = given.store, given.kind
        await given.create("ended")
        await store.end(kind, "ended")
        await given.create("expired", idle=1)
        given.clock.advance(2)
        names = [(kind, id) for id in ("absent", "ended", "expired")]
        assert [turn.record for turn in await store.begin_turns(names, owner="me", ttl=5)] == [None, None, None]
        turns = await store.begin_turns(names, owner="me", ttl=5, dead=True)
        assert [turn.record for turn in turns] == [await store.get(*name, dead=True) for name in names]
        assert [turn.record and turn.record.expired for turn in turns] == [None, False, True]
        [made] = await store.commit_all(
            [Write(Record(kind, "absent", data=1), expect=0, fence=turns[0].claim.token)], release=[turns[0].claim]
        )
        assert (await store.begin_turn(kind, "absent", owner="you", ttl=5)).record == made

    @contract("store.turn")
    async def test_several_turns_begin_together_or_none_does(self, given: Given) -> None:
        store, kind = given.store, given.kind
        made = [await given.create(id, data=id) for id in "abc"]
        names = [(kind, id) for id in "cab"]
        await store.claim(kind, "a", owner="you", ttl=3)
        await store.claim(kind, "b", owner="them", ttl=7)
        busy = await refused(Busy, store.begin_turns(names, owner="me", ttl=10))
        assert (busy.id, round(busy.retry_after, 2)) == ("b", 7)  # the one that lasts longest
        assert await store.holder(kind, "c") is None
        given.clock.advance(7)
        turns = await store.begin_turns(names, owner="me", ttl=10)
        assert [turn.record for turn in turns] == [made[2], made[0], made[1]]
        assert [turn.claim for turn in turns] == [await store.holder(*name) for name in names]
        assert len({turn.claim.token for turn in turns}) == 3
        again = await store.begin_turns(names[:1], owner="me", ttl=10)  # the same owner may
        assert again[0].claim.token > turns[0].claim.token
        await refused(Conflict, store.renew(turns[0].claim, ttl=10))

    @contract("store.turn")
    async def test_turns_on_crossing_names_never_overlap_and_all_are_had(self, given: Given) -> None:
        """Owners that want pairs of names in any order: never two on one name, and no lock against lock."""
        names = [(given.kind, id) for id in "abcd"]
        await given.store.commit_all([Write(Record(*name, data=0), expect=0) for name in names])
        holding: set[tuple[str, str]] = set()

        async def work(store: Store, number: int) -> None:
            for turn in range(5):
                pair = [names[(number + turn) % 4], names[(number + 2 * turn + 1) % 4]]
                pair = list(dict.fromkeys(pair[::-1] if number % 2 else pair))
                while True:
                    try:
                        turns = await store.begin_turns(pair, owner=f"owner {number}", ttl=60)
                        break
                    except Busy:
                        await asyncio.sleep(0)
                assert holding.isdisjoint(pair)
                holding.update(pair)
                await asyncio.sleep(0)
                holding.difference_update(pair)
                writes = [
                    Write(record.with_data(cast("int", record.data) + 1), expect=record.rev, fence=turn.claim.token)
                    for turn in turns
                    if (record := turn.record) is not None
                ]
                assert len(writes) == len(pair)
                # Read under the claim, so no Conflict: whoever held it before had written by then.
                await store.commit_all(writes, release=[turn.claim for turn in turns])

        async with given.again() as other:
            await asyncio.gather(*(work((given.store, other)[n % 2], n) for n in range(8)))
        for name in names:
            record = await given.get(name[1])
            assert record.data == record.rev - 1
            assert await given.store.holder(*name) is None

    @contract("store.turn")
    async def test_a_first_turn_that_creates_is_seen_by_the_next(self, given: Given) -> None:
        async def add(store: Store, number: int, id: str) -> None:
            while True:
                try:
                    turn = await store.begin_turn(given.kind, id, owner=f"owner {number}", ttl=60)
                    break
                except Busy:
                    await asyncio.sleep(0)
            record = turn.record or Record(given.kind, id, data=0)
            write = Write(record.with_data(cast("int", record.data) + 1), expect=record.rev, fence=turn.claim.token)
            await store.commit_all([write], release=[turn.claim])

        async with given.again() as other:
            for round in range(5):
                await asyncio.gather(*(add((given.store, other)[n % 2], n, f"r{round}") for n in range(10)))
                assert (await given.get(f"r{round}")).data == 10

    @contract("store.turn")
    async def test_a_cancelled_turn_leaves_no_claim(self, given: Given) -> None:
        for turn in range(20):
            names = [(given.kind, f"{id}{turn}") for id in "ab"]
            task = asyncio.create_task(given.store.begin_turns(names, owner="me", ttl=60))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                assert [await given.store.holder(*name) for name in names] == [None, None]

    @contract("store.turn-notice")
    async def test_a_release_is_published_if_someone_asked_for_it(self, given: Given) -> None:
        store, kind = given.store, given.kind
        async with given.again() as other, other.listen(TURNS) as notices:
            for number, how in enumerate(("release", "commit_all", "commit_all with others")):
                a, b = (kind, f"a{number}"), (kind, f"b{number}")
                mine = await store.begin_turns([a, b], owner="me", ttl=60)
                claims = [turn.claim for turn in mine]
                await refused(Busy, other.begin_turns([b, (kind, "c"), a], owner="you", ttl=60, notify=True))
                await refused(Busy, other.begin_turn(*a, owner="them", ttl=60, notify=True))
                claims[0] = await store.renew(claims[0], ttl=90)
                assert await other.holder(kind, "c") is None
                if how == "release":
                    assert [await store.release(claim) for claim in claims] == [True, True]
                elif how == "commit_all":
                    await store.commit_all([], release=claims)
                else:
                    await store.commit_all([Write(Record(*a), expect=0)], release=claims)
                heard = [notice for notice in await received(notices, 2) if isinstance(notice, Notice)]
                assert sorted(str(notice.data) for notice in heard) == [
                    str({"kind": kind, "id": id}) for _, id in (a, b)
                ]
                yours = await other.begin_turns([a, b], owner="you", ttl=60)
                assert len(yours) == 2
            # Nobody waits for these: nothing comes before the last notice.
            quiet = await store.begin_turn(kind, "quiet", owner="me", ttl=60)
            await refused(Busy, other.begin_turn(kind, "quiet", owner="you", ttl=60))
            await store.release(quiet.claim)
            await store.release(await store.claim(kind, "a0", owner="you", ttl=60))
            await store.publish(TURNS, "last")
            assert await received(notices, 1) == [Notice(TURNS, "last")]

    @contract("store.turn-notice")
    async def test_a_waiter_is_woken_by_the_end_of_the_turn(self, given: Given) -> None:
        store, kind = given.store, given.kind
        turn = await store.begin_turn(kind, "a", owner="me", ttl=60)
        waiting = asyncio.Event()

        async def wait_and_take(other: Store) -> Record | None:
            async with other.listen(TURNS) as notices:
                while True:
                    try:
                        return (await other.begin_turn(kind, "a", owner="you", ttl=60, notify=True)).record
                    except Busy:
                        waiting.set()
                    notice = await anext(notices)
                    assert isinstance(notice, Gap) or notice.data == {"kind": kind, "id": "a"}

        async with given.again() as other:
            waiter = asyncio.create_task(wait_and_take(other))
            await waiting.wait()
            made = await store.commit_all([Write(Record(kind, "a", data=1), expect=0)], release=[turn.claim])
            assert await waiter == made[0]

    @contract("store.bad-input")
    async def test_nonsense_begins_no_turn(self, given: Given) -> None:
        store, kind = given.store, given.kind
        twice = await refused(UsageError, store.begin_turns([(kind, "a"), (kind, "b"), (kind, "a")], owner="me", ttl=1))
        assert twice.id == "a"
        await refused(UsageError, store.begin_turns([], owner="me", ttl=1))
        await refused(UsageError, store.begin_turn(kind, "a", owner="me", ttl=0))
        await refused(UnstorableValue, store.begin_turn(kind, "a", owner="", ttl=1))
        await refused(UnstorableValue, store.begin_turn(kind, "a\n", owner="me", ttl=1))
        many = [(kind, f"r{n}") for n in range(MAX_AT_ONCE + 1)]
        await refused(LimitReached, store.begin_turns(many, owner="me", ttl=1))
        assert await store.holder(kind, "a") is None
        assert len(await store.begin_turns(many[1:], owner="me", ttl=1)) == MAX_AT_ONCE
