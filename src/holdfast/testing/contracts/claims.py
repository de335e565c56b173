"""Claims: one owner at a time, growing tokens, fenced commits."""

import asyncio
from dataclasses import replace
from typing import Any

from holdfast.core.models import Claim, Record
from holdfast.errors import Busy, Conflict, UsageError
from holdfast.testing.contracts.given import Contract, Given, contract, refused


class ClaimContract(Contract):
    @contract("store.claim")
    async def test_a_claim_has_one_owner_until_it_runs_out(self, given: Given) -> None:
        store, kind = given.store, given.kind
        mine = await store.claim(kind, "a", owner="me", ttl=10)
        assert mine.expires == given.clock.now() + 10
        given.clock.advance(4)
        error = await refused(Busy, store.claim(kind, "a", owner="you", ttl=10))
        assert abs(error.retry_after - 6) < 0.01
        assert await store.holder(kind, "a") == mine
        given.clock.advance(6)
        assert await store.holder(kind, "a") is None
        yours = await store.claim(kind, "a", owner="you", ttl=10)
        assert yours.token > mine.token
        assert await store.holder(kind, "a") == yours

    @contract("store.claim")
    async def test_renewing_keeps_the_token_and_a_lost_claim_can_not_be_renewed(self, given: Given) -> None:
        store, kind = given.store, given.kind
        mine = await store.claim(kind, "a", owner="me", ttl=10)
        for _ in range(3):
            given.clock.advance(9)
            mine = await store.renew(mine, ttl=10)
        assert await store.holder(kind, "a") == mine
        given.clock.advance(11)
        await refused(Conflict, store.renew(mine, ttl=10))
        await store.claim(kind, "a", owner="you", ttl=10)
        await refused(Conflict, store.renew(mine, ttl=10))

    @contract("store.claim")
    async def test_releasing_frees_it_at_once_and_only_once(self, given: Given) -> None:
        store, kind = given.store, given.kind
        mine = await store.claim(kind, "a", owner="me", ttl=10)
        assert await store.release(mine) is True
        assert await store.release(mine) is False
        yours = await store.claim(kind, "a", owner="you", ttl=10)
        assert await store.release(mine) is False
        assert await store.holder(kind, "a") == yours
        given.clock.advance(10)
        assert await store.release(yours) is False

    @contract("store.claim")
    async def test_the_same_owner_may_claim_again_and_its_older_token_is_void(self, given: Given) -> None:
        store, kind = given.store, given.kind
        first = await store.claim(kind, "a", owner="me", ttl=10)
        second = await store.claim(kind, "a", owner="me", ttl=10)
        assert second.token > first.token
        await refused(Conflict, store.renew(first, ttl=10))
        assert await store.release(first) is False
        assert await store.holder(kind, "a") == second

    @contract("store.fence")
    async def test_a_commit_under_a_held_claim_is_written(self, given: Given) -> None:
        claim = await given.store.claim(given.kind, "a", owner="me", ttl=10)
        record = await given.create(data=1)
        record = await given.store.commit(record.with_data(2), expect=1, fence=claim.token)
        given.clock.advance(5)
        claim = await given.store.renew(claim, ttl=10)
        given.clock.advance(7)
        record = await given.store.commit(record.with_data(3), expect=2, fence=claim.token)
        assert await given.get() == record

    @contract("store.fence")
    async def test_a_paused_owner_that_wakes_after_expiry_is_refused(self, given: Given) -> None:
        record = await given.create(data=1)
        claim = await given.store.claim(given.kind, "a", owner="me", ttl=10)
        given.clock.advance(10)
        error = await refused(Conflict, given.store.commit(record.with_data(2), expect=1, fence=claim.token))
        assert error.actual is None  # a lost claim, not a race of writers
        newer = await given.store.claim(given.kind, "a", owner="you", ttl=10)
        await refused(Conflict, given.store.commit(record.with_data(2), expect=1, fence=claim.token))
        assert await given.get() == record
        await given.store.commit(record.with_data(3), expect=1, fence=newer.token)

    @contract("store.fence")
    async def test_a_released_or_invented_token_is_refused(self, given: Given) -> None:
        record = await given.create()
        claim = await given.store.claim(given.kind, "a", owner="me", ttl=10)
        for wrong in (claim.token + 1, claim.token - 1, 0, -5):
            await refused(Conflict, given.store.commit(record, expect=1, fence=wrong))
        await given.store.release(claim)
        await refused(Conflict, given.store.commit(record, expect=1, fence=claim.token))
        other = await given.store.claim(given.kind, "b", owner="me", ttl=10)
        await refused(Conflict, given.store.commit(record, expect=1, fence=other.token))

    @contract("store.fence")
    async def test_creating_touching_and_ending_are_fenced_too(self, given: Given) -> None:
        store, kind = given.store, given.kind
        old = await store.claim(kind, "a", owner="me", ttl=10)
        given.clock.advance(11)
        await refused(Conflict, store.commit(Record(kind, "a"), expect=0, fence=old.token))
        assert await store.get(kind, "a", dead=True) is None
        new = await store.claim(kind, "a", owner="you", ttl=10)
        await store.commit(Record(kind, "a"), expect=0, fence=new.token)
        await refused(Conflict, store.touch(kind, "a", fence=old.token))
        await refused(Conflict, store.end(kind, "a", fence=old.token))
        await store.touch(kind, "a", fence=new.token)
        assert await store.end(kind, "a", fence=new.token) is True

    @contract("store.claim")
    async def test_renewing_can_not_change_the_owner(self, given: Given) -> None:
        mine = await given.store.claim(given.kind, "a", owner="me", ttl=10)
        renewed = await given.store.renew(replace(mine, owner="forged"), ttl=20)
        assert renewed.owner == "me"
        assert await given.store.holder(given.kind, "a") == renewed

    @contract("store.claim")
    async def test_a_released_claim_stays_released_however_many_renew_it(self, given: Given) -> None:
        for turn in range(30):
            mine = await given.store.claim(given.kind, f"c{turn}", owner="me", ttl=60)
            calls = [given.store.renew(mine, ttl=60) for _ in range(8)]
            calls.insert(turn % 8, given.store.release(mine))  # type: ignore[arg-type]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert True in results
            assert all(isinstance(r, Claim | Conflict | bool) for r in results), results
            assert await given.store.holder(given.kind, f"c{turn}") is None

    @contract("store.bad-input")
    async def test_a_fence_must_be_a_token(self, given: Given) -> None:
        record = await given.create()
        claim = await given.store.claim(given.kind, "a", owner="me", ttl=10)
        bad: Any
        for bad in (claim, "1", 1.5, True, 2**63):
            await refused(UsageError, given.store.commit(record, expect=1, fence=bad))
            await refused(UsageError, given.store.touch(given.kind, "a", fence=bad))
            await refused(UsageError, given.store.end(given.kind, "a", fence=bad))
        await refused(UsageError, given.store.commit(record, expect=2**63))

    @contract("store.fence")
    async def test_tokens_grow_even_after_claims_were_reaped(self, given: Given) -> None:
        old = await given.store.claim(given.kind, "a", owner="me", ttl=1)
        given.clock.advance(2)
        await given.store.reap()
        new = await given.store.claim(given.kind, "a", owner="me", ttl=1)
        assert new.token > old.token

    @contract("store.claim")
    async def test_claims_of_different_things_are_independent(self, given: Given) -> None:
        store, kind = given.store, given.kind
        claims = [await store.claim(kind, id, owner=f"owner {id}", ttl=10) for id in ("a", "b", "c")]
        assert len({claim.token for claim in claims}) == 3
        async with given.again() as other:
            for claim in claims:
                assert await other.holder(kind, claim.id) == claim
                await refused(Busy, other.claim(kind, claim.id, owner="else", ttl=1))
