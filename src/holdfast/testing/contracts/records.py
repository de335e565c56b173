"""Records: create, read, compare-and-swap, end."""

import json
from dataclasses import replace
from typing import Any

from holdfast.core.models import Principal, Record
from holdfast.errors import Conflict, Ended, Forbidden, LeaseClosed, NotFound, SessionExpired, UsageError
from holdfast.stores.update import update
from holdfast.testing.contracts.given import Contract, Given, contract, refused


class RecordContract(Contract):
    @contract("store.absent")
    async def test_an_unknown_record_is_none(self, given: Given) -> None:
        assert await given.store.get(given.kind, "nobody") is None
        assert await given.store.get(given.kind, "nobody", dead=True) is None

    @contract("store.read-your-writes")
    async def test_what_was_committed_is_read_back_equal(self, given: Given) -> None:
        made = await given.create(data={"n": 1}, idle=60, max_age=3600)
        assert (made.rev, made.created, made.touched) == (1, given.clock.now(), given.clock.now())
        assert await given.get() == made
        async with given.again() as other:
            assert await other.get(given.kind, "a") == made

    @contract("store.cas")
    async def test_rev_counts_commits_and_created_stays(self, given: Given) -> None:
        record = await given.create(data=0)
        for n in range(1, 6):
            given.clock.advance(1)
            record = await given.store.commit(record.with_data(n), expect=record.rev)
        assert (record.rev, record.data) == (6, 5)
        assert record.touched == record.created + 5
        assert await given.get() == record

    @contract("store.cas")
    async def test_a_stale_commit_is_a_conflict_that_names_both_revs(self, given: Given) -> None:
        first = await given.create(data="first")
        await given.store.commit(first.with_data("second"), expect=1)
        error = await refused(Conflict, given.store.commit(first.with_data("late"), expect=1))
        assert (error.expect, error.actual) == (1, 2)
        assert (await given.get()).data == "second"

    @contract("store.cas")
    async def test_a_rev_from_the_future_is_a_conflict(self, given: Given) -> None:
        record = await given.create()
        await refused(Conflict, given.store.commit(record, expect=9))
        assert (await given.get()).rev == 1

    @contract("store.cas")
    async def test_creating_twice_is_a_conflict(self, given: Given) -> None:
        await given.create(data="first")
        error = await refused(Conflict, given.create(data="second"))
        assert (error.expect, error.actual) == (0, 1)
        assert (await given.get()).data == "first"

    @contract("store.cas")
    async def test_updating_what_does_not_exist_is_not_found(self, given: Given) -> None:
        error = await refused(NotFound, given.store.commit(Record(given.kind, "nobody"), expect=3))
        assert (error.kind, error.id) == (given.kind, "nobody")
        assert await given.store.get(given.kind, "nobody") is None

    @contract("store.owner")
    async def test_another_principals_record_can_not_be_written(self, given: Given) -> None:
        record = await given.create(principal="alice", data="hers")
        stolen = replace(record, principal=Principal("bob"), data="his")
        await refused(Forbidden, given.store.commit(stolen, expect=1))
        assert await given.get() == record

    @contract("store.names")
    async def test_the_same_id_under_another_kind_is_another_record(self, given: Given) -> None:
        await given.create("a", 1)
        other = await given.store.commit(Record(given.kind + "-other", "a", data=2), expect=0)
        assert (await given.get()).data == 1
        assert await given.store.get(other.kind, "a") == other

    @contract("store.names")
    async def test_names_are_kept_to_the_letter(self, given: Given) -> None:
        names = [
            "A",
            "a",
            "a ",
            " a",
            "a/b",
            "a%",
            "a_",
            "\u00e4",
            "a\u0308",
            "日本",
            "😀",
            "'",
            '"',
            "\\",
            "a:b",
            "{a}",
            "x" * 512,
        ]
        for name in names:
            await given.create(name, data=name, principal=name)
        for name in names:
            assert (await given.get(name)).data == name

    @contract("store.values")
    async def test_data_belongs_to_whoever_read_it(self, given: Given) -> None:
        mine: dict[str, list[Any]] = {"list": [1]}
        await given.create(data=mine)  # type: ignore[arg-type]
        mine["list"].append(2)
        read = await given.get()
        assert read.data == {"list": [1]}
        mine["list"].clear()
        returned = await given.store.commit(read.with_data(mine), expect=1)  # type: ignore[arg-type]
        mine["list"].append("late")
        assert returned.data == {"list": []}
        read = await given.store.commit(returned.with_data({"list": [1]}), expect=2)
        read.data["list"].append(3)  # type: ignore[index,union-attr]
        assert (await given.get()).data == {"list": [1]}

    @contract("store.end")
    async def test_end_leaves_a_tombstone_and_nothing_else(self, given: Given) -> None:
        await given.create(data="secret", entries=("logged",))
        given.clock.advance(5)
        assert await given.store.end(given.kind, "a") is True
        assert await given.store.get(given.kind, "a") is None
        tombstone = await given.get(dead=True)
        assert (tombstone.data, tombstone.ended, tombstone.expired) == (None, given.clock.now(), False)
        assert await given.store.log(given.kind, "a") == []

    @contract("store.end")
    async def test_ending_twice_and_ending_nothing_is_harmless(self, given: Given) -> None:
        await given.create()
        assert await given.store.end(given.kind, "a") is True
        before = await given.get(dead=True)
        given.clock.advance(5)
        assert await given.store.end(given.kind, "a") is False
        assert await given.get(dead=True) == before
        assert await given.store.end(given.kind, "nobody") is False

    @contract("store.end")
    async def test_late_write_does_not_resurrect_an_ended_session(self, given: Given) -> None:
        record = await given.create()
        await given.store.end(given.kind, "a")
        await refused(Ended, given.store.commit(record.with_data("late"), expect=1))
        await refused(Ended, given.store.touch(given.kind, "a"))
        await refused(Ended, given.create(data="again"))
        assert await given.store.get(given.kind, "a") is None

    @contract("store.bad-input")
    async def test_nonsense_is_refused_before_anything_is_written(self, given: Given) -> None:
        record = await given.create()
        await refused(UsageError, given.store.commit(record, expect=-1))
        await refused(UsageError, given.store.commit(record, expect=True))
        await given.store.end(given.kind, "a")
        tombstone = await given.get(dead=True)
        await refused(UsageError, given.store.commit(tombstone, expect=1))

    @contract("store.closed")
    async def test_a_store_is_not_entered_twice(self, given: Given) -> None:
        await refused(UsageError, given.store.__aenter__())
        assert await given.store.get(given.kind, "a") is None

    @contract("store.end")
    async def test_updating_what_is_dead_says_why(self, given: Given) -> None:
        await given.create("ended")
        await given.store.end(given.kind, "ended")
        await refused(Ended, update(given.store, given.kind, "ended", lambda data: data))
        await given.create("expired", idle=1)
        given.clock.advance(2)
        await refused(SessionExpired, update(given.store, given.kind, "expired", lambda data: data))
        await refused(NotFound, update(given.store, given.kind, "nobody", lambda data: data))

    @contract("store.closed")
    async def test_a_closed_store_says_so(self, given: Given) -> None:
        async with given.again() as other:
            await other.get(given.kind, "a")
        if other is given.store:
            return  # a subclass declares a store whose second handle is the store itself
        for call in (
            other.get(given.kind, "a"),
            other.commit(Record(given.kind, "a"), expect=0),
            other.end(given.kind, "a"),
            other.count(),
            other.publish("t", None),
        ):
            await refused(LeaseClosed, call)

    @contract("store.commit-returns")
    async def test_commit_returns_what_a_read_would_show(self, given: Given) -> None:
        made = await given.create(data={"a": [1, 2.5, None, "x"]}, idle=10, max_age=20)
        assert made == await given.get()
        changed = await given.store.commit(replace(made, idle=None, max_age=7.5), expect=1)
        assert changed == await given.get()
        assert json.dumps(changed.data) == json.dumps(made.data)
