"""Where the gateway keeps sessions at servers: in the record of a client's session, or in one of several clients'.

It owns the shape of what is kept, and what is left of it when a session ends while its clients go on: the mark that a
loss has still to be reported. It refuses what was kept of another server under the same name, and says so.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, cast

from holdfast.core.handshake import Saved
from holdfast.core.models import Claim, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Busy, Conflict, CorruptRecord, Ended, NotFound, SessionExpired
from holdfast.links.memory.store import KIND as LINKS
from holdfast.links.memory.store import MemoryEntry, StoreMemory
from holdfast.stores.contract import Store


class BackendMemory(Protocol):
    """What a backend's links need beyond `Memory`."""

    leaves_loss: bool
    """Its clients go on without the session that is forgotten next: what it kept must be reported as lost."""

    async def unchanged(self) -> bool:
        """Has nobody but us saved here since we did?"""
        ...


class Holder(Protocol):
    """A session whose record has a place for each backend."""

    key: str
    record: Record | None
    loaded: set[str]

    @property
    def store(self) -> Store: ...
    @property
    def owner(self) -> str: ...
    @property
    def backends(self) -> dict[str, Any]: ...
    @property
    def goes_on(self) -> bool: ...
    async def read(self) -> None: ...
    async def write(self, change: Callable[[dict[str, JSON]], None]) -> None: ...


class SessionMemory:
    """A link's session, kept in the gateway session's record. See `Memory`.

    `n` counts what was saved for a backend, so that two processes can't both save; `at` says of which server; `lost`
    that there was a session, is none now, and nobody was told.
    """

    touch_every: float | None = None

    def __init__(self, session: Holder, backend: str, at: str) -> None:
        self._session = session
        self._backend = backend
        self._at = at
        self._claim: Claim | None = None
        self._number = -1
        self.leaves_loss = False

    @property
    def _entry(self) -> dict[str, Any]:
        return members(self._session.backends.get(self._backend))

    async def load(self) -> MemoryEntry:
        session = self._session
        if self._backend in session.loaded and session.record is not None:
            await session.read()  # a later handshake: another process may have begun a newer session
        session.loaded.add(self._backend)
        entry = self._entry
        raw = entry.get("saved")
        try:
            saved = None if raw is None else Saved.from_json(raw)
        except ValueError as error:
            raise CorruptRecord(f"the saved session at {self._backend!r} is not one: {error}") from error
        lost = entry.get("lost") is True
        if saved is not None and entry.get("at") not in (None, self._at):
            lost = lost or saved.session is not None or saved.unreported_loss or "program" in entry
            saved = None
        return MemoryEntry(saved, entry.get("n", 0), lost)

    async def save(self, saved: Saved, token: object) -> object:
        self._number = await self._put(saved.to_json(), token if isinstance(token, int) else 0, False)
        return self._number

    async def _put(self, saved: JSON, number: int, lost: bool) -> int:
        def change(data: dict[str, JSON]) -> None:
            backends = cast("dict[str, Any]", data.setdefault("backends", {}))
            now = members(backends.get(self._backend)).get("n", 0)
            if now != number:
                raise Conflict(f"another link saved a session at {self._backend!r} first", expect=number, actual=now)
            entry = {"n": number + 1, "saved": saved, "at": self._at}
            if lost:
                entry["lost"] = True
            if members(saved).get("session") is None and saved is not None:
                entry["program"] = True
            backends[self._backend] = entry

        await self._session.write(change)
        return number + 1

    async def unchanged(self) -> bool:
        await self._session.read()
        return self._entry.get("n", 0) == self._number

    async def forget(self) -> None:
        entry = self._entry
        had = entry.get("saved") is not None
        if not self._session.goes_on or entry.get("at") != self._at or not had:
            return  # the whole record ends; or another server's session stands here by now
        await self._put(None, entry.get("n", 0), self.leaves_loss)

    async def touch(self) -> None:
        return

    async def claim_stream(self, seconds: float) -> bool:
        session = self._session
        id = f"{session.key}/{self._backend}"
        try:
            if self._claim is not None:
                self._claim = await session.store.renew(self._claim, ttl=seconds)
            else:
                self._claim = await session.store.claim("stream", id, owner=session.owner, ttl=seconds)
        except Busy:
            return False
        except Conflict:
            self._claim = None
            return False
        return True

    async def release_stream(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await self._session.store.release(claim)

    async def close(self) -> None:
        await self.release_stream()


class SharedMemory(StoreMemory):
    """A session that several clients share, in a record of its own: a principal's, or everybody's.

    What was lost is remembered for `remember` seconds, which is longer than the session itself would have been.
    """

    def __init__(
        self,
        store: Store,
        id: str,
        at: str,
        *,
        principal: Principal,
        idle: float | None = None,
        touch_every: float | None = None,
        remember: float | None = None,
    ) -> None:
        super().__init__(store, id, principal=principal, idle=idle, touch_every=touch_every)
        self._at = at
        self._remember = remember
        self._rev = 0
        """As last read or written by us."""
        self.leaves_loss = False

    async def load(self) -> MemoryEntry:
        record = await self._store.get(LINKS, self._id)
        data = None if record is None else members(record.data)
        self._rev = 0 if record is None else record.rev
        if record is None or record.principal != self._principal or not data:
            return MemoryEntry(None, self._rev)
        if data.get("lost") is True:
            return MemoryEntry(None, record.rev, True)
        kept = await super().load()
        saved = kept.saved
        if saved is not None and data.get("at") not in (None, self._at):
            return MemoryEntry(None, kept.token, True)
        return kept

    async def save(self, saved: Saved, token: object) -> object:
        data = {**saved.to_json(), "at": self._at}
        record = Record(LINKS, self._id, self._principal, data, idle=self._idle)
        self._rev = (await self._store.commit(record, expect=token if isinstance(token, int) else 0)).rev
        return self._rev

    async def unchanged(self) -> bool:
        before = self._rev
        return (await self.load()).token == before

    async def forget(self) -> None:
        record = await self._store.get(LINKS, self._id)
        if record is not None and record.data is not None and record.rev == self._rev:  # else another's, by now
            mark = replace(record.with_data({"lost": True}), idle=self._remember)
            with suppress(Conflict, Ended, NotFound, SessionExpired):  # another process has begun the next session
                await self._store.commit(mark if self.leaves_loss else record.with_data(None), expect=record.rev)
        await self.release_stream()


def principal_link(backend: str, principal: str) -> str:
    """The name of the record of a principal's session at a backend."""
    return f"gateway/{backend}/principal/{principal}"
