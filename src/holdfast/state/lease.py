"""A lease: the exclusive right to a long turn on one session, claimed, renewed while it lasts, and released."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from holdfast.core.models import Claim
from holdfast.errors import Busy, HoldfastError
from holdfast.state.calls.session_in_call import SessionInCall
from holdfast.state.calls.stale_turns import lease_owner, release_stale
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.session_record import SessionRecord
from holdfast.stores.base import to_the_end
from holdfast.stores.contract import CLOSE_SECONDS, Store


@asynccontextmanager
async def long_turn(
    session: SessionInCall[Any], ttl: float, on_renewal: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[int]:
    """Hold a lease during the block, with renewal; yields the fence that a write must carry."""
    lease = Lease(session.record, ttl, on_renewal)
    with session.showing():
        fence = await lease.take()
    try:
        with session.showing():
            await session.record.refresh()
        yield fence
    finally:
        await lease.give_back()


class Lease:
    """`fence = await lease.take()`, then `await lease.give_back()`.
    If the process dies, the lease expires after `ttl` s.
    """

    def __init__(
        self, record: SessionRecord[Any], ttl: float, on_renewal: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._record = record
        self._ttl = ttl
        self._on_renewal = on_renewal
        self._held: tuple[Store, Claim, asyncio.Task[None]] | None = None

    async def take(self) -> int:
        """Claim the lease; returns the fence that a write must carry. If cancelled meanwhile, the claim is released."""
        store = await self._record.table.store.open()
        try:
            try:
                claim = await self._claim(store)
            except Busy:
                if not await release_stale(store, [(KIND, self._record.handle)], self._record.table.turn_ttl):
                    raise
                claim = await self._claim(store)
        except Busy as error:  # its text names the holder, which the caller must not see
            raise Busy(
                "another long turn on this session is in progress",
                id=self._record.handle,
                retry_after=error.retry_after or 0.0,
                remedy="wait until it ends, then try again",
            ) from error
        renewing = asyncio.get_running_loop().create_task(self._renew(store, claim), name="renew lease")
        self._held = store, claim, renewing
        return claim.token

    async def _claim(self, store: Store) -> Claim:
        owner = lease_owner(self._ttl)
        claiming = asyncio.ensure_future(store.claim(KIND, self._record.handle, owner=owner, ttl=self._ttl))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await to_the_end(_released(store, claiming))
            raise

    async def give_back(self) -> None:
        """Release it, even if the caller is cancelled meanwhile."""
        if self._held is not None:
            store, claim, renewing = self._held
            renewing.cancel()
            await to_the_end(_released(store, asyncio.gather(renewing, return_exceptions=True), claim))

    async def _renew(self, store: Store, claim: Claim) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            try:
                claim = await store.renew(claim, ttl=self._ttl)
                await self._record.slide(now=True)  # a long turn counts as use
                if self._on_renewal is not None:
                    await self._on_renewal()
            except HoldfastError:
                return  # the commit will fail and report that


async def _released(store: Store, pending: "asyncio.Future[Any]", claim: Claim | None = None) -> None:
    """Release a claim after a pending claim or renewal has finished."""
    with suppress(HoldfastError, TimeoutError):  # then it expires
        async with asyncio.timeout(CLOSE_SECONDS):
            made = await pending
            await store.release(claim or made)
