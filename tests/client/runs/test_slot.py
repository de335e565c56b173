"""A slot of the pool: what its age, its leases and its last use decide, at times that the test names."""

import pytest

from holdfast import Link, Server
from holdfast.client.runs.link_users import LinkUsers
from holdfast.client.runs.slot import CHECK_AFTER, Slot

pytestmark = pytest.mark.anyio


def slot_of(server: Server, now: float) -> Slot:
    kept = frozenset[str]()
    return Slot((server, "alice", kept, 0), Link(server.target), LinkUsers(server, kept=True), now)


@pytest.mark.promise("pool.keep")
async def test_an_idle_slot_is_checked_after_a_minute_and_is_too_old_after_its_idle_time() -> None:
    slot = slot_of(Server("it", url="http://127.0.0.1:1/", idle=900), 0.0)
    assert (slot.leases, slot.kept, slot.program) == (1, True, False)
    assert not slot.too_old(10_000)  # what is leased does not idle
    assert slot.outworn(10_000)
    slot.give_back(100)
    assert repr(slot) == "<Slot it idle>"
    assert not slot.too_old(1000)
    assert slot.too_old(1001)
    assert slot.lease(100 + CHECK_AFTER) is False
    slot.give_back(200)
    assert slot.lease(201 + CHECK_AFTER) is True
    assert slot.lease(900) is False  # another lease: the link is in use
    assert repr(slot) == "<Slot it 2 leases>"


@pytest.mark.promise("pool.keep")
async def test_a_slot_ages_whether_or_not_it_is_used_until_its_link_is_renewed() -> None:
    slot = slot_of(Server("it", url="http://127.0.0.1:1/", max_age=50), 0.0)
    assert slot.fresh(50)
    assert not slot.too_old(50)
    assert slot.too_old(51)
    slot.renewed(51)
    assert not slot.too_old(101)
    assert not slot.fresh(51 + CHECK_AFTER)
    slot.checked(51 + CHECK_AFTER)
    assert slot.fresh(51 + CHECK_AFTER)
    slot.retire()
    assert repr(slot) == "<Slot it 1 leases, retired>"
