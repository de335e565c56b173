"""Notices: hints between processes that may be lost, but not silently."""

import asyncio
from collections.abc import AsyncIterator

from holdfast.core.models import Gap, Heard, Notice
from holdfast.errors import UnstorableValue, UsageError
from holdfast.testing.contracts.given import Contract, Given, contract, refused

WAIT = 10.0  # a notice comes within milliseconds, or not at all


async def heard(ears: AsyncIterator[Heard], count: int) -> list[Heard]:
    async with asyncio.timeout(WAIT):
        return [await anext(ears) for _ in range(count)]


class NoticeContract(Contract):
    @contract("store.notices")
    async def test_a_listener_hears_its_topics_in_order_and_no_others(self, given: Given) -> None:
        a, b, c = (f"{given.kind}-{name}" for name in "abc")
        async with given.again() as other, other.listen(a, b) as ears:
            await given.store.publish(a, {"n": 1})
            await given.store.publish(c, "not for us")
            await given.store.publish(b, [2, None, "ä"])
            await given.store.publish(a, None)
            assert await heard(ears, 3) == [Notice(a, {"n": 1}), Notice(b, [2, None, "ä"]), Notice(a, None)]

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
            for ears in (far, near, late):
                found = await heard(ears, 50)
                # Two publishers have no common order; each one's own notices keep theirs.
                assert [notice for notice in found if notice in expected[1::2]] == expected[1::2]
                assert sorted(found, key=repr) == sorted(expected, key=repr)

    @contract("store.notices")
    async def test_what_was_published_before_is_not_heard(self, given: Given) -> None:
        topic = given.kind
        await given.store.publish(topic, "before")
        async with given.store.listen(topic) as ears:
            await given.store.publish(topic, "after")
            assert await heard(ears, 1) == [Notice(topic, "after")]

    @contract("store.notices")
    async def test_a_listener_may_come_back(self, given: Given) -> None:
        topic = given.kind
        for n in range(3):
            async with given.store.listen(topic) as ears:
                await given.store.publish(topic, n)
                assert await heard(ears, 1) == [Notice(topic, n)]

    @contract("store.notices")
    async def test_a_cancelled_wait_loses_nothing(self, given: Given) -> None:
        topic = given.kind
        async with given.store.listen(topic) as ears:
            waiting = asyncio.ensure_future(anext(ears))
            await asyncio.sleep(0)
            waiting.cancel()
            await refused(asyncio.CancelledError, waiting)
            await given.store.publish(topic, "still here")
            assert await heard(ears, 1) == [Notice(topic, "still here")]

    @contract("store.gap")
    async def test_a_listener_that_falls_behind_learns_of_the_gap(self, given: Given) -> None:
        from holdfast.stores.notices import Listeners

        listeners = Listeners()
        with listeners.register(("t",)) as slow, listeners.register(("t",)) as quick:
            for n in range(20_000):
                listeners.deliver("t", n)
                await anext(quick)
            found = await heard(slow, 1)
            assert found == [Gap()]
            rest = await heard(slow, 20_000 - 16_385)
            assert rest[-1] == Notice("t", 19_999)

    @contract("store.bad-input")
    async def test_nonsense_is_neither_published_nor_listened_to(self, given: Given) -> None:
        await refused(UnstorableValue, given.store.publish(given.kind, object()))  # type: ignore[arg-type]
        await refused(UsageError, given.store.listen().__aenter__())
        await refused(UsageError, given.store.listen("a\n").__aenter__())
