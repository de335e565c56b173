"""The sessions of one kind of state, as records of a store: begun within a quota, read, kept alive and ended.

Unknown, expired and ended sessions, and those of other callers, are distinguished only for their owner.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import LogEntry, Principal, Record, check_name, check_seconds
from holdfast.core.values import JSON, members
from holdfast.errors import Ended, NotFound, SessionExpired, UnstorableValue, UsageError
from holdfast.state import model
from holdfast.state.calls.call_state import call_state_of, drop_draft, end_beside, will_stand
from holdfast.state.calls.request import ENDS_SO, known_as
from holdfast.state.identity import Key
from holdfast.state.model import SessionState
from holdfast.state.storage import ending, records
from holdfast.state.storage.entries import KIND, POINTERS
from holdfast.state.storage.history import create_fork
from holdfast.state.storage.quota import room
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.state.turns import Turns
from holdfast.stores.paging import cursor

S = TypeVar("S", bound=SessionState)
HISTORY = 200  # revisions that can be gone back to


class SessionTable(Generic[S]):
    """What every session of one kind shares: the state's class, the store, lifetimes, and turns of this process."""

    def __init__(
        self,
        kind: type[S],
        name: str,
        store: StoreHandle,
        *,
        idle: float | None,
        max_age: float | None,
        history: int = HISTORY,
        quota: int | None = None,
    ) -> None:
        for span, what in ((idle, "idle"), (max_age, "max_age")):
            if span is not None:
                check_seconds(span, what)
        if quota is not None and quota < 1:
            raise UsageError(
                f"quota must be at least 1, not {quota!r}", remedy="give the number of sessions a caller may have"
            )
        if history < 1:
            raise UsageError(
                f"history must be at least 1, not {history!r}",
                remedy="give the number of revisions that can be gone back to",
            )
        self.kind: type[S] = kind
        self.name = name
        self.store = store
        self.idle = idle
        self.max_age = max_age
        self.history = history
        self.turns = Turns()
        self._quota = quota
        self._begin_tool: str | None = None

    def set_begin_tool(self, tool: str) -> None:
        """Callers begin a session with this tool."""
        self._begin_tool = tool

    @property
    def begin_hint(self) -> str:
        """What a caller does to have another session."""
        if self._begin_tool is None:
            return "begin a new one"
        return f"call {known_as(self._begin_tool)} to begin one {ENDS_SO}"

    # Records

    async def begin(
        self,
        principal: Principal,
        state: S | None = None,
        *,
        title: str = "",
        parent: dict[str, JSON] | None = None,
        entries: AsyncGenerator[LogEntry, None] | None = None,
    ) -> tuple[Record, S]:
        """A new session within the caller's quota, with the defaults or the state given. One with a `parent` takes the
        parent's `entries` along, newest first."""
        will_stand("a session that it began")
        async with self.room(principal):
            return await self._begin(principal, state, title=title, parent=parent, entries=entries)

    async def begin_for_key(self, key: Key) -> tuple[Record, S]:
        """A new session that a pointer will name; inside `room`."""
        return await self._begin(key.principal, key=key.digest)

    def room(self, principal: Principal, *, shared: bool = False) -> AbstractAsyncContextManager[None]:
        """Begin a session inside the block if the caller's quota allows it. One that callers share is nobody's."""
        if self._quota is None or shared:
            return nullcontext()
        return self._counted(principal, self._quota)

    @asynccontextmanager
    async def _counted(self, principal: Principal, quota: int) -> AsyncGenerator[None]:
        async def count() -> int:
            return len([record async for record in self.scan(principal)])

        async with room(await self.store.open(), self.name, principal, quota, count):
            yield

    async def _begin(
        self,
        principal: Principal,
        state: S | None = None,
        *,
        title: str = "",
        parent: dict[str, JSON] | None = None,
        key: str | None = None,
        entries: AsyncGenerator[LogEntry, None] | None = None,
    ) -> tuple[Record, S]:
        store = await self.store.open()
        fresh, plain = model.checked(state if state is not None else self.kind(), self.kind, "begin")
        data: dict[str, Any] = {"t": self.name, **self.kind.to_record(plain)}
        data |= {name: value for name, value in (("title", title), ("parent", parent), ("key", key)) if value}
        record = Record(KIND, records.new_handle(), principal, cast("JSON", data), idle=self.idle, max_age=self.max_age)
        if entries is None or parent is None:
            return await store.commit(record, expect=0), fresh
        rev = cast("int", parent["rev"])
        return await create_fork(store, record, entries, str(parent["handle"]), rev), fresh

    async def load(self, handle: str, principal: Principal) -> tuple[Record, S]:
        """The record and the state in it. `NotFound` for a session that never was, and exactly the same for another
        caller's; its owner gets `SessionExpired` or `Ended`."""
        unknown = NotFound("there is no such session", id=str(handle)[:80], remedy=self.begin_hint)
        try:
            check_name(handle, "handle")
        except UnstorableValue:  # odd characters: no session has them
            raise unknown from None
        record = await (await self.store.open()).get(KIND, handle, dead=True)
        if record is None or record.principal != principal:
            raise unknown
        if record.ended is not None:
            kind, why = (SessionExpired, "has expired") if record.expired else (Ended, "was ended")
            raise kind(f"this session {why}, and what it held is gone", id=handle, remedy=self.begin_hint)
        if members(record.data).get("t") != self.name:
            raise unknown
        return record, self.read(record)

    def read(self, record: Record) -> S:
        """The state in a record, brought up to this version of its class."""
        return cast("S", self.kind.read(record.data, record.id))

    async def scan(self, principal: Principal, after: str | None = None) -> AsyncGenerator[Record, None]:
        """A caller's sessions of this kind, those behind the handle `after`; other kinds and companions are in the same
        store."""
        store = await self.store.open()
        if after is not None:
            after = cursor(KIND, check_name(after, "after"))
        while True:
            page = await store.scan(kind=KIND, principal=principal, after=after)
            for record in page.records:
                if members(record.data).get("t") == self.name:
                    yield record
            after = page.next
            if after is None:
                return

    async def slide(self, record: Record, *, now: bool = False) -> None:
        """Use starts the idle time over. Not written at every use: a tenth of that time is no difference."""
        if record.idle is None or (not now and 0 <= time.time() - record.touched < record.idle / 10):
            return
        store = await self.store.open()
        await store.touch(KIND, record.id)
        pointer = members(record.data).get("key")
        if isinstance(pointer, str):
            with suppress(NotFound, SessionExpired, Ended):
                await store.touch(POINTERS, pointer)

    async def end(self, handle: str) -> bool:
        """End a session and its companions; refused beside another one that the call under way has taken."""
        end_beside(handle)
        was_alive = await ending.end(await self.store.open(), handle)
        drop_draft(handle)
        return was_alive

    def write_at_once(self) -> None:
        """A session that the call under way did not take is about to be written: refused where another one of this kind
        is saved after the call."""
        call = call_state_of(self)
        if call is not None:
            call.write_beside("a change of a session that the call did not take")
        else:
            will_stand("a change of a session of another kind")
