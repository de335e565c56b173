"""Where the gateway keeps sessions at servers: in the record of a client's session, or in a record that clients share.

It owns the form of what is kept, and the mark that stays when a session ends while its clients go on: a loss has still
to be reported. What was kept of another server under the same name is reported as lost.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, cast

from holdfast.core.handshake import Saved
from holdfast.core.models import Claim, Principal, Record
from holdfast.core.values import JSON, encode, members
from holdfast.errors import Busy, Conflict, CorruptRecord, Ended, NotFound, SessionExpired, UnstorableValue
from holdfast.links.codec import weight
from holdfast.links.memory.store import KIND as LINKS
from holdfast.links.memory.store import MemoryEntry, StoreMemory
from holdfast.stores.contract import Store

GRACE = 3_600.0  # seconds that a record outlives its session's end, for the process that must end it at the server
REMEMBERED = 86_400.0  # seconds that the loss of an expired session can be reported: its caller comes back the next day


HANDSHAKE_BYTES = 16 * 1024  # of one server's handshake, in memory: a session's record has those of all its servers
_NEEDED = ("tools", "prompts", "resources", "completions", "logging", "tasks")
"""Capabilities that a link which goes on with a session looks at."""


def storable(saved: Saved) -> Saved:
    """With what is needed of the server's handshake, where the whole is too large for a record or can't be stored."""
    handshake = saved.handshake
    try:
        if weight(dict(handshake.result)) <= HANDSHAKE_BYTES:
            encode(dict(handshake.result))
            return saved
    except UnstorableValue:
        pass
    kept = {
        name: {each: value for each, value in members(settings).items() if isinstance(value, bool)}
        for name, settings in handshake.capabilities.items()
        if name in _NEEDED and weight(settings) <= HANDSHAKE_BYTES
    }
    return replace(saved, handshake=replace(handshake, result={"capabilities": kept}))


class BackendMemory(Protocol):
    """What a backend's links need beyond `Memory`."""

    def leave_loss(self, lost: bool) -> None:
        """Whether clients go on without the session that is forgotten next: its loss must then be reported."""
        ...

    async def unchanged(self) -> bool:
        """Has no other process saved here since this one did?"""
        ...


class SessionStorage(Protocol):
    """The record of a client's session, which has a place for each backend."""

    @property
    def key(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def owner(self) -> str: ...
    @property
    def backends(self) -> Mapping[str, Any]: ...
    async def read(self) -> None: ...
    async def read_for(self, backend: str) -> None:
        """Read it again for a later handshake with a backend: another process may have begun a newer session there."""
        ...

    async def write(self, change: Callable[[dict[str, JSON]], None]) -> None: ...


class SessionMemory:
    """A link's session, kept in the gateway session's record. See `Memory`.

    `n` counts what was saved for a backend, so that two processes can't both save; `at` says of which server; `lost`
    says that there was a session, that there is none now, and that the loss was not reported. `goes_on` says whether
    the client's session continues, here or after a rest.
    """

    touch_every: float | None = None

    def __init__(self, record: SessionStorage, backend: str, at: str, goes_on: Callable[[], bool]) -> None:
        self._record = record
        self._goes_on = goes_on
        self._backend = backend
        self._at = at
        self._claim: Claim | None = None
        self._number = -1
        self._leaves_loss = False

    def leave_loss(self, lost: bool) -> None:
        self._leaves_loss = lost

    @property
    def _entry(self) -> dict[str, Any]:
        return members(self._record.backends.get(self._backend))

    async def load(self) -> MemoryEntry:
        await self._record.read_for(self._backend)
        entry = self._entry
        raw = entry.get("saved")
        try:
            saved = None if raw is None else Saved.from_json(raw)
        except ValueError as error:
            raise CorruptRecord(f"the saved session at {self._backend!r} can't be read: {error}") from error
        lost = entry.get("lost") is True
        if saved is not None and entry.get("at") not in (None, self._at):
            lost = lost or saved.session is not None or saved.unreported_loss or "program" in entry
            saved = None
        return MemoryEntry(saved, entry.get("n", 0), lost)

    async def save(self, saved: Saved, token: object) -> object:
        self._number = await self._put(storable(saved).to_json(), token if isinstance(token, int) else 0, False)
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

        await self._record.write(change)
        return number + 1

    async def unchanged(self) -> bool:
        await self._record.read()
        return self._entry.get("n", 0) == self._number

    async def forget(self) -> None:
        entry = self._entry
        had = entry.get("saved") is not None
        if not self._goes_on() or entry.get("at") != self._at or not had:
            return  # the whole record ends; or another server's session is here by now
        await self._put(None, entry.get("n", 0), self._leaves_loss)

    async def touch(self) -> None:
        return

    async def claim_stream(self, seconds: float) -> bool:
        record = self._record
        id = f"{record.key}/{self._backend}"
        try:
            if self._claim is not None:
                self._claim = await record.store.renew(self._claim, ttl=seconds)
            else:
                self._claim = await record.store.claim("stream", id, owner=record.owner, ttl=seconds)
        except Busy:
            return False
        except Conflict:
            self._claim = None
            return False
        return True

    async def release_stream(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await self._record.store.release(claim)

    async def close(self) -> None:
        await self.release_stream()


class SharedMemory(StoreMemory):
    """A session that several clients share, in a record of its own: a principal's, or one for all clients.

    A loss is remembered for `remember` seconds, longer than the session itself would have lasted.
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
        self._leaves_loss = False

    def leave_loss(self, lost: bool) -> None:
        self._leaves_loss = lost

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
        data = {**storable(saved).to_json(), "at": self._at}
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
                await self._store.commit(mark if self._leaves_loss else record.with_data(None), expect=record.rev)
        await self.release_stream()


def principal_link(backend: str, principal: str) -> str:
    """The name of the record of a principal's session at a backend."""
    return f"gateway/{backend}/principal/{principal}"


def principal_memory(store: Store, backend: str, at: str, principal: Principal, idle: float) -> SharedMemory:
    """Where a principal's session at a backend is kept."""
    return SharedMemory(
        store,
        principal_link(backend, principal),
        at,
        principal=principal,
        idle=idle + GRACE,
        touch_every=idle / 10,
        remember=max(idle + GRACE, REMEMBERED),
    )
