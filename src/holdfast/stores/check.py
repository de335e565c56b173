"""A store's self-test: short checks that an operator can run on a live store.

It touches nothing but its own keys: they stand under a random kind and are removed at the end.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from holdfast.core.models import Notice, Record, Write
from holdfast.core.values import JSON
from holdfast.errors import Busy, Conflict, Ended, HoldfastError
from holdfast.stores.contract import Store
from holdfast.stores.update import update

STEP_SECONDS = 10.0  # a healthy store needs milliseconds for each step
READ_AT_ONCE = 500  # records of a page, under one deadline each
SHOWN = 5  # damaged rows named in the report
SCRATCH_SECONDS = 600.0  # what an interrupted check could not remove


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of the report. `why` is empty if it passed."""

    name: str
    seconds: float
    why: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


class _Failed(Exception):
    """The store answered, and the answer was wrong."""


async def check_store(store: Store) -> AsyncGenerator[Checked, None]:
    """Run every step, also after one failed, and clean up."""
    kind = f"holdfast-check-{secrets.token_hex(6)}"
    cleaned = False
    try:
        for name, step in _STEPS:
            start = time.perf_counter()
            why = ""
            try:
                async with asyncio.timeout(None if step is _read_everything else STEP_SECONDS):
                    await step(store, kind)
                cleaned = cleaned or step is _clean_up
            except TimeoutError:
                why = f"no answer within {STEP_SECONDS:g} s"
            except (HoldfastError, _Failed) as error:
                why = str(error)
            yield Checked(name, time.perf_counter() - start, why)
    finally:
        if not cleaned:  # left early; what can't be removed now expires by itself
            with suppress(HoldfastError, _Failed, TimeoutError):
                async with asyncio.timeout(STEP_SECONDS):
                    await _clean_up(store, kind)


def _scratch(kind: str, id: str, data: JSON = None, idle: float = SCRATCH_SECONDS) -> Record:
    return Record(kind, id, data=data, idle=idle)


def _expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise _Failed(otherwise)


async def _expect_refusal(error: type[HoldfastError], call: Awaitable[object], otherwise: str) -> None:
    try:
        await call
    except error:
        return
    raise _Failed(otherwise)


async def _round_trip(store: Store, kind: str) -> None:
    data: JSON = {"text": "ä 日本 😀", "big": 2**70, "nested": [[], {}, None, 1.5]}
    made = await store.commit(_scratch(kind, "a", data), expect=0)
    _expect(await store.get(kind, "a") == made, "what was written is not what is read")


async def _compare_and_swap(store: Store, kind: str) -> None:
    record = await store.commit(_scratch(kind, "cas"), expect=0)
    await store.commit(record, expect=1)
    await _expect_refusal(Conflict, store.commit(record, expect=1), "a stale write was taken")


async def _concurrent_edits(store: Store, kind: str) -> None:
    await store.commit(_scratch(kind, "count", 0), expect=0)

    def plus_one(data: JSON) -> JSON:
        return cast("int", data) + 1

    await asyncio.gather(*(update(store, kind, "count", plus_one) for _ in range(20)))
    record = await store.get(kind, "count")
    _expect(record is not None and record.data == 20, f"of 20 concurrent edits {record and record.data} are left")


async def _several_at_once(store: Store, kind: str) -> None:
    names = [(kind, "left"), (kind, "right")]
    turns = await store.begin_turns(names, owner="check", ttl=30)
    await _expect_refusal(Busy, store.begin_turn(kind, "right", owner="other", ttl=30), "two owners have one turn")
    fresh = [Write(_scratch(kind, id, 0), expect=0) for _, id in names]
    made = await store.commit_all(fresh, release=[turn.claim for turn in turns])
    _expect(await store.get_all(names) == made, "what was written together is not what is read together")
    _expect(await store.holder(kind, "left") is None, "a claim outlived the commit that releases it")
    torn = [Write(made[0].with_data(1), expect=1), Write(made[1].with_data(1), expect=9)]
    await _expect_refusal(Conflict, store.commit_all(torn), "a stale write among several was taken")
    _expect(await store.get_all(names) == made, "a refused commit of several was written in part")


async def _log(store: Store, kind: str) -> None:
    record = await store.commit(_scratch(kind, "log"), expect=0, entries=["first"])
    await store.commit(record, expect=1, entries=["second", "third"])
    log = await store.log(kind, "log")
    _expect([(e.seq, e.data) for e in log] == [(1, "first"), (2, "second"), (3, "third")], f"the log reads {log}")


async def _expiry(store: Store, kind: str) -> None:
    await store.commit(_scratch(kind, "brief", idle=0.05), expect=0)
    while await store.get(kind, "brief") is not None:
        await asyncio.sleep(0.01)


async def _claims(store: Store, kind: str) -> None:
    record = await store.commit(_scratch(kind, "claimed"), expect=0)
    first = await store.claim(kind, "claimed", owner="one", ttl=30)
    await _expect_refusal(Busy, store.claim(kind, "claimed", owner="two", ttl=30), "two owners hold one claim")
    await store.release(first)
    second = await store.claim(kind, "claimed", owner="two", ttl=30)
    _expect(second.token > first.token, "fencing tokens do not grow")
    await _expect_refusal(Conflict, store.commit(record, expect=1, fence=first.token), "a stale token was taken")
    await store.commit(record, expect=1, fence=second.token)
    await store.release(second)


async def _end(store: Store, kind: str) -> None:
    record = await store.commit(_scratch(kind, "ended"), expect=0)
    await store.end(kind, "ended")
    _expect(await store.get(kind, "ended") is None, "an ended record is still there")
    await _expect_refusal(Ended, store.commit(record, expect=1), "a late write revived an ended record")


async def _notices(store: Store, kind: str) -> None:
    async with store.listen(kind) as notices:
        await store.publish(kind, {"n": 1})
        found = await anext(notices)
        _expect(found == Notice(kind, {"n": 1}), f"received {found}")


async def _read_everything(store: Store, kind: str) -> None:
    """Read every record of the store, not only those of the check."""
    corrupt: list[str] = []
    after = None
    while True:
        async with asyncio.timeout(STEP_SECONDS):
            page = await store.scan(state=None, after=after, limit=READ_AT_ONCE)
        corrupt += [str(error) for error in page.corrupt]
        after = page.next
        if after is None:
            break
    more = f"; and {len(corrupt) - SHOWN} more" if len(corrupt) > SHOWN else ""
    _expect(not corrupt, f"{len(corrupt)} rows can't be read: {'; '.join(corrupt[:SHOWN])}{more}")


async def _clean_up(store: Store, kind: str) -> None:
    after = None
    while True:
        page = await store.scan(kind=kind, state=None, after=after)
        for record in page.records:
            await store.end(kind, record.id)
        if page.next is None:
            break
        after = page.next
    await store.reap(kind=kind, ended_for=0.0)
    left = await store.count(kind=kind, state=None)
    _expect(left == 0, f"{left} scratch records are left under the kind {kind}")


_STEPS: tuple[tuple[str, Callable[[Store, str], Awaitable[None]]], ...] = (
    ("write and read back", _round_trip),
    ("refuse a stale write", _compare_and_swap),
    ("keep 20 concurrent edits", _concurrent_edits),
    ("write several or none", _several_at_once),
    ("append to a log in order", _log),
    ("expire by the store's clock", _expiry),
    ("claim once, fence stale owners", _claims),
    ("end for good", _end),
    ("deliver a notice", _notices),
    ("scan, reap and clean up", _clean_up),
    ("read every record", _read_everything),
)
