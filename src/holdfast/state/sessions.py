"""Sessions of a server's callers, in a store: begun, found by handle, edited without losing anybody's write, ended.

It owns compare-and-swap around typed state, the log of what changed, and forks. It refuses to overwrite in silence, and
tells unknown, expired, ended and foreign apart only to the owner.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from holdfast.core.models import ANONYMOUS, Claim, Handle, LogEntry, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, HoldfastError, LimitReached, NotFound, UsageError
from holdfast.state.model import SessionState
from holdfast.stores.base import Store
from holdfast.stores.update import UPDATE_SECONDS

S = TypeVar("S", bound=SessionState)
KIND = "state"
HISTORY = 200  # revisions that can be gone back to
PAGE = 100


def new_handle() -> Handle:
    """192 bits: enough where possession is all there is."""
    return Handle(f"s_{secrets.token_urlsafe(24)}")


class Session(Generic[S]):
    """One caller's session. `state` is a copy of what was read last; change it in `edit()` or `update()`."""

    def __init__(self, sessions: "Sessions[S]", record: Record, state: S) -> None:
        self._sessions = sessions
        self._record = record
        self._state = state

    def __repr__(self) -> str:
        return f"<Session {self.handle[:6]}… rev={self.rev} of {self._record.principal}>"

    @property
    def handle(self) -> Handle:
        return Handle(self._record.id)

    @property
    def rev(self) -> int:
        return self._record.rev

    @property
    def state(self) -> S:
        return self._state.model_copy(deep=True)

    async def read(self) -> S:
        """The state as it is now. Reading is use."""
        await self._sessions.store.touch(KIND, self.handle)
        await self._refresh()
        return self.state

    async def _refresh(self) -> None:
        self._record, self._state = await self._sessions.load(self.handle, self._record.principal)

    @asynccontextmanager
    async def edit(self, label: str = "edit") -> AsyncGenerator[S]:
        """Change the state inside the block. Written at its end, if nobody else wrote meanwhile: else `Conflict`, and
        nothing of it is kept. An error inside keeps nothing either. What did not change is not written."""
        await self._refresh()
        draft = self.state
        yield draft
        await self._commit(draft, label, None)

    async def update(self, change: Callable[[S], S | None], label: str = "update") -> S:
        """Apply a pure function, again on a fresh reading if somebody else was faster. It may change what it gets, or
        return another state."""
        async with asyncio.timeout(UPDATE_SECONDS):
            while True:
                await self._refresh()
                draft = self.state
                draft = change(draft) or draft
                try:
                    await self._commit(draft, label, None)
                    return self.state
                except Conflict:
                    await asyncio.sleep(secrets.randbelow(1000) / 100_000)

    @asynccontextmanager
    async def lease(self, label: str = "turn", ttl: float = 120.0) -> AsyncGenerator[S]:
        """A long turn: nobody else may begin one meanwhile (`Busy`), and what is written at its end is refused if the
        lease ran out. It is renewed while the block lasts."""
        store, owner = self._sessions.store, f"lease-{secrets.token_hex(8)}"
        claim = await store.claim(KIND, self.handle, owner=owner, ttl=ttl)
        renewing = asyncio.get_running_loop().create_task(self._renew(claim, ttl), name="renew lease")
        try:
            await self._refresh()
            draft = self.state
            yield draft
            await self._commit(draft, label, claim.token)
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            with suppress(HoldfastError):
                await store.release(claim)

    async def _renew(self, claim: Claim, ttl: float) -> None:
        while True:
            await asyncio.sleep(ttl / 3)
            try:
                claim = await self._sessions.store.renew(claim, ttl=ttl)
            except HoldfastError:
                return  # the commit will be refused, and says so

    async def _commit(self, draft: S, label: str, fence: int | None) -> None:
        try:
            # Lists and dictionaries inside may have been changed without a check.
            checked = type(draft).model_validate(draft.model_dump(warnings=False))
        except ValidationError as error:
            raise UsageError(f"{label}: the state does not validate: {error}"[:500], id=self.handle) from error
        before, after = self._state.to_data(), checked.to_data()
        stored = members(self._record.data)
        if before == after and stored.get("v") == draft.version:
            await self._sessions.store.touch(KIND, self.handle)
            return
        entry: JSON = {"label": label, "was": _differences(before, after)}
        data: JSON = {**stored, "v": draft.version, "state": after}
        record = self._record.with_data(data)
        self._record = await self._sessions.store.commit(record, expect=self._record.rev, entries=[entry], fence=fence)
        self._state = checked

    # What was

    async def log(self, last: int = PAGE) -> list[LogEntry]:
        """The newest entries, oldest of them first."""
        entries = await self._sessions.store.log(KIND, self.handle, limit=last, newest_first=True)
        return entries[::-1]

    async def at(self, rev: int) -> S:
        """The state as it was at an earlier revision."""
        await self._refresh()
        if not 1 <= rev <= self.rev or self.rev - rev > self._sessions.history:
            raise NotFound(
                f"revision {rev} is not among the last {self._sessions.history} of {self.rev}",
                id=self.handle,
                remedy="ask for a newer one, or raise Sessions(history=…)",
            )
        state = self._state.to_data()
        if rev < self.rev:
            entries = await self._sessions.store.log(KIND, self.handle, limit=self.rev - rev, newest_first=True)
            for entry in entries:
                if entry.rev <= rev:
                    break
                state = _apply(state, members(members(entry.data).get("was")))
        return self._sessions.kind.model_validate(state)

    async def undo(self) -> S:
        """Go back one revision; that is a new one."""
        before = await self.at(self.rev - 1)
        await self._commit(before, "undo", None)
        return self.state

    async def fork(self, rev: int | None = None) -> "Session[S]":
        """Another session that begins with this one's state, now or at an earlier revision. History is not copied."""
        await self._refresh()
        number = rev if rev is not None else self.rev
        state = await self.at(number)
        parent: dict[str, JSON] = {"handle": self.handle, "rev": number}
        return await self._sessions.begin(self._record.principal, state, parent=parent)

    async def end(self) -> bool:
        """For good: no later write, from anywhere, brings it back."""
        return await self._sessions.store.end(KIND, self.handle)


class Sessions(Generic[S]):
    """All sessions of one kind of state."""

    def __init__(
        self,
        kind: type[S],
        store: Store,
        *,
        idle: float | None = 86_400.0,
        max_age: float | None = 30 * 86_400.0,
        quota: int | None = None,
        history: int = HISTORY,
    ) -> None:
        self.kind = kind
        self.store = store
        self.history = history
        self._idle = idle
        self._max_age = max_age
        self._quota = quota

    async def begin(
        self, principal: Principal = ANONYMOUS, state: S | None = None, *, parent: dict[str, JSON] | None = None
    ) -> Session[S]:
        """A new session, with the defaults or the state given."""
        if self._quota is not None:
            count = await self.store.count(kind=KIND, principal=principal)
            if count >= self._quota:
                raise LimitReached(
                    f"{count} of {self._quota} sessions of this caller are open",
                    limit=self._quota,
                    actual=count,
                    remedy="end one that is done",
                )
        fresh = state if state is not None else self.kind()
        data: dict[str, Any] = {"v": self.kind.version, "state": fresh.to_data()}
        if parent is not None:
            data["parent"] = parent
        record = Record(KIND, new_handle(), principal, cast("JSON", data), idle=self._idle, max_age=self._max_age)
        return Session(self, await self.store.commit(record, expect=0), fresh)

    async def find(self, handle: str, principal: Principal = ANONYMOUS) -> Session[S]:
        """The caller's session. `NotFound` for one that never was, and exactly the same for another caller's; the owner
        is told `SessionExpired` and `Ended`."""
        record, state = await self.load(handle, principal)
        return Session(self, record, state)

    async def load(self, handle: str, principal: Principal) -> tuple[Record, S]:
        from holdfast.core.records import ended, expired

        unknown = NotFound("there is no such session", id=str(handle)[:80], remedy="begin a new one")
        try:
            record = await self.store.get(KIND, handle, dead=True)
        except UsageError:  # odd characters: no session has them
            raise unknown from None
        if record is None or record.principal != principal:
            raise unknown
        if record.ended is not None:
            raise expired("session", handle) if record.expired else ended("session", handle)
        return record, cast("S", self.kind.read(record.data, handle))

    async def of(self, principal: Principal, limit: int = PAGE) -> list[Session[S]]:
        """A caller's own sessions."""
        page = await self.store.scan(kind=KIND, principal=principal, limit=limit)
        return [Session(self, record, cast("S", self.kind.read(record.data, record.id))) for record in page.records]


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What the fields were that changed; fields that were not there."""
    changed = {name: before[name] for name in before if name not in after or before[name] != after[name]}
    return {"set": changed, "new": [name for name in after if name not in before]}


def _apply(state: dict[str, Any], was: dict[str, Any]) -> dict[str, Any]:
    new = set(cast("list[str]", was.get("new") or []))
    return {name: value for name, value in state.items() if name not in new} | members(was.get("set"))
