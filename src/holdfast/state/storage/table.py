"""The sessions of one kind of state as records of a store: beginning within a quota, reading, keeping alive, ending.

Only a session's owner can distinguish an expired or ended session from an unknown one.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import ANONYMOUS, LogEntry, Principal, Record, check_name, check_seconds
from holdfast.core.values import JSON, members
from holdfast.errors import Ended, NotFound, SessionExpired, UnstorableValue, UsageError
from holdfast.state import model
from holdfast.state.calls.request import ENDS_SO, current_transaction, known_as, with_turn
from holdfast.state.calls.transaction import TURN_SECONDS, TURN_TTL
from holdfast.state.identity import Key
from holdfast.state.model import SessionState
from holdfast.state.storage import ending, records
from holdfast.state.storage.entries import KIND, POINTERS
from holdfast.state.storage.history import create_fork
from holdfast.state.storage.quota import check, counting, room
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.state.turns import Turns
from holdfast.stores.paging import cursor
from holdfast.stores.update import UPDATE_SECONDS

S = TypeVar("S", bound=SessionState)
HISTORY = 200  # revisions that can be restored


class SessionTable(Generic[S]):
    """The settings shared by all sessions of one kind:
    the state's class, the store, lifetimes, and turns of this process.
    """

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
        turn_wait: float = TURN_SECONDS,
        turn_ttl: float = TURN_TTL,
    ) -> None:
        check_seconds(turn_wait, "turn_wait", zero=True)
        check_seconds(turn_ttl, "turn_ttl")
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
                remedy="give the number of revisions that can be restored",
            )
        self.kind: type[S] = kind
        self.name = name
        self.store = store
        self.idle = idle
        self.max_age = max_age
        self.history = history
        self.turn_wait = turn_wait
        self.turn_ttl = turn_ttl
        self.turns = Turns()
        self._quota = quota
        self._begin_tool: str | None = None

    def set_begin_tool(self, tool: str) -> None:
        """Set the tool with which callers begin a session."""
        self._begin_tool = tool

    @property
    def begin_tool(self) -> str | None:
        """The tool that begins a session, if the server has one."""
        return self._begin_tool

    @property
    def begin_hint(self) -> str:
        """How a caller begins another session."""
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
        turn = counting(self.name, principal)
        counted, transaction = with_turn(turn), current_transaction()
        is_part = transaction is not None and transaction.covers(self.store.place)
        if counted is None and transaction is not None and is_part and principal != ANONYMOUS:
            # One long call would keep all anonymous callers waiting: for them the count is not exact.
            await transaction.take(self.store, [turn], wait=UPDATE_SECONDS, ttl=self.turn_ttl)
            counted = transaction
        store = await self.store.open_real()
        new = counted.staged.created(KIND, principal) if counted is not None else []

        async def count() -> int:
            kept = [record.id async for record in self.scan(principal)]
            if counted is not None:  # what its call begins is there when that is written; nobody else counts until then
                kept = [handle for handle in kept if not counted.staged.is_ended((KIND, handle))]
            return len(kept) + len([each for each in new if members(each.data).get("t") == self.name])

        if counted is None:
            async with room(store, self.name, principal, quota, count):
                yield
        else:
            await check(store, principal, quota, count, begun=len(new))
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
        record = await (await self.store.open()).get(KIND, self.check_handle(handle), dead=True)
        return self.check(record, handle, principal)

    def check_handle(self, handle: str) -> str:
        """The handle, if a session can have it."""
        try:
            return check_name(handle, "handle")
        except UnstorableValue:  # odd characters: no session has them
            raise self._unknown(handle) from None

    def _unknown(self, handle: str) -> NotFound:
        return NotFound("there is no such session", id=str(handle)[:80], remedy=self.begin_hint)

    def check(self, record: Record | None, handle: str, principal: Principal) -> tuple[Record, S]:
        """What was read under a handle, dead or alive, as `load` returns it."""
        if record is None or record.principal != principal:
            raise self._unknown(handle)
        if record.ended is not None:
            kind, why = (SessionExpired, "has expired") if record.expired else (Ended, "was ended")
            raise kind(f"this session {why}, and what it held is gone", id=handle, remedy=self.begin_hint)
        if members(record.data).get("t") != self.name:
            raise self._unknown(handle)
        return record, self.read(record)

    def read(self, record: Record) -> S:
        """The state in a record, migrated to this version of its class."""
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
        """Restart the idle time. Not written at every use, but after a tenth of the idle time."""
        if record.idle is None or (not now and 0 <= time.time() - record.touched < record.idle / 10):
            return
        store = await self.store.open()
        await store.touch(KIND, record.id)
        pointer = members(record.data).get("key")
        if isinstance(pointer, str):
            with suppress(NotFound, SessionExpired, Ended):
                await store.touch(POINTERS, pointer)

    async def take_in_call(self, handle: str) -> None:
        """Take the turn on a session before it is written, where that is part of a call that has not taken it."""
        transaction = current_transaction()
        if transaction is not None and transaction.covers(self.store.place):
            await transaction.take_found(self.store, (KIND, handle), wait=self.turn_wait, ttl=self.turn_ttl)

    async def end(self, handle: str) -> bool:
        """End a session and its companions; in a call that has taken it, at the end of the call."""
        await self.take_in_call(self.check_handle(handle))
        was_alive = await ending.end(await self.store.open(), handle)
        transaction = current_transaction()
        if transaction is not None:
            transaction.drop(handle)
        return was_alive
