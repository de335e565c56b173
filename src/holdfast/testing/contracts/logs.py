"""The log: appended with its record or not at all, numbered without gaps."""

from holdfast.errors import Conflict, UsageError
from holdfast.testing.contracts.given import Contract, Given, contract, refused


class LogContract(Contract):
    @contract("store.log")
    async def test_entries_are_numbered_without_gaps_across_commits(self, given: Given) -> None:
        record = await given.create(entries=("a", "b"))
        given.clock.advance(1)
        record = await given.store.commit(record, expect=1)
        record = await given.store.commit(record, expect=2, entries=["c", {"d": 1}, None])
        log = await given.store.log(given.kind, "a")
        assert [(e.seq, e.rev, e.data) for e in log] == [
            (1, 1, "a"),
            (2, 1, "b"),
            (3, 3, "c"),
            (4, 3, {"d": 1}),
            (5, 3, None),
        ]
        assert [e.at for e in log] == [record.created] * 2 + [record.touched] * 3

    @contract("store.log")
    async def test_a_refused_commit_logs_nothing(self, given: Given) -> None:
        record = await given.create(entries=("a",))
        await given.store.commit(record, expect=1, entries=["b"])
        await refused(Conflict, given.store.commit(record, expect=1, entries=["lost"]))
        assert [e.data for e in await given.store.log(given.kind, "a")] == ["a", "b"]

    @contract("store.log")
    async def test_the_log_is_read_in_pages_from_either_end(self, given: Given) -> None:
        record = await given.create(entries=("e1", "e2", "e3"))
        for n in range(4, 12, 2):
            record = await given.store.commit(record, expect=record.rev, entries=[f"e{n}", f"e{n + 1}"])
        store, kind = given.store, given.kind
        everything = [e.seq for e in await store.log(kind, "a")]
        assert everything == list(range(1, 12))
        for after in range(13):
            for limit in (1, 2, 3, 50):
                page = await store.log(kind, "a", after=after, limit=limit)
                assert [e.seq for e in page] == everything[after : after + limit]
                newest = await store.log(kind, "a", after=after, limit=limit, newest_first=True)
                assert [e.seq for e in newest] == everything[after:][::-1][:limit]
                assert all(e.data == f"e{e.seq}" for e in page + newest)
        await refused(UsageError, store.log(kind, "a", limit=0))

    @contract("store.log")
    async def test_an_unknown_or_dead_record_has_no_log(self, given: Given) -> None:
        assert await given.store.log(given.kind, "nobody") == []
        await given.create(idle=1, entries=("a",))
        given.clock.advance(2)
        assert await given.store.log(given.kind, "a") == []

    @contract("store.incarnation")
    async def test_a_new_life_begins_with_an_empty_log(self, given: Given) -> None:
        await given.create(idle=1, entries=("old",))
        given.clock.advance(2)
        await given.create(entries=("new",))
        assert [(e.seq, e.data) for e in await given.store.log(given.kind, "a")] == [(1, "new")]
