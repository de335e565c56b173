"""One session of a server's caller: typed state that is read, changed without losing anybody's write, and ended.

A write never replaces another one in silence, a value that would not come back equal is refused, and what has ended
stays ended.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import Handle, LogEntry, Principal
from holdfast.core.values import JSON, members
from holdfast.errors import UsageError
from holdfast.state.calls.draft import Draft
from holdfast.state.calls.idempotency import key_name
from holdfast.state.lease import Lease
from holdfast.state.log import KIND, PAGE, UNDO, Log
from holdfast.state.model import SessionState
from holdfast.state.storage import records
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.tool_errors import showing

S = TypeVar("S", bound=SessionState)
R = TypeVar("R")


class Session(Generic[S]):
    """One caller's session. Change it in `edit()`, `update()`, `once()` or `lease()`; `state` is a copy."""

    def __init__(
        self, record: SessionRecord[S], *, shared_with: Principal | None = None, also: type[Exception] | None = None
    ) -> None:
        self.record = record
        self.log = Log(self)
        self._draft: Draft[S] | None = None
        self._shared_with = shared_with
        self._also = also

    def __repr__(self) -> str:
        return f"<Session {self.handle[:6]}… rev={self.rev} of {self.principal}>"

    # What it is

    @property
    def handle(self) -> Handle:
        """The id that names the session: an argument that its owner passes to tools."""
        return self.record.handle

    @property
    def principal(self) -> Principal:
        """The authenticated caller that it belongs to."""
        return self.record.base[0].principal

    @property
    def rev(self) -> int:
        """The number of its writes, as of the last reading."""
        return self.record.base[0].rev

    @property
    def state(self) -> S:
        """A copy of the state as it was read or written last; within a call that middleware saves, with what the call
        has changed so far."""
        return self._draft.copy() if self._draft is not None else self.record.base[1].model_copy(deep=True)

    @property
    def title(self) -> str:
        """A few words to find it again."""
        return str(self.record.data.get("title") or "")

    @property
    def parent(self) -> tuple[Handle, int] | None:
        """The session and revision that this one was forked from."""
        parent = members(self.record.data.get("parent"))
        return (Handle(str(parent["handle"])), int(cast("int", parent["rev"]))) if parent else None

    @property
    def created(self) -> float:
        """When it began, in seconds since 1970 by the store's clock."""
        return self.record.base[0].created

    @property
    def expires(self) -> float | None:
        """When it ends if nobody uses it before, in seconds since 1970 by the store's clock."""
        return self.record.base[0].expires

    # Reading and writing

    async def read(self) -> S:
        """The state as it is now. Reading is use: the idle time starts over."""
        with self._showing():
            await self.record.refresh()
            await self.record.slide()
        return self.state

    @property
    def draft(self) -> S:
        """The state to change in place where middleware saves it after the call."""
        if self._draft is None:
            with self._showing():
                raise UsageError(
                    "no middleware saves this session after the call",
                    remedy="sessions.install(server, save=True), or change it in `async with session.edit()`",
                )
        return self._draft.state

    @asynccontextmanager
    async def edit(self, label: str = "edit") -> AsyncGenerator[S]:
        """Change the state inside the block. It is written at the end of the block, or `Conflict` is raised if another
        caller wrote meanwhile. After an error inside the block nothing is written."""
        draft = self._draft
        if draft is not None:
            before, changed = draft.state, draft.copy()
            yield changed
            with self._showing():
                draft.replace(changed, label, over=before)
            return
        with self._showing():
            self.record.table.write_at_once()
            await self.record.current()
        base, changed = self.record.base, self.state
        yield changed
        with self._showing():
            await self.record.commit(changed, label, base=base)

    async def update(self, change: Callable[[S], S | None], label: str = "update") -> S:
        """Apply a pure function, again on a fresh reading if another writer was faster. It may change what it gets, or
        return another state."""

        def changed(state: S) -> S:
            result: object = change(state)
            if result is None:
                return state
            if isinstance(result, self.record.table.kind):
                return cast("S", result)
            if inspect.iscoroutine(result):
                result.close()
            raise UsageError(
                f"{label}: the function returned {result!r:.60}",
                remedy="change the state in place and return None, or return another state; it is called again after a "
                "conflict, so it can't be async",
            )

        if self._draft is not None:
            state = changed(self._draft.copy())
            with self._showing():
                self._draft.replace(state, label, over=self._draft.state)
            return self.state
        with self._showing():
            self.record.table.write_at_once()
            await self.record.retried(lambda: self.record.commit(changed(self.state), label))
        return self.state

    async def once(self, key: str, work: Callable[[S], R], label: str = "once") -> R:
        """Like `update`, for a call that may be repeated: the result of `work`, plain JSON, is kept in the same write.
        The same key again gives that result and writes nothing. The last 64 keys of a session are known."""
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("an idempotency key is text of at least one character")
        result: list[R] = []

        async def attempt() -> None:
            answer = self.kept_answer(key)
            if answer is not None:
                result[:] = [cast("R", answer["result"])]
                return
            state = self.state
            result[:] = [work(state)]
            once = {self.key_name(key): cast("JSON", {"result": result[0]})}
            await self.record.commit(state, label, once=once)

        with self._showing():
            self._not_saved_later("once()")
            self.key_name(key)  # refused before anything is read
            await self.record.retried(attempt)
        return result[0]

    @asynccontextmanager
    async def lease(self, label: str = "turn", ttl: float = 120.0) -> AsyncGenerator[S]:
        """A long turn: other callers can't begin one until it ends (`Busy`), and its write is refused if the lease ran
        out. The lease is renewed while the block lasts; if the process dies, it runs out after `ttl` seconds."""
        with self._showing():
            self._not_saved_later("a lease")
        async with self.holding(ttl) as fence:
            base, changed = self.record.base, self.state
            yield changed
            with self._showing():
                await self.record.commit(changed, label, base=base, fence=fence)

    @asynccontextmanager
    async def holding(self, ttl: float, on_renewal: Callable[[], Awaitable[None]] | None = None) -> AsyncGenerator[int]:
        """The sole right to a long turn, renewed while the block lasts; yields the fence that a write must carry."""
        lease = Lease(self.record, ttl, on_renewal)
        with self._showing():
            fence = await lease.take()
        try:
            with self._showing():
                await self.record.refresh()
            yield fence
        finally:
            await lease.give_back()

    async def end(self) -> bool:
        """For good: no later write, from anywhere, brings it back."""
        with self._showing():
            return await self.record.table.end(self.handle)

    # What was

    async def at(self, rev: int) -> S:
        """The state as it was at an earlier revision."""
        with self._showing():
            await self.record.refresh()
            return await self.record.at(rev)

    async def undo(self, adjust: Callable[[S], None] | None = None) -> S:
        """Go back to before the last change; that is a new revision, so another undo takes it back. Notes in the log do
        not count as changes. `adjust` has the last word on the state."""
        with self._showing():
            self._not_saved_later("undo()")
            await self.record.refresh()
            base, target = self.record.base, self.rev - 1
            async for entry in self.newest():
                if members(members(entry.data).get("was")):  # a note has nothing there
                    target = entry.rev - 1
                    break
            state = await self.record.at(target)
            if adjust is not None:
                adjust(state)
            await self.record.commit(state, UNDO, base=base, undo=target)
        return self.state

    async def fork(self, rev: int | None = None, title: str = "") -> "Session[S]":
        """Another session that begins with this one's state, now or at an earlier revision. History is not copied."""
        with self._showing():
            self._not_changed("fork()")
            await self.record.refresh()
            number = rev if rev is not None else self.rev
            state = await self.record.at(number)
            parent: dict[str, JSON] = {"handle": self.handle, "rev": number}
            table = self.record.table
            child = await table.begin(self.principal, state, title=title or self.title, parent=parent)
            await records.fork_companions(await table.store.open(), self.record.base[0], number, child[0].id)
        return Session(SessionRecord(table, *child), also=self._also)

    # Its log

    async def entries(self, *, after: int = 0, limit: int = PAGE, newest_first: bool = False) -> list[LogEntry]:
        """The log as the store has it."""
        with self._showing():
            self._not_changed("the log")
            store = await self.record.table.store.open()
            return await store.log(KIND, self.handle, after=after, limit=limit, newest_first=newest_first)

    async def newest(self) -> AsyncGenerator[LogEntry]:
        """The log backwards, a page at a time."""
        with self._showing():
            self._not_changed("the log")
            async for entry in records.newest(await self.record.table.store.open(), self.handle):
                yield entry

    async def append(self, label: str, data: JSON) -> None:
        """An entry of the log with no change of the state."""
        if self._draft is not None:  # goes with what is saved after the call, or not at all
            self._draft.note(label, data)
            return
        with self._showing():
            self.record.table.write_at_once()
            await self.record.retried(lambda: self.record.note(label, data))

    # Saved by middleware

    def open_draft(self) -> Draft[S]:
        """From here on changes are gathered, and written by `save` over what was read now."""
        if self._draft is not None:
            self._draft.close()
        self._draft = Draft(self.record.base)
        return self._draft

    def drop_draft(self) -> None:
        """Give up what was gathered: the session has ended."""
        if self._draft is not None:
            self._draft.close()
            self._draft = None

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        """Write what was gathered: all of it, or nothing and `Conflict` after another caller's write."""
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()
            with self._showing():
                await self.record.commit(draft.state, draft.label(label), base=draft.base, once=once, notes=draft.notes)

    def key_name(self, key: str) -> str:
        """The name under which the answer to a call with this key is kept."""
        return key_name(key, self._shared_with)

    def kept_answer(self, key: str) -> dict[str, Any] | None:
        """What a call with this key answered before."""
        answers = members(self.record.data.get("once"))
        name = self.key_name(key)
        return members(answers[name]) if name in answers else None

    def _not_saved_later(self, what: str) -> None:
        if self._draft is not None:
            raise UsageError(f"{what} and saving by middleware can't be mixed", remedy="use session.draft here")
        self.record.table.write_at_once()

    def _not_changed(self, what: str) -> None:
        """What is in the store is not what this call has made of it."""
        if self._draft is not None and self._draft.is_changed:
            raise UsageError(
                f"{what} would not show what this call has changed so far: middleware has it written after it",
                remedy="read before the first change, or install without save=True",
            )

    # Errors

    @property
    def shows_as(self) -> type[Exception] | None:
        """The framework's class of errors that ours are raised as, too."""
        return self._also

    def show_errors_as(self, also: type[Exception] | None) -> None:
        """Raise errors of ours as a framework's class, whose text its caller gets to see."""
        self._also = also

    def _showing(self) -> AbstractContextManager[None]:
        return showing(self._also)
