"""Commits of several records, written and released together or not at all; and reads of several at one moment."""

import asyncio
from typing import Any, cast

from holdfast.core.models import Claim, Principal, Record, Write
from holdfast.core.values import JSON
from holdfast.errors import (
    Conflict,
    Ended,
    Forbidden,
    HoldfastError,
    LeaseClosed,
    LimitReached,
    NotFound,
    SessionExpired,
    UnstorableValue,
    UsageError,
)
from holdfast.stores.contract import MAX_AT_ONCE, MAX_COMMIT_BYTES, MAX_RECORD_BYTES, Store
from holdfast.testing.contracts.given import Contract, Given, contract, refused

TOTAL = 100


class CommitContract(Contract):
    @contract("store.several")
    async def test_several_are_written_with_their_entries_and_returned_in_order(self, given: Given) -> None:
        b = await given.create("b", data=1, entries=("begin",), idle=10)
        given.clock.advance(3)
        writes = [
            Write(Record(given.kind, "c", Principal("carol"), {"n": [1, None]}, max_age=60), expect=0, entries=["c1"]),
            Write(b.with_data(2), expect=1, entries=["b1", {"b": 2}]),
            Write(Record(given.kind, "a", data="a"), expect=0),
        ]
        made = await given.store.commit_all(writes)
        assert [(r.id, r.rev, r.data) for r in made] == [("c", 1, {"n": [1, None]}), ("b", 2, 2), ("a", 1, "a")]
        assert {r.touched for r in made} == {given.clock.now()}
        assert [r.created for r in made] == [given.clock.now(), b.created, given.clock.now()]
        async with given.again() as other:
            assert [await other.get(given.kind, id) for id in "cba"] == made
            assert await other.get_all([(given.kind, id) for id in "cba"]) == made
            for id, entries in (("c", ["c1"]), ("b", ["begin", "b1", {"b": 2}]), ("a", [])):
                assert [e.data for e in await other.log(given.kind, id)] == entries
        given.clock.advance(9)
        assert await given.store.get(given.kind, "b") == made[1]  # its idle time began anew
        given.clock.advance(1)
        assert await given.store.get(given.kind, "b") is None

    @contract("store.several")
    async def test_one_refusal_refuses_all_and_names_the_record(self, given: Given) -> None:
        store, kind = given.store, given.kind
        good = await given.create("good", data=0, entries=("begin",))
        await given.create("other", data=0)
        await given.create("stale", data=0)
        await given.create("bobs", principal="bob")
        await given.create("ended")
        await store.end(kind, "ended")
        brief = await given.create("brief", idle=1)
        given.clock.advance(2)
        claim = await store.claim(kind, "claimed", owner="me", ttl=10)
        bad: list[tuple[type[HoldfastError], str, Write]] = [
            (Conflict, "stale", Write(Record(kind, "stale", Principal("alice")), expect=7)),
            (Conflict, "other", Write(Record(kind, "other"), expect=0)),
            (Forbidden, "bobs", Write(Record(kind, "bobs", Principal("alice")), expect=1)),
            (Ended, "ended", Write(Record(kind, "ended"), expect=0)),
            (SessionExpired, "brief", Write(brief, expect=1)),
            (NotFound, "absent", Write(Record(kind, "absent"), expect=1)),
            (Conflict, "claimed", Write(Record(kind, "claimed"), expect=0, fence=claim.token + 1)),
        ]
        for error, id, write in bad:
            fine = [
                Write(good.with_data(1), expect=1, entries=["lost"]),
                Write(Record(kind, f"new {id}"), expect=0, entries=["lost"]),
            ]
            for place in range(3):
                writes = [*fine[:place], write, *fine[place:]]
                found = await refused(error, store.commit_all(writes, release=[claim]))
                assert (found.kind, found.id) == (kind, id)
        # The first in the order given is the one that is named.
        writes = [write for _, _, write in bad]
        assert (await refused(Conflict, store.commit_all(writes))).id == "stale"
        assert (await refused(Forbidden, store.commit_all(writes[2:]))).id == "bobs"
        assert await given.get("good") == good
        assert [e.data for e in await store.log(kind, "good")] == ["begin"]
        assert all(not record.id.startswith("new") for record in (await store.scan(kind=kind, state=None)).records)
        assert await store.holder(kind, "claimed") == claim
        assert (await store.commit_all([Write(good.with_data(1), expect=1)]))[0].rev == 2

    @contract("store.several")
    async def test_an_expired_id_begins_a_new_life_beside_others(self, given: Given) -> None:
        store, kind = given.store, given.kind
        old = await given.create("a", data="old", entries=("o1", "o2"), idle=1)
        b = await given.create("b", data=0, entries=("b1",))
        given.clock.advance(2)
        claim = await store.claim(kind, "a", owner="me", ttl=10)
        writes = [
            Write(Record(kind, "a", Principal("bob"), "new"), expect=0, entries=["n1"], fence=claim.token),
            Write(b.with_data(1), expect=1, entries=["b2"]),
            Write(Record(kind, "c", data=1), expect=0, entries=["c1"]),
        ]
        await refused(Conflict, store.commit_all([*writes[:2], Write(Record(kind, "c"), expect=0, fence=claim.token)]))
        assert (await given.get("b")).rev == 1
        made = await store.commit_all(writes, release=[claim])
        assert [(r.id, r.rev, r.created) for r in made] == [
            ("a", 1, given.clock.now()),
            ("b", 2, b.created),
            ("c", 1, given.clock.now()),
        ]
        assert [[(e.seq, e.data) for e in await store.log(kind, id)] for id in "abc"] == [
            [(1, "n1")],
            [(1, "b1"), (2, "b2")],
            [(1, "c1")],
        ]
        assert await store.holder(kind, "a") is None
        assert await store.get_all([(kind, id) for id in "abc"]) == made
        assert (await store.scan(kind=kind, principal="bob")).records == (made[0],)
        assert (await store.scan(kind=kind, principal="alice")).records == (made[1],)
        error = await refused(Forbidden, store.commit_all([Write(old, expect=1), Write(made[1], expect=2)]))
        assert error.id == "a"

    @contract("store.release")
    async def test_claims_are_released_with_the_commit_or_not_at_all(self, given: Given) -> None:
        store, kind = given.store, given.kind
        a = await given.create("a", data=0)
        claims = [await store.claim(kind, id, owner="me", ttl=10) for id in "abc"]
        await refused(Conflict, store.commit_all([Write(a, expect=5)], release=claims))
        assert [await store.holder(kind, id) for id in "abc"] == claims
        [a] = await store.commit_all([Write(a.with_data(1), expect=1, fence=claims[0].token)], release=claims[:2])
        assert [await store.holder(kind, id) for id in "abc"] == [None, None, claims[2]]
        await refused(Conflict, store.commit(a, expect=2, fence=claims[0].token))
        await store.claim(kind, "b", owner="you", ttl=10)
        assert await store.commit_all([], release=[claims[2]]) == []
        assert await store.holder(kind, "c") is None
        again = await store.claim(kind, "a", owner="me", ttl=10)
        assert again.token > max(claim.token for claim in claims)

    @contract("store.release")
    async def test_a_commit_rests_on_every_claim_that_it_releases(self, given: Given) -> None:
        store, kind = given.store, given.kind
        a = await given.create("a", data=0)
        lost = await store.claim(kind, "b", owner="me", ttl=1)
        held = await store.claim(kind, "c", owner="me", ttl=10)
        given.clock.advance(1)
        error = await refused(Conflict, store.commit_all([Write(a, expect=1)], release=[held, lost]))
        assert (error.kind, error.id, error.actual) == (kind, "b", None)
        yours = await store.claim(kind, "b", owner="you", ttl=10)
        assert (await refused(Conflict, store.commit_all([Write(a, expect=1)], release=[held, lost]))).id == "b"
        assert (await refused(Conflict, store.commit_all([], release=[lost, held]))).id == "b"
        assert [await store.holder(kind, id) for id in "bc"] == [yours, held]
        assert await given.get("a") == a

    @contract("store.several")
    async def test_several_are_read_in_order_at_one_moment(self, given: Given) -> None:
        store, kind = given.store, given.kind
        a, b = await given.create("a", data=1), await given.create("b", data=2, idle=1)
        await given.create("e")
        await store.end(kind, "e")
        given.clock.advance(2)
        names = [(kind, id) for id in ("e", "a", "x", "b", "a")]
        assert await store.get_all(names) == [None, a, None, None, a]
        found = await store.get_all(names, dead=True)
        assert found == [await store.get(kind, id, dead=True) for _, id in names]
        assert found[3] is not None
        assert found[3].expired
        assert found[3].rev == b.rev
        assert await store.get_all([]) == []

    @contract("store.several")
    async def test_the_sum_of_two_records_is_the_same_at_every_read(self, given: Given) -> None:
        """Transfers in both directions between pairs of records, named in either order, through two handles."""
        ids = ["a", "b", "c"]
        await given.store.commit_all([Write(Record(given.kind, id, data=TOTAL), expect=0) for id in ids])
        done = asyncio.Event()

        async def transfer(store: Store, number: int) -> None:
            for turn in range(10):
                pair = [ids[(number + turn) % 3], ids[(number + turn + 1) % 3]]
                pair = pair[::-1] if number % 2 else pair
                while not await move(store, pair, number):
                    await asyncio.sleep(0)

        async def move(store: Store, pair: list[str], amount: int) -> bool:
            found = await store.get_all([(given.kind, id) for id in pair])
            one, two = (cast("Record", record) for record in found)
            changes = (cast("int", one.data) - amount, cast("int", two.data) + amount)
            writes = [
                Write(record.with_data(data), expect=record.rev, entries=[data])
                for record, data in zip((one, two), changes, strict=True)
            ]
            try:
                await store.commit_all(writes)
            except Conflict:
                return False
            return True

        async def look(store: Store) -> None:
            while not done.is_set():
                found = await store.get_all([(given.kind, id) for id in ids])
                assert sum(cast("int", record.data) for record in found if record) == 3 * TOTAL
                await asyncio.sleep(0)

        async with given.again() as other:
            looking = [asyncio.create_task(look(store)) for store in (given.store, other)]
            await asyncio.gather(*(transfer((given.store, other)[n % 2], n) for n in range(6)))
            done.set()
            await asyncio.gather(*looking)
        records = [await given.get(id) for id in ids]
        assert sum(record.rev for record in records) == 3 + 2 * 60
        for record in records:
            log = await given.store.log(given.kind, record.id, limit=1000)
            assert [e.rev for e in log] == list(range(2, record.rev + 1))
            assert not log or log[-1].data == record.data

    @contract("store.several")
    async def test_of_commits_that_create_the_same_records_in_opposite_orders_one_wins(self, given: Given) -> None:
        async def create(store: Store, turn: int, n: int) -> bool:
            ids = [f"{turn}.{id}" for id in range(4)]
            writes = [Write(Record(given.kind, id, data=n), expect=0, entries=[n]) for id in ids]
            try:
                await store.commit_all(writes[::-1] if n % 2 else writes)
            except Conflict:
                return False
            return True

        async with given.again() as other:
            for turn in range(5):
                won = await asyncio.gather(*(create((given.store, other)[n % 2], turn, n) for n in range(8)))
                assert sum(won) == 1
                found = await given.store.get_all([(given.kind, f"{turn}.{id}") for id in range(4)])
                assert [record.data for record in found if record] == [won.index(True)] * 4
                for id in range(4):
                    log = await given.store.log(given.kind, f"{turn}.{id}")
                    assert [e.data for e in log] == [won.index(True)]

    @contract("store.cancel")
    async def test_a_cancelled_commit_of_several_happened_whole_or_not_at_all(self, given: Given) -> None:
        for turn in range(20):
            a = await given.create(f"a{turn}", data=0)
            claim = await given.store.claim(given.kind, f"a{turn}", owner="me", ttl=60)
            writes = [
                Write(a.with_data(1), expect=1, entries=["x"], fence=claim.token),
                Write(Record(given.kind, f"b{turn}", data=1), expect=0, entries=["x"]),
            ]
            task = asyncio.create_task(given.store.commit_all(writes, release=[claim]))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await given.store.commit_all([Write(Record(given.kind, f"barrier{turn}"), expect=0)])
            one, two = await given.store.get_all([(given.kind, f"a{turn}"), (given.kind, f"b{turn}")])
            logs = [[e.data for e in await given.store.log(given.kind, f"{id}{turn}")] for id in "ab"]
            held = await given.store.holder(given.kind, f"a{turn}")
            assert (one and one.data, two and two.data, logs, held) in [
                (0, None, [[], []], claim),
                (1, 1, [["x"], ["x"]], None),
            ]

    @contract("store.bad-input")
    async def test_what_one_step_can_not_take_is_refused_before_anything_is_written(self, given: Given) -> None:
        store, kind = given.store, given.kind
        a = await given.create("a")
        good = Write(Record(kind, "good"), expect=0)
        claim = await store.claim(kind, "a", owner="me", ttl=10)
        twice = await refused(UsageError, store.commit_all([good, Write(a, expect=1), Write(a, expect=1)]))
        assert (twice.kind, twice.id) == (kind, "a")
        await refused(UsageError, store.commit_all([]))
        await refused(UsageError, store.commit_all([good], release=[claim, claim]))
        await refused(UsageError, store.commit_all([good, Write(a, expect=-1)]))
        bad: Any = object()
        await refused(UnstorableValue, store.commit_all([good, Write(a.with_data(bad), expect=1)]))
        await refused(UnstorableValue, store.commit_all([good, Write(a, expect=1, entries=[bad])]))
        await refused(UsageError, store.commit_all([good, Write(a, expect=1, fence=bad)]))
        await refused(UsageError, store.commit_all([good], release=[Claim(kind, "a", "me", bad, 0.0)]))
        await refused(UnstorableValue, store.commit_all([good], release=[Claim(kind, "a\n", "me", 1, 0.0)]))
        await refused(UnstorableValue, store.get_all([(kind, "a"), (kind, "")]))
        assert await store.get(kind, "good") is None
        assert await given.get("a") == a

    @contract("store.size")
    async def test_a_commit_of_too_many_records_or_bytes_is_refused(self, given: Given) -> None:
        store, kind = given.store, given.kind
        many = [Write(Record(kind, f"r{n}"), expect=0) for n in range(MAX_AT_ONCE + 1)]
        error = await refused(LimitReached, store.commit_all(many))
        assert (error.limit, error.actual) == (MAX_AT_ONCE, MAX_AT_ONCE + 1)
        await refused(LimitReached, store.get_all([(kind, f"r{n}") for n in range(MAX_AT_ONCE + 1)]))
        large = [
            Write(Record(kind, f"r{n}", data="x" * (MAX_RECORD_BYTES - 100)), expect=0)
            for n in range(MAX_COMMIT_BYTES // MAX_RECORD_BYTES + 1)
        ]
        error = await refused(LimitReached, store.commit_all(large))
        assert error.limit == MAX_COMMIT_BYTES < error.actual
        too_large = Write(Record(kind, "x", data="x" * MAX_RECORD_BYTES), expect=0)
        assert (await refused(LimitReached, store.commit_all([many[0], too_large]))).id == "x"
        assert await store.count(kind=kind, state=None) == 0
        assert len(await store.commit_all(many[:-1])) == MAX_AT_ONCE
        assert await store.count(kind=kind) == MAX_AT_ONCE

    @contract("store.several")
    async def test_data_of_several_is_each_callers_own(self, given: Given) -> None:
        mine: JSON = {"n": [1]}
        writes = [Write(Record(given.kind, id, data=mine), expect=0) for id in "ab"]
        made = await given.store.commit_all(writes)
        mine["n"].append(2)  # type: ignore[index,union-attr]
        made[0].data["n"].append(3)  # type: ignore[index,union-attr,call-overload]
        found = await given.store.get_all([(given.kind, id) for id in "ab"])
        assert [record.data for record in found if record] == [{"n": [1]}, {"n": [1]}]

    @contract("store.closed")
    async def test_several_of_a_closed_store_are_refused(self, given: Given) -> None:
        async with given.again() as other:
            pass
        if other is given.store:
            return
        for call in (
            other.commit_all([Write(Record(given.kind, "a"), expect=0)]),
            other.get_all([(given.kind, "a")]),
            other.begin_turn(given.kind, "a", owner="me", ttl=1),
        ):
            await refused(LeaseClosed, call)

    @contract("store.several")
    async def test_one_write_of_commit_all_is_a_commit(self, given: Given) -> None:
        [made] = await given.store.commit_all([Write(Record(given.kind, "a", data=1), expect=0, entries=["x"])])
        assert await given.get() == made
        error = await refused(Conflict, given.store.commit_all([Write(made, expect=7)]))
        assert (error.expect, error.actual, error.id) == (7, 1, "a")
