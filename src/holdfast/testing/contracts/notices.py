"""Notices between processes, whose loss is always reported."""

import asyncio
from collections.abc import AsyncIterator

from holdfast.core.models import Gap, Notice, NoticeOrGap
from holdfast.errors import LeaseClosed, LimitReached, UnstorableValue, UsageError
from holdfast.stores import notices
from holdfast.testing.contracts.given import Contract, Given, contract, refused

WAIT = 30.0  # a notice arrives within milliseconds, on a busy machine within seconds, or never


async def received(listeners: AsyncIterator[NoticeOrGap], count: int) -> list[NoticeOrGap]:
    async with asyncio.timeout(WAIT):
        return [await anext(listeners) for _ in range(count)]


async def _until(listeners: AsyncIterator[NoticeOrGap], wanted: NoticeOrGap) -> None:
    async with asyncio.timeout(WAIT):
        while await anext(listeners) != wanted:
            pass


class NoticeContract(Contract):
    @contract("store.notices")
    async def test_a_listener_hears_its_topics_in_order_and_no_others(self, given: Given) -> None:
        a, b, c = (f"{given.kind}-{name}" for name in "abc")
        async with given.again() as other, other.listen(a, b) as listeners:
            await given.store.publish(a, {"n": 1})
            await given.store.publish(c, "not for us")
            await given.store.publish(b, [2, None, "ä"])
            await given.store.publish(a, None)
            assert await received(listeners, 3) == [Notice(a, {"n": 1}), Notice(b, [2, None, "ä"]), Notice(a, None)]

    @contract("store.notices")
    async def test_every_listener_hears_every_notice(self, given: Given) -> None:
        topic = given.kind
        expected = [Notice(topic, n) for n in range(50)]
        async with (
            given.again() as other,
            other.listen(topic) as far,
            given.store.listen(topic) as near,
            other.listen(topic) as late,
        ):
            for n in range(50):
                await (given.store if n % 2 else other).publish(topic, n)
            for listeners in (far, near, late):
                found = await received(listeners, 50)
                # Notices of two publishers have no common order; those of each one keep theirs.
                assert [notice for notice in found if notice in expected[1::2]] == expected[1::2]
                assert sorted(found, key=repr) == sorted(expected, key=repr)

    @contract("store.notices")
    async def test_what_was_published_before_is_not_heard(self, given: Given) -> None:
        topic = given.kind
        await given.store.publish(topic, "before")
        async with given.store.listen(topic) as listeners:
            await given.store.publish(topic, "after")
            assert await received(listeners, 1) == [Notice(topic, "after")]

    @contract("store.notices")
    async def test_a_listener_may_come_back(self, given: Given) -> None:
        topic = given.kind
        for n in range(3):
            async with given.store.listen(topic) as listeners:
                await given.store.publish(topic, n)
                assert await received(listeners, 1) == [Notice(topic, n)]

    @contract("store.notices")
    async def test_a_cancelled_wait_loses_nothing(self, given: Given) -> None:
        topic = given.kind
        async with given.store.listen(topic) as listeners:
            waiting = asyncio.ensure_future(anext(listeners))
            await asyncio.sleep(0)
            waiting.cancel()
            await refused(asyncio.CancelledError, waiting)
            await given.store.publish(topic, "still here")
            assert await received(listeners, 1) == [Notice(topic, "still here")]

    @contract("store.gap")
    async def test_a_listener_that_falls_behind_hears_all_or_learns_of_the_gap(self, given: Given) -> None:
        topic, count = given.kind, 400
        patience, notices.MAX_PENDING = notices.MAX_PENDING, 100
        try:
            async with given.again() as other, other.listen(topic) as slow, other.listen(topic) as quick:
                for n in range(count):
                    await given.store.publish(topic, n)
                    if n % 50 == 49:
                        await _until(quick, Notice(topic, n))
                expected = 0
                while expected < count:
                    match (await received(slow, 1))[0]:
                        case Gap():
                            expected = -1  # from here on, whatever comes
                        case Notice(_, int(n)) if expected in (-1, n):
                            expected = n + 1
                        case found:
                            raise AssertionError(f"got {found} instead of {expected}, without a gap before it")
        finally:
            notices.MAX_PENDING = patience

    @contract("store.notices")
    async def test_a_later_listener_hears_nothing_from_before_it_came(self, given: Given) -> None:
        topic = given.kind
        async with given.store.listen(topic) as early:
            await given.store.publish(topic, "before")
            async with given.again() as other, other.listen(topic) as late, given.store.listen(topic) as near:
                await given.store.publish(topic, "after")
                assert await received(late, 1) == [Notice(topic, "after")]
                assert await received(near, 1) == [Notice(topic, "after")]
            assert await received(early, 2) == [Notice(topic, "before"), Notice(topic, "after")]

    @contract("store.notices")
    async def test_what_is_heard_belongs_to_whoever_heard_it(self, given: Given) -> None:
        topic = given.kind
        async with given.store.listen(topic) as one, given.store.listen(topic) as two:
            await given.store.publish(topic, {"n": 1})
            first = (await received(one, 1))[0]
            assert isinstance(first, Notice)
            first.data["n"] = "changed"  # type: ignore[index,call-overload]
            assert await received(two, 1) == [Notice(topic, {"n": 1})]

    @contract("store.closed")
    async def test_closing_a_store_ends_its_listeners(self, given: Given) -> None:
        async with given.again() as other:
            listening = other.listen(given.kind)
            listeners = await listening.__aenter__()
        if other is not given.store:
            await refused(LeaseClosed, received(listeners, 1))
        await listening.__aexit__(None, None, None)

    @contract("store.size")
    async def test_a_large_notice_is_refused(self, given: Given) -> None:
        await refused(LimitReached, given.store.publish(given.kind, "x" * 5000))

    @contract("store.bad-input")
    async def test_nonsense_is_neither_published_nor_listened_to(self, given: Given) -> None:
        await refused(UnstorableValue, given.store.publish(given.kind, object()))  # type: ignore[arg-type]
        await refused(UsageError, given.store.listen().__aenter__())
        await refused(UsageError, given.store.listen("a\n").__aenter__())
