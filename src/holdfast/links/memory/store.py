"""The contract of a memory, which stores a link's session, and a memory on any store.

A memory does compare-and-swap between links that share one session, and decides which of them opens the server's
stream. It raises for what it can't read; the link reports that and continues without it.
"""

import secrets
from contextlib import suppress
from typing import NamedTuple, Protocol

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, Saved, legal_session_id
from holdfast.core.models import ANONYMOUS, BackendSessionId, Claim, Principal, Record
from holdfast.core.values import JSON
from holdfast.errors import Busy, Conflict, Ended, NotFound, SessionExpired
from holdfast.stores.contract import Store

KIND = "link"  # the kind of a link's record in a store
FIRST_WITH_IDS = "2025-03-26"  # the first version that has session ids
FINDER = Principal("")  # of a saved session without a principal: any link that finds it may use it


class MemoryEntry(NamedTuple):
    """A saved session, and the token that is needed to replace it."""

    saved: Saved | None
    token: object
    lost: bool = False
    """State was lost with an earlier session and not reported: the next session reports it."""
    unreadable: str | None = None
    """Why what is stored is not a saved session. It is reported, and the next save replaces it."""


class Memory(Protocol):
    """Loads and saves one session.
    If a method raises or takes longer than 15 seconds, the call does not fail; it continues without the memory, and a
    `MemoryFailed` is reported.
    """

    async def load(self) -> MemoryEntry:
        """Return what is saved, if anything, with the token for the next save."""
        ...

    async def save(self, saved: Saved, token: object) -> object:
        """Replace what `token` identifies; returns the new token. Raises `Conflict` if another save came first."""
        ...

    async def forget(self) -> None:
        """Remove the session, which was ended; another may be saved under the same name."""
        ...

    @property
    def touch_every(self) -> float | None:
        """The interval in seconds at which `touch` is called for a session in use, so that it does not expire;
        None: never.
        """
        ...

    async def touch(self) -> None:
        """Record that the session is in use."""
        ...

    async def claim_stream(self, seconds: float) -> bool:
        """Claim the server's own stream for `seconds`.
        Returns True if this link alone may read it; call again to extend the claim.
        """
        ...

    async def release_stream(self) -> None:
        """Release the claim on the server's own stream."""
        ...

    async def close(self) -> None:
        """Close what the memory itself opened; a store that was given stays open."""
        ...


def bare(session: str) -> Saved:
    """A saved session of which only the id is known:
    of 2025, in the oldest version that has ids, which every server of that era accepts. Any link that finds it may use
    it.
    """
    info = {"name": "unknown", "version": ""}
    handshake = {"protocolVersion": FIRST_WITH_IDS, "capabilities": {}, "serverInfo": info}
    return Saved(BackendSessionId(session), Handshake(Era.Y2025, FIRST_WITH_IDS, handshake), Ours(info), FINDER)


class StoreMemory:
    """A memory in a record of a store, for any number of processes."""

    def __init__(
        self,
        store: Store,
        id: str,
        *,
        principal: Principal = ANONYMOUS,
        idle: float | None = None,
        touch_every: float | None = None,
    ) -> None:
        self._store = store
        self._id = id
        self._principal = principal
        self._idle = idle
        self._touch_every = touch_every
        self._owner = f"link-{secrets.token_hex(8)}"
        self._claim: Claim | None = None

    async def load(self) -> MemoryEntry:
        record = await self._store.get(KIND, self._id)
        if record is None:
            return MemoryEntry(None, 0)
        if record.principal != self._principal:
            # Another principal's session must not be visible; the following save will be refused.
            return MemoryEntry(None, record.rev)
        if record.data is None:
            return MemoryEntry(None, record.rev)
        if isinstance(record.data, str) and legal_session_id(record.data):
            return MemoryEntry(bare(record.data), record.rev)
        try:
            return MemoryEntry(Saved.from_json(record.data), record.rev)
        except ValueError as error:
            what = f"the record {self._id!r} is not a saved session and will be replaced: {error}"
            return MemoryEntry(None, record.rev, lost=True, unreadable=what)

    async def save(self, saved: Saved, token: object) -> object:
        expect = token if isinstance(token, int) else 0
        data: JSON = saved.to_json()
        record = Record(KIND, self._id, self._principal, data, idle=self._idle)
        return (await self._store.commit(record, expect=expect)).rev

    async def forget(self) -> None:
        # Not `end`: its tombstone would prevent the next session of the same name.
        record = await self._store.get(KIND, self._id)
        if record is not None and record.data is not None and record.principal == self._principal:
            with suppress(Conflict, Ended, NotFound, SessionExpired):  # another link saved, or it is gone
                await self._store.commit(record.with_data(None), expect=record.rev)
        await self.release_stream()

    @property
    def touch_every(self) -> float | None:
        return self._touch_every or (None if self._idle is None else self._idle / 3)

    async def touch(self) -> None:
        with suppress(Ended, NotFound, SessionExpired):
            await self._store.touch(KIND, self._id)

    async def claim_stream(self, seconds: float) -> bool:
        if self._claim is not None:
            try:
                self._claim = await self._store.renew(self._claim, ttl=seconds)
                return True
            except (Conflict, Ended):
                self._claim = None
        try:
            self._claim = await self._store.claim(KIND, self._id, owner=self._owner, ttl=seconds)
        except Busy:
            return False
        return True

    async def release_stream(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await self._store.release(claim)

    async def close(self) -> None:
        await self.release_stream()
