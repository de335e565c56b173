"""Turns of calls in several processes: all are served, none is lost, and a dead holder is in nobody's way for long."""

import asyncio
import random

import pytest

import holdfast
from holdfast.errors import Busy
from holdfast.state.calls.transaction import Transaction
from holdfast.state.calls.turn_wait import LONGEST_WAIT, give_way, wait_before_asking
from holdfast.state.storage.entries import KIND, RESULTS
from tests.deadlines import patience
from tests.state.shops import Account, accounts_in, bank, move_for_ever, pay_at_once, pay_for_a_while
from tests.stores.processes import Worker, workers

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.call")
async def test_a_hundred_calls_of_four_processes_on_one_session_are_all_answered_and_kept(url: str) -> None:
    accounts = accounts_in(url)
    begun = await accounts.begin()
    banks = [Worker(pay_at_once, url, begun.handle, 25, None) for _ in range(4)]
    with workers(*banks):
        for each in banks:
            assert each.receive() == "ready"
        for each in banks:
            each.pipe.send("go")
        answers = [answer for each in banks for answer in await asyncio.to_thread(each.receive)]
        for each in banks:
            each.join()
        assert [said for failed, said in answers if failed] == []
        assert sorted(int(said) for _, said in answers) == list(range(1, 101))
        assert (await begun.read()).cents == 100
        assert begun.rev == 101
        assert await (await accounts.open()).holder(KIND, begun.handle) is None
    await accounts.close()


@pytest.mark.promise("state.keys")
async def test_a_hundred_calls_with_one_key_over_two_replicas_are_one(url: str) -> None:
    accounts = accounts_in(url)
    begun = await accounts.begin()
    banks = [Worker(pay_at_once, url, begun.handle, 50, "order-1") for _ in range(2)]
    with workers(*banks):
        for each in banks:
            assert each.receive() == "ready"
        for each in banks:
            each.pipe.send("go")
        answers = [answer for each in banks for answer in await asyncio.to_thread(each.receive)]
        for each in banks:
            each.join()
        assert answers == [(False, "1")] * 100
        assert (await begun.read()).calls == 1
    await accounts.close()


@pytest.mark.promise("state.call")
async def test_transfers_of_four_processes_that_are_killed_keep_the_sum_at_any_read(url: str) -> None:
    accounts = accounts_in(url)
    one, other = await accounts.begin(state=Account(cents=500)), await accounts.begin(state=Account(cents=500))
    banks = [Worker(move_for_ever, url, one.handle, other.handle) for _ in range(4)]
    async with bank(accounts) as call:
        with workers(*banks):
            for each in banks:
                assert each.receive() == "ready"
            for each in banks:
                each.pipe.send("go")
            moved = 0
            for killed in banks:
                for _ in range(10):
                    assert await call("total", source_id=one.handle, target_id=other.handle) == (False, "1000")
                    answer = await asyncio.to_thread(killed.receive)
                    assert not answer[0], answer
                await asyncio.sleep(random.uniform(0, 0.02))  # somewhere within a call
                moved += 10 + len(killed.kill())
            assert moved >= 40
        async with asyncio.timeout(patience(20)):  # the turns of the dead are free after their ttl
            failed, said = await call("move", cents=0, source_id=one.handle, target_id=other.handle)
        assert not failed, said
        assert await call("total", source_id=one.handle, target_id=other.handle) == (False, "1000")
    await accounts.close()


@pytest.mark.promise("state.call")
async def test_two_busy_processes_both_get_their_share(url: str) -> None:
    accounts = accounts_in(url)
    begun = await accounts.begin()
    banks = [Worker(pay_for_a_while, url, begun.handle, 1.0) for _ in range(2)]
    with workers(*banks):
        for each in banks:
            assert each.receive() == "ready"
        for each in banks:
            each.pipe.send("go")
        done = [await asyncio.to_thread(each.receive) for each in banks]
        for each in banks:
            each.join()
        assert (await begun.read()).calls == sum(done)
        assert min(done) * 10 >= sum(done), done
    await accounts.close()


@pytest.mark.promise("state.call")
async def test_a_call_that_waits_too_long_is_told_what_to_do_and_nothing_of_it_stays() -> None:
    async with holdfast.open_store("memory:") as store:
        accounts = holdfast.Sessions(Account, store, turn_wait=0.05)
        begun = await accounts.begin()
        async with bank(accounts) as call:
            held = await store.claim(KIND, begun.handle, owner="another process", ttl=60)
            failed, said = await call("pay", account_id=begun.handle)
            assert failed
            assert (
                "other calls had their turn on the session for 0.05 s, and nothing was done; do it again later" in said
            )
            assert "another process" not in said
            await store.release(held)
            assert (await call("pay", account_id=begun.handle)) == (False, "1")


@pytest.mark.promise("state.call")
async def test_a_cancel_while_a_turn_is_taken_leaves_no_claim(url: str) -> None:
    accounts = accounts_in(url)
    store, handles = await accounts.open(), [(await accounts.begin()).handle for _ in range(20)]

    async def taken(handle: str) -> None:
        transaction = Transaction()
        try:
            await transaction.take(accounts.table.store, [(KIND, handle)])
            await asyncio.Event().wait()
        finally:
            await transaction.abandon()

    for turn in range(3):
        taking = [asyncio.ensure_future(taken(handle)) for handle in handles]
        for _ in range(random.randrange(5 * turn + 1)):
            await asyncio.sleep(0)
        for each in taking:
            each.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        assert [await store.holder(KIND, handle) for handle in handles] == [None] * 20
    await accounts.close()


@pytest.mark.promise("state.call")
async def test_a_call_longer_than_the_ttl_keeps_its_turn_and_one_that_lost_it_keeps_nothing() -> None:
    async with holdfast.open_store("memory:") as store:
        accounts = holdfast.Sessions(Account, store, turn_ttl=0.2)
        begun = await accounts.begin()
        async with bank(accounts) as call:
            answers = await asyncio.gather(*(call("pay", account_id=begun.handle, pause=0.5) for _ in range(2)))
            assert sorted(answers) == [(False, "1"), (False, "2")]
            renew = store.renew

            async def lost(*_: object, **__: object) -> None:
                raise holdfast.errors.Conflict("taken over")

            store.renew = lost  # type: ignore[method-assign, assignment]
            failed, said = await call("pay", account_id=begun.handle, pause=0.5)
            assert failed
            assert "longer than its turn could be held: nothing of this call was kept; do it again" in said
            store.renew = renew  # type: ignore[method-assign]
            assert (await begun.read()).cents == 2


@pytest.mark.promise("state.keys")
async def test_results_are_kept_a_day_and_the_oldest_give_way(url: str) -> None:
    from holdfast.state.calls import results

    accounts = accounts_in(url)
    begun, store = await accounts.begin(), await accounts.open()
    async with bank(accounts) as call:
        for number in range(6):
            assert await call("pay", f"k{number}", account_id=begun.handle) == (False, str(number + 1))
        kept = [each for each in (await store.scan(kind=RESULTS)).records if each.id.startswith(begun.handle)]
        assert len(kept) == 6
        assert {each.max_age for each in kept} == {86_400.0}
        await results.trim(store, most=3)
        async with asyncio.timeout(patience(5)):
            while (
                len([each for each in (await store.scan(kind=RESULTS)).records if each.id.startswith(begun.handle)]) > 3
            ):
                await asyncio.sleep(0.01)
        assert await call("pay", "k5", account_id=begun.handle) == (False, "6")
        assert await call("pay", "k0", account_id=begun.handle) == (False, "7")
    await accounts.close()


@pytest.mark.promise("state.call")
def test_waits_grow_end_at_the_deadline_and_make_way_only_where_others_wait() -> None:
    waits = [wait_before_asking(60, None, rounds, 0.5) for rounds in range(40)]
    assert waits == sorted(waits, key=lambda wait: wait or 0)
    assert waits[-1] == LONGEST_WAIT
    assert wait_before_asking(0.0, None, 3, 0.5) is None
    assert wait_before_asking(0.001, 10.0, 30, 1.0) == 0.001
    assert (wait_before_asking(60, 0.05, 40, 1.0) or 1) <= 0.05
    assert give_way(None, True, 1.0) == give_way(0.1, False, 1.0) == give_way(9.0, True, 1.0) == 0.0
    assert give_way(0.1, True, 1.0) > 0
    assert issubclass(Busy, holdfast.errors.Unavailable)
