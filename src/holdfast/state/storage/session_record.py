"""A session's record as last read or written, and its writing by compare-and-swap, with its log entry."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import Handle, LogEntry, Record, Write
from holdfast.core.values import JSON, members
from holdfast.errors import Busy, Conflict, NotFound
from holdfast.state import model
from holdfast.state.calls.draft import Base
from holdfast.state.calls.request import current_transaction
from holdfast.state.calls.staged_store import StagedStore
from holdfast.state.calls.transaction import write_in_turn
from holdfast.state.model import SessionState
from holdfast.state.storage import records
from holdfast.state.storage.entries import differences, same
from holdfast.state.storage.history import Move
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import reworded
from holdfast.stores.update import UPDATE_SECONDS

S = TypeVar("S", bound=SessionState)
FRESH = 0.25  # seconds for which a record need not be read again: the commit detects other writers


class SessionRecord(Generic[S]):
    """The record of one session. A write by another caller since it was read raises `Conflict`."""

    def __init__(self, table: SessionTable[S], record: Record, state: S) -> None:
        self.table = table
        self._record = record
        self._state = state
        self._read_at = float("-inf")

    @property
    def handle(self) -> Handle:
        return Handle(self._record.id)

    @property
    def base(self) -> Base[S]:
        """The record as last read or written, on which a change is based."""
        return self._record, self._state

    @property
    def data(self) -> dict[str, Any]:
        return members(self._record.data)

    # Reading

    def just_read(self) -> None:
        """Mark the record as just read, so that the first change of this call need not read it again."""
        self._read_at = time.monotonic()

    async def current(self) -> None:
        """Read it again, unless it was just read."""
        if time.monotonic() - self._read_at > FRESH:
            await self.refresh()
        self._check_version(self._record)
        self._read_at = float("-inf")

    async def refresh(self) -> None:
        self._record, self._state = await self.table.load(self._record.id, self._record.principal)

    async def slide(self, *, now: bool = False) -> None:
        """Restart the idle time."""
        await self.table.slide(self._record, now=now)

    async def at(self, rev: int) -> S:
        """The state as it was at an earlier revision."""
        newest, history = self._record.rev, self.table.history
        oldest = newest - history if self.data.get("parent") else max(1, newest - history)  # a fork has its parent's
        if not oldest <= rev <= newest:
            raise NotFound(
                f"revision {rev} can't be restored",
                id=self.handle,
                remedy=f"ask for one from {oldest} to {newest}",
            )
        stored = await records.at(await self.table.store.open(), self._record, rev)
        return cast("S", self.table.kind.read(cast("JSON", stored), self.handle))

    async def newest(self) -> AsyncGenerator[LogEntry, None]:
        """The entries of the log, newest first."""
        async with aclosing(records.newest(await self.table.store.open(), self.handle)) as entries:
            async for entry in entries:
                yield entry

    async def move(
        self,
        find: Callable[[AsyncGenerator[LogEntry, None], Record], Awaitable[Move]],
        adjust: Callable[[S], None] | None = None,
    ) -> None:
        """Write the state of another revision over this one, as a new one; `find` says which from the log, and `adjust`
        has the last word on the state."""
        base, move, state = await self.moved(find)
        if adjust is not None:
            adjust(state)
        await self.commit(state, move.label, base=base, move=move)

    async def moved(
        self, find: Callable[[AsyncGenerator[LogEntry, None], Record], Awaitable[Move]]
    ) -> tuple[Base[S], Move, S]:
        """The same, not written: what was read, and which revision to go to, with its state."""
        await self.refresh()
        base = self.base
        async with aclosing(self.newest()) as entries:
            move = await find(entries, base[0])
        return base, move, await self.at(move.to)

    # Writing

    async def fork(
        self, rev: int | None, title: str, companions: Mapping[str, int] | None = None, until: float | None = None
    ) -> "SessionRecord[S]":
        """Another session of the same owner, from the state now or at a revision, with copies of the companions: as
        they were then, or where `companions` says so at that revision of theirs and the others before `until`."""
        parent, table = self._record, self.table
        self._check_version(parent)
        number = parent.rev if rev is None else rev
        came_from: dict[str, JSON] = {"handle": parent.id, "rev": number}
        title = title or str(self.data.get("title") or "")
        state, store = await self.at(number), await table.store.open()
        async with aclosing(self.newest()) as entries:
            child = await table.begin(parent.principal, state, title=title, parent=came_from, entries=entries)
        if companions is None:
            until = await records.replaced(store, parent, number)
        await records.fork_companions(store, parent, until, child[0].id, companions)
        return SessionRecord(table, *child)

    async def retried(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Retry a change on the new state after each `Conflict`. Callers in one process take turns."""
        deadline = time.monotonic() + UPDATE_SECONDS
        async with self._turn() as waited:
            if waited:
                await self.refresh()
            else:
                await self.current()
            while True:
                try:
                    return await attempt()
                except Conflict as error:
                    if time.monotonic() > deadline:  # checked only here: a write in progress is not abandoned
                        raise Busy(
                            f"other callers kept writing to the session for {UPDATE_SECONDS:g} s; nothing was written",
                            id=self.handle,
                            remedy="try again later",
                        ) from error
                    await asyncio.sleep(secrets.randbelow(1000) / 100_000)
                    await self.refresh()

    def _turn(self) -> AbstractAsyncContextManager[bool]:
        """Not within a call, whose writes are gathered: who holds this may wait for the turn that the call has."""
        transaction = current_transaction()
        if transaction is not None and transaction.covers(self.table.store.place):
            return nullcontext(False)
        return self.table.turns.turn(self.handle, UPDATE_SECONDS)

    async def commit(
        self,
        draft: S,
        label: str,
        *,
        base: Base[S] | None = None,
        fence: int | None = None,
        beside: Record | None = None,
        notes: Sequence[tuple[str, JSON]] = (),
        data: JSON = None,
        move: Move | None = None,
    ) -> None:
        """Write a state over the record that it is based on, with its log entries, and the new record `beside` it.
        An unchanged state is not written.
        """
        record, state = base or self.base
        self._check_version(record)
        checked, after = model.checked(draft, self.table.kind, label, self.handle)
        before, stored = state.to_data(), members(record.data)
        older = stored.get("v") != draft.version
        noted = bool(beside or notes) or data is not None or move is not None
        if not older and not noted and same(before, after):
            await self.table.slide(record)
            return
        was: dict[str, Any] = (
            {"v": stored.get("v"), "state": stored.get("state")} if older else differences(before, after)
        )
        entry: dict[str, JSON] = {"label": label, "was": cast("JSON", was)}
        if data is not None:
            entry["data"] = data
        if move is not None:
            entry["undo"] = move.to
            if move.redo:
                entry["redo"] = list(move.redo)
        body = {name: value for name, value in stored.items() if name not in ("min_reader", "older")}
        body |= self.table.kind.to_record(after, self.handle)
        await self._write(body, [entry, *(_note(*note) for note in notes)], fence, record, beside)
        self._state = checked

    async def note(self, label: str, data: JSON) -> None:
        """An entry of the log with no change of the state."""
        self._check_version(self._record)
        await self._write(self.data, [_note(label, data)], None, self._record)

    def _check_version(self, record: Record) -> None:
        """Older code would lose what it does not know: while both are running it may only read."""
        if self.table.kind.is_newer(record.data):
            raise Busy(
                "a newer release of this server has written here, and this one may only read it; nothing was written",
                id=self.handle,
                remedy="do it again in a moment: the upgrade is under way",
            )

    async def _write(
        self,
        data: dict[str, Any],
        entries: list[JSON],
        fence: int | None,
        over: Record,
        beside: Record | None = None,
    ) -> None:
        table, store = self.table, await self.table.store.open()
        write = Write(over.with_data(cast("JSON", data)), expect=over.rev, entries=entries, fence=fence)
        try:
            await table.take_in_call(over.id)
            if fence is None and not isinstance(store, StagedStore):
                others = () if beside is None else (Write(beside, expect=0),)
                self._record = await write_in_turn(table.store, write, others, wait=table.turn_wait, ttl=table.turn_ttl)
            elif beside is None:
                self._record = await store.commit(write.record, expect=over.rev, entries=entries, fence=fence)
            else:
                self._record = (await store.commit_all([write, Write(beside, expect=0)]))[0]
        except Conflict as error:
            if error.actual is not None:
                what = f"the session is at revision {error.actual}, not {over.rev}: "
                reworded(error, what + "another call was faster, and nothing of this one was written", "do it again")
            raise


def _note(label: str, data: JSON) -> JSON:
    return {"label": label, "data": data, "was": {}}
