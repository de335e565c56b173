"""How many sessions one caller may have: counted and begun as one step, also between replicas."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from holdfast.core.models import ANONYMOUS, Claim, Principal
from holdfast.core.records import Key
from holdfast.errors import Busy, HoldfastError, LimitReached
from holdfast.state.storage.entries import KIND
from holdfast.stores.base import to_the_end
from holdfast.stores.contract import CLOSE_SECONDS, Store
from holdfast.stores.update import UPDATE_SECONDS

COUNTING = "state-room"  # claims of those who count and begin; a call takes turns by name, and this one is the last
COUNTING_SECONDS = 15.0  # a claim lasts if its holder dies: longer than beginning a session may take
AGAIN_SECONDS = 0.02  # between two tries to get it
ANONYMOUS_SESSIONS = 10_000  # of all anonymous callers together, where there is a quota: nobody tells them apart


@asynccontextmanager
async def room(
    store: Store, table: str, principal: Principal, quota: int, count: Callable[[], Awaitable[int]]
) -> AsyncGenerator[None]:
    """Begin a session inside the block, alone; `LimitReached` if the caller has its `quota`, as `count` finds."""
    claim = await _alone(store, counting(table, principal)[1])
    try:
        await check(store, principal, quota, count)
        yield
    finally:
        await to_the_end(_released(store, claim))


def counting(table: str, principal: Principal) -> Key:
    """The name of the turn on beginning sessions of this caller."""
    return COUNTING, hashlib.sha256(f"{table}\0{principal}".encode()).hexdigest()[:40]


async def check(
    store: Store, principal: Principal, quota: int, count: Callable[[], Awaitable[int]], begun: int = 0
) -> None:
    """Raise `LimitReached` if the caller has its `quota`; `begun` sessions are not in the store yet."""
    limit = ANONYMOUS_SESSIONS if principal == ANONYMOUS else quota
    found = begun + await store.count(kind=KIND, principal=principal)  # of all kinds: seldom too many
    if found >= limit and principal != ANONYMOUS:
        found = await count()
    if found >= limit:
        whose = "all anonymous callers" if principal == ANONYMOUS else "this caller"
        raise LimitReached(
            f"{found} of {limit} sessions of {whose} are open",
            limit=limit,
            actual=found,
            remedy="end one that is done" if principal != ANONYMOUS else "use one that was begun, or do it again later",
        )


async def _alone(store: Store, id: str) -> Claim:
    deadline = time.monotonic() + UPDATE_SECONDS
    owner = f"quota-{secrets.token_hex(8)}"
    while True:
        try:
            turn = await store.begin_turn(COUNTING, id, owner=owner, ttl=COUNTING_SECONDS)
        except Busy as error:
            if time.monotonic() > deadline:
                raise Busy(
                    f"others were beginning sessions for {UPDATE_SECONDS:g} s", remedy="do it again later"
                ) from error
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return turn.claim


async def _released(store: Store, claim: Claim) -> None:
    with suppress(HoldfastError, TimeoutError):  # then it runs out by itself
        async with asyncio.timeout(CLOSE_SECONDS):
            await store.release(claim)
