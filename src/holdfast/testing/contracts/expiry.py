"""Expiry by idle time and age, its extension by use, and the reaper."""

from holdfast.core.models import Record, Write
from holdfast.errors import Conflict, Ended, NotFound, SessionExpired, UsageError
from holdfast.testing.contracts.given import Contract, Given, contract, refused


class ExpiryContract(Contract):
    @contract("store.idle")
    async def test_an_idle_record_expires_and_touch_slides_it(self, given: Given) -> None:
        record = await given.create(data="x", idle=10)
        for _ in range(5):
            given.clock.advance(9)
            await given.store.touch(given.kind, "a")
        alive = await given.get()
        assert (alive.rev, alive.data, alive.touched) == (1, "x", record.created + 45)
        given.clock.advance(9.75)
        assert await given.store.get(given.kind, "a") is not None
        given.clock.advance(0.25)
        assert await given.store.get(given.kind, "a") is None

    @contract("store.idle")
    async def test_a_commit_slides_the_idle_time_and_a_read_does_not(self, given: Given) -> None:
        record = await given.create(idle=10)
        given.clock.advance(9)
        record = await given.store.commit(record, expect=1)
        given.clock.advance(9)
        assert await given.get() == record
        given.clock.advance(1)
        assert await given.store.get(given.kind, "a") is None

    @contract("store.max-age")
    async def test_nothing_extends_the_maximum_age(self, given: Given) -> None:
        record = await given.create(idle=10, max_age=25)
        given.clock.advance(9)
        record = await given.store.commit(record, expect=1)
        given.clock.advance(9)
        await given.store.touch(given.kind, "a")
        assert (await given.get()).expires == record.created + 25
        given.clock.advance(7)
        assert await given.store.get(given.kind, "a") is None

    @contract("store.expired")
    async def test_an_expired_record_refuses_late_writes_and_tells_when_asked(self, given: Given) -> None:
        record = await given.create(data="secret", idle=10)
        given.clock.advance(30)
        await refused(SessionExpired, given.store.commit(record, expect=1))
        await refused(SessionExpired, given.store.touch(given.kind, "a"))
        dead = await given.get(dead=True)
        assert (dead.data, dead.ended, dead.expired) == (None, record.created + 10, True)

    @contract("store.expired")
    async def test_an_expired_record_can_be_ended_once(self, given: Given) -> None:
        await given.create(idle=10)
        given.clock.advance(30)
        assert await given.store.end(given.kind, "a") is True
        assert await given.store.end(given.kind, "a") is False
        assert (await given.get(dead=True)).expired is True
        await refused(Ended, given.create())

    @contract("store.incarnation")
    async def test_an_expired_id_may_begin_again_and_old_writers_can_not_write_into_it(self, given: Given) -> None:
        old = await given.create(data="old", idle=10)
        given.clock.advance(30)
        new = await given.create(data="new")
        assert (new.rev, new.created) == (1, given.clock.now())
        await refused(Conflict, given.store.commit(old.with_data("late"), expect=1))
        assert await given.get() == new

    @contract("store.reap")
    async def test_reap_removes_what_expired_and_says_how_many(self, given: Given) -> None:
        for n in range(7):
            await given.create(f"dead{n}", idle=10, entries=("x",))
        await given.create("alive", idle=100)
        await given.create("forever")
        given.clock.advance(20)
        reaped = await given.store.reap(kind=given.kind)
        assert (reaped.expired, reaped.tombstones) == (7, 0)
        assert await given.store.get(given.kind, "dead3", dead=True) is None
        assert await given.store.count(kind=given.kind, state=None) == 2
        again = await given.store.reap(kind=given.kind)
        assert (again.expired, again.tombstones) == (0, 0)

    @contract("store.reap")
    async def test_reap_keeps_tombstones_for_a_while_and_late_writes_stay_refused(self, given: Given) -> None:
        record = await given.create()
        await given.store.end(given.kind, "a")
        given.clock.advance(3600)
        assert (await given.store.reap(kind=given.kind)).tombstones == 0
        await refused(Ended, given.store.commit(record, expect=1))
        given.clock.advance(86_400)
        assert (await given.store.reap(kind=given.kind)).tombstones == 1
        assert await given.store.get(given.kind, "a", dead=True) is None
        await refused(NotFound, given.store.commit(record, expect=1))

    @contract("store.reap")
    async def test_reap_can_leave_the_recently_expired_to_be_told_apart(self, given: Given) -> None:
        await given.create(idle=10)
        given.clock.advance(50)
        assert (await given.store.reap(kind=given.kind, expired_for=60)).expired == 0
        given.clock.advance(20)
        assert (await given.store.reap(kind=given.kind, expired_for=60)).expired == 1

    @contract("store.reap")
    async def test_reap_keeps_to_its_kind_or_takes_all_and_leaves_held_claims(self, given: Given) -> None:
        other = f"{given.kind}-other"
        for kind in (given.kind, other):
            await given.store.commit(Record(kind, "a", idle=1), expect=0)
        held = await given.store.claim(given.kind, "held", owner="me", ttl=100)
        given.clock.advance(2)
        await given.store.reap(kind=given.kind)
        assert await given.store.get(given.kind, "a", dead=True) is None
        assert await given.store.get(other, "a", dead=True) is not None
        await given.store.reap()
        assert await given.store.get(other, "a", dead=True) is None
        assert await given.store.holder(given.kind, "held") == held

    @contract("store.reap")
    async def test_the_tombstone_of_a_long_expired_record_is_kept_like_any_other(self, given: Given) -> None:
        await given.create(idle=1)
        given.clock.advance(200_000)
        assert await given.store.end(given.kind, "a") is True
        assert (await given.store.reap(kind=given.kind)).tombstones == 0
        await refused(Ended, given.create())

    @contract("store.incarnation")
    async def test_a_reaper_that_saw_the_old_life_does_not_end_the_new_one(self, given: Given) -> None:
        old = await given.create(idle=1)
        given.clock.advance(2)
        new = await given.create()
        await refused(Conflict, given.store.end(given.kind, "a", created=old.created))
        assert await given.get() == new
        assert await given.store.end(given.kind, "a", created=new.created) is True

    @contract("store.reap")
    async def test_a_negative_age_does_not_reach_into_the_living(self, given: Given) -> None:
        await given.create(idle=600)
        for bad in (-1, -3600.0, float("nan"), "1"):
            await refused(UsageError, given.store.reap(expired_for=bad))  # type: ignore[arg-type]
            await refused(UsageError, given.store.reap(ended_for=bad))  # type: ignore[arg-type]
        assert await given.get()

    @contract("store.reap")
    async def test_reap_removes_more_than_one_batch(self, given: Given) -> None:
        for n in range(450):
            await given.create(str(n), idle=1)
        given.clock.advance(2)
        assert (await given.store.reap(kind=given.kind)).expired == 450
        assert await given.store.count(kind=given.kind, state=None) == 0

    @contract("store.bad-input")
    async def test_spans_must_be_positive_numbers(self, given: Given) -> None:
        for bad in (0, -1, float("nan"), float("inf"), 10**400, "10"):
            for name in ("idle", "max_age"):
                try:
                    Record(given.kind, "a", **{name: bad})  # type: ignore[arg-type]
                except UsageError as error:
                    assert name in str(error)
                else:
                    raise AssertionError(f"{name}={bad!r}")
            await refused(UsageError, given.store.claim(given.kind, "a", owner="me", ttl=bad))  # type: ignore[arg-type]
        await refused(UsageError, given.store.claim(given.kind, "a", owner="me", ttl=None))  # type: ignore[arg-type]

    @contract("store.clock-steps")
    async def test_a_clock_that_is_set_back_shortens_no_life(self, given: Given) -> None:
        records = {name: await given.create(name, idle=60, max_age=600) for name in ("touched", "written", "several")}
        last = max(record.expires or 0.0 for record in records.values())
        given.clock.step(-3600)
        for name in ("touched", "written", "several"):
            assert (await given.get(name)).expires == records[name].expires
        await given.store.touch(given.kind, "touched")
        one = await given.store.commit(records["written"].with_data(1), expect=1, entries=(1,))
        [two, made] = await given.store.commit_all(
            [
                Write(records["several"].with_data(1), expect=1, entries=(1,)),
                Write(Record(given.kind, "made", records["several"].principal, idle=60), expect=0, entries=(1,)),
            ]
        )
        for record in (one, two, await given.get("touched"), await given.get("written"), await given.get("several")):
            assert record.touched == records["written"].touched
            assert record.expires == last
        assert made.touched == made.created == given.clock.now()
        for name in ("written", "several"):
            [entry] = await given.store.log(given.kind, name)
            assert entry.at == records[name].touched  # a log never goes back in time
        given.clock.step(3600)
        given.clock.advance(59)
        assert await given.store.count(kind=given.kind) == 3
        given.clock.advance(2)
        assert await given.store.count(kind=given.kind) == 0
