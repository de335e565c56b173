"""The suite is worth something: stores that break the contract in known ways fail it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.stores import JSON, Claim, Record, Write
from holdfast.stores.codec import Codec
from holdfast.stores.memory import MemoryStore
from holdfast.testing import StoreSuite


class LastWriteWins(MemoryStore):
    """What most session layers do."""

    async def commit(self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None):
        current = await self.get(record.kind, record.id)
        return await super().commit(record, expect=current.rev if current else 0, entries=entries, fence=fence)


class Undead(MemoryStore):
    """An end that a late write undoes."""

    async def end(self, kind: str, id: str) -> bool:
        return self._rows.pop((kind, id), None) is not None


class NoFence(MemoryStore):
    async def commit(self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None):
        return await super().commit(record, expect=expect, entries=entries)


class ForgetsTheLog(MemoryStore):
    async def commit(self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None):
        return await super().commit(record, expect=expect, entries=entries[:1], fence=fence)


class NeverExpires(MemoryStore):
    async def get(self, kind: str, id: str, *, dead: bool = False):
        record = await super().get(kind, id, dead=True)
        return record if dead or record is None or not record.ended or record.expired else None


class SharedClaims(MemoryStore):
    async def claim(self, kind: str, id: str, *, owner: str, ttl: float):
        self._claims.pop((kind, id), None)
        return await super().claim(kind, id, owner=owner, ttl=ttl)


class DeafListeners(MemoryStore):
    async def publish(self, topic: str, data: JSON) -> None:
        if data is not None:
            await super().publish(topic, data)


class ReapsEveryKind(MemoryStore):
    async def reap(self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = 86400.0):
        return await super().reap(expired_for=expired_for, ended_for=ended_for)


class ReapsHeldClaims(MemoryStore):
    async def reap(self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = 86400.0):
        self._claims.clear()
        return await super().reap(kind=kind, expired_for=expired_for, ended_for=ended_for)


class CreatesUnfenced(MemoryStore):
    async def commit(self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None):
        return await super().commit(record, expect=expect, entries=entries, fence=fence if expect else None)


class TouchForEver(MemoryStore):
    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        await super().touch(kind, id, fence=fence)
        self._rows[kind, id] = replace(self._rows[kind, id], max_age=None)


class CountsNothingWithoutAKind(MemoryStore):
    async def count(self, *, kind: str | None = None, principal: str | None = None, state: Any = "live") -> int:
        return await super().count(kind=kind, principal=principal, state=state) if kind else 0


class DropsInSilence(MemoryStore):
    async def publish(self, topic: str, data: JSON) -> None:
        if data != 395:
            await super().publish(topic, data)


class SharesData(MemoryStore):
    async def commit(self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None):
        await super().commit(record, expect=expect, entries=entries, fence=fence)
        return replace(await super().get(record.kind, record.id), data=record.data)


class WritesOneByOne(MemoryStore):
    """What a loop around `commit` does."""

    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()):
        made = [await self.commit(w.record, expect=w.expect, entries=w.entries, fence=w.fence) for w in writes]
        for claim in release:
            await self.release(claim)
        return made


class ForgetsToRelease(MemoryStore):
    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()):
        return await super().commit_all(writes, release=release if not writes else ())


class ReleasesWhatWasLost(MemoryStore):
    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()):
        held = [claim for claim in release if await self.holder(claim.kind, claim.id) == claim]
        return await super().commit_all(writes, release=held)


class ReadsOneByOne(MemoryStore):
    async def get_all(self, keys: Sequence[tuple[str, str]], *, dead: bool = False):
        return [await self.get(kind, id, dead=dead) for kind, id in keys]


class ClaimsOneByOne(MemoryStore):
    async def begin_turns(self, keys: Sequence[tuple[str, str]], **given: Any):
        return [(await super(ClaimsOneByOne, self).begin_turns([key], **given))[0] for key in keys]


class ReadsBeforeItClaims(MemoryStore):
    async def begin_turns(self, keys: Sequence[tuple[str, str]], *, dead: bool = False, **given: Any):
        records = await self.get_all(keys, dead=dead)
        await asyncio.sleep(0)
        turns = await super().begin_turns(keys, dead=dead, **given)
        return [replace(turn, record=record) for turn, record in zip(turns, records, strict=True)]


class LeavesCancelledClaims(MemoryStore):
    async def begin_turns(self, keys: Sequence[tuple[str, str]], **given: Any):
        turns = await super().begin_turns(keys, **given)
        await asyncio.sleep(0)
        return turns


class ReleasesInSilence(MemoryStore):
    async def begin_turns(self, keys: Sequence[tuple[str, str]], *, notify: bool = False, **given: Any):
        return await super().begin_turns(keys, **given)


class NotifiesAlways(MemoryStore):
    async def release(self, claim: Claim) -> bool:
        self._awaited.add((claim.kind, claim.id))
        return await super().release(claim)


def _fails(store: Callable[..., MemoryStore], name: str) -> bool:
    class Suite(StoreSuite):
        def open(self, clock: Clock) -> Any:
            if hasattr(self, "store"):
                return nullcontext(self.store)
            self.store = store(clock=clock, codec=Codec(1024 * 1024))
            return self.store

    try:
        getattr(Suite(), name)()
    except (Exception, asyncio.CancelledError):
        return True
    return False


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.testing.contracts import given, notices

    monkeypatch.setattr(given, "DEADLINE", 2.0)
    monkeypatch.setattr(notices, "WAIT", 0.5)


@pytest.mark.promise("store.suite")
@pytest.mark.parametrize(
    ("store", "caught_by"),
    [
        (LastWriteWins, "test_a_stale_commit_is_a_conflict_that_names_both_revs"),
        (Undead, "test_late_write_does_not_resurrect_an_ended_session"),
        (NoFence, "test_a_paused_owner_that_wakes_after_expiry_is_refused"),
        (ForgetsTheLog, "test_entries_are_numbered_without_gaps_across_commits"),
        (NeverExpires, "test_an_idle_record_expires_and_touch_slides_it"),
        (SharedClaims, "test_a_claim_has_one_owner_until_it_runs_out"),
        (ReapsEveryKind, "test_reap_keeps_to_its_kind_or_takes_all_and_leaves_held_claims"),
        (ReapsHeldClaims, "test_reap_keeps_to_its_kind_or_takes_all_and_leaves_held_claims"),
        (CreatesUnfenced, "test_creating_touching_and_ending_are_fenced_too"),
        (TouchForEver, "test_nothing_extends_the_maximum_age"),
        (CountsNothingWithoutAKind, "test_without_a_filter_every_kind_is_seen"),
        (DropsInSilence, "test_a_listener_that_falls_behind_hears_all_or_learns_of_the_gap"),
        (SharesData, "test_data_belongs_to_whoever_read_it"),
        (WritesOneByOne, "test_one_refusal_refuses_all_and_names_the_record"),
        (WritesOneByOne, "test_the_sum_of_two_records_is_the_same_at_every_read"),
        (ForgetsToRelease, "test_claims_are_released_with_the_commit_or_not_at_all"),
        (ReleasesWhatWasLost, "test_a_commit_rests_on_every_claim_that_it_releases"),
        (ReadsOneByOne, "test_the_sum_of_two_records_is_the_same_at_every_read"),
        (ClaimsOneByOne, "test_several_turns_begin_together_or_none_does"),
        (ReadsBeforeItClaims, "test_turns_on_crossing_names_never_overlap_and_all_are_had"),
        (LeavesCancelledClaims, "test_a_cancelled_turn_leaves_no_claim"),
        (ReleasesInSilence, "test_a_release_is_published_if_someone_asked_for_it"),
        (NotifiesAlways, "test_a_release_is_published_if_someone_asked_for_it"),
        (DeafListeners, "test_a_listener_hears_its_topics_in_order_and_no_others"),
    ],
)
def test_a_store_that_breaks_its_contract_fails(store: type[MemoryStore], caught_by: str) -> None:
    assert not _fails(MemoryStore, caught_by), "the test must be one that a good store passes"
    assert _fails(store, caught_by)


@pytest.mark.promise("store.suite")
def test_a_subclass_without_open_is_told_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="must say how to open its store"):
        StoreSuite().test_an_unknown_record_is_none()


@pytest.mark.promise("store.suite")
def test_the_public_names_are_public() -> None:
    for name in ("open_store", "Store", "Record", "Claim", "LogEntry", "Notice", "Gap", "Page"):
        assert name in holdfast.stores.__all__
