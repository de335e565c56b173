"""Scans and counts: paged, filtered, each record once."""

from typing import Any

from holdfast.core.models import Page, Principal, Record
from holdfast.errors import Ended, NotFound, UsageError
from holdfast.testing.contracts.given import Contract, Given, contract, refused


async def _all(given: Given, limit: int, **filters: str | None) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = await given.store.scan(after=after, limit=limit, **filters)  # type: ignore[arg-type]
        assert len(page.records) <= limit
        assert not page.corrupt
        found += [record.id for record in page.records]
        if page.next is None:
            return found
        after = page.next


class ScanContract(Contract):
    @contract("store.scan")
    async def test_pages_hold_every_record_once_in_order(self, given: Given) -> None:
        names = sorted(["a", "B", "b", "ä", "z", "'", "日", "😀", "10", "9", "a b", *(f"n{i:02}" for i in range(20))])
        for name in names:
            await given.create(name, data={"of": name})
        for limit in (1, 3, 31, 100):
            assert await _all(given, limit, kind=given.kind) == names
        page = await given.store.scan(kind=given.kind, limit=2)
        assert [record.data for record in page.records] == [{"of": name} for name in names[:2]]

    @contract("store.scan")
    async def test_filters_by_kind_principal_and_state(self, given: Given) -> None:
        await given.create("live-a", principal="alice", idle=100)
        await given.create("live-b", principal="bob")
        await given.create("expired-a", principal="alice", idle=1)
        await given.create("ended-a", principal="alice")
        await given.store.end(given.kind, "ended-a")
        await given.store.commit(Record(given.kind + "2", "other"), expect=0)
        given.clock.advance(5)
        kind = given.kind
        expected = {
            (None, "live"): ["live-a", "live-b"],
            ("alice", "live"): ["live-a"],
            ("alice", "expired"): ["expired-a"],
            ("bob", "expired"): [],
            (None, "ended"): ["ended-a"],
            ("alice", None): ["ended-a", "expired-a", "live-a"],
            ("nobody", None): [],
        }
        for (principal, state), names in expected.items():
            assert await _all(given, 2, kind=kind, principal=principal, state=state) == names
            count = await given.store.count(kind=kind, principal=principal, state=state)  # type: ignore[arg-type]
            assert count == len(names)

    @contract("store.scan")
    async def test_dead_records_in_a_scan_are_marked_and_empty(self, given: Given) -> None:
        await given.create("expired", "secret", idle=1)
        await given.create("ended", "secret")
        await given.store.end(given.kind, "ended")
        given.clock.advance(5)
        page = await given.store.scan(kind=given.kind, state=None)
        assert [(r.id, r.data, r.ended is not None, r.expired) for r in page.records] == [
            ("ended", None, True, False),
            ("expired", None, True, True),
        ]

    @contract("store.scan")
    async def test_a_scan_goes_on_while_records_come_and_go(self, given: Given) -> None:
        for n in range(10):
            await given.create(f"n{n}")
        first = await given.store.scan(kind=given.kind, limit=4)
        await given.store.end(given.kind, "n3")
        await given.store.end(given.kind, "n7")
        await given.create("n0-behind")
        await given.create("n8-ahead")
        second = await given.store.scan(kind=given.kind, limit=100, after=first.next)
        assert [r.id for r in second.records] == ["n4", "n5", "n6", "n8", "n8-ahead", "n9"]

    @contract("store.scan")
    async def test_without_a_filter_every_kind_is_seen(self, given: Given) -> None:
        before = await given.store.count()
        mine = [(given.kind, "a"), (f"{given.kind}-2", "b")]
        for kind, id in mine:
            await given.store.commit(Record(kind, id), expect=0)
        assert await given.store.count() == before + 2
        found: list[tuple[str, str]] = []
        page = await given.store.scan(limit=1000)
        found += [(r.kind, r.id) for r in page.records]
        while page.next is not None:
            page = await given.store.scan(limit=1000, after=page.next)
            found += [(r.kind, r.id) for r in page.records]
        assert [key for key in found if key in mine] == mine

    @contract("store.erase")
    async def test_what_is_erased_is_gone_alive_or_dead_with_its_log(self, given: Given) -> None:
        alice, bob = f"alice-{given.kind}", f"bob-{given.kind}"
        for n in range(250):  # more than one step
            await given.create(f"n{n}", "secret", principal=alice)
        for name in ("live", "ended"):
            await given.create(name, "secret", principal=alice, entries=("secret",))
        await given.create("expired", "secret", principal=alice, idle=1, entries=("secret",))
        await given.store.end(given.kind, "ended")
        other = Record(f"{given.kind}-2", "other", Principal(alice), "secret")
        await given.store.commit(other, expect=0)
        late = await given.get("live")
        theirs = await given.create("theirs", "b", principal=bob, entries=("b",))
        await given.create("their tombstone", principal=bob)
        await given.store.end(given.kind, "their tombstone")
        given.clock.advance(5)
        async with given.again() as replica:
            assert await replica.erase(alice, kind=given.kind) == 253
        assert await given.store.count(principal=alice, state=None) == 1
        assert await given.store.erase(alice) == 1
        assert await given.store.erase(alice) == 0
        assert await given.store.scan(principal=alice, state=None) == Page((), None)
        for name in ("live", "ended", "expired", "n0"):
            assert await given.store.get(given.kind, name, dead=True) is None
            assert await given.store.log(given.kind, name) == []
        await refused(NotFound, given.store.commit(late.with_data("late"), expect=late.rev))
        again = await given.create("live", "new", principal=bob)
        assert (again.rev, await given.store.log(given.kind, "live")) == (1, [])
        assert await given.get("theirs") == theirs
        assert len(await given.store.log(given.kind, "theirs")) == 1
        await refused(Ended, given.create("their tombstone", principal=bob))

    @contract("store.bad-input")
    async def test_bad_filters_are_refused(self, given: Given) -> None:
        bad: Any
        for bad in ("", "a\n", "\ud800", 7, object()):
            await refused(UsageError, given.store.scan(kind=bad))
            await refused(UsageError, given.store.count(principal=bad))
        for bad in ("alive", "", 7):
            await refused(UsageError, given.store.scan(state=bad))
            await refused(UsageError, given.store.count(state=bad))
        for bad in (-1, 2**70, "1", None):
            await refused(UsageError, given.store.log(given.kind, "a", after=bad))
        await refused(UsageError, given.store.commit(Record(given.kind, "a"), expect=0, entries="text"))

    @contract("store.bad-input")
    async def test_a_foreign_cursor_is_refused(self, given: Given) -> None:
        for bad in (
            "",
            "x",
            "[]",
            "[1,2]",
            '["a"]',
            '["a","b","c"]',
            '["a","\\u0000"]',
            '["a","\\ud800"]',
            "{}",
            "[" * 5000,
        ):
            await refused(UsageError, given.store.scan(after=bad))
        for bad in (0, -1, 10_001, True, 1.5):
            await refused(UsageError, given.store.scan(limit=bad))  # type: ignore[arg-type]
