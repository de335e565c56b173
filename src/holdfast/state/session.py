"""One session of a server's caller, with typed state that concurrent callers change without losing a write.

A write never silently replaces another one, a value that would not come back equal is rejected, and an ended session
stays ended.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar, cast

from holdfast.core.models import Handle, LogEntry, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import UsageError
from holdfast.state.calls.results import KEPT_SECONDS
from holdfast.state.calls.session_in_call import SessionInCall
from holdfast.state.lease import long_turn
from holdfast.state.log import Log
from holdfast.state.model import SessionState
from holdfast.state.storage import history
from holdfast.state.storage.history import Move
from holdfast.state.storage.session_record import SessionRecord

S = TypeVar("S", bound=SessionState)
R = TypeVar("R")


class Session(Generic[S]):
    """One caller's session. Change it in `edit()`, `update()`, `once()` or `lease()`; `state` is a copy.

    `Sessions` creates them from a `record`. `shared_with` is the caller of a session that several callers share, and
    errors are also raised as the framework's class `also`. A `label` names a change in the log.
    """

    def __init__(
        self, record: SessionRecord[S], *, shared_with: Principal | None = None, also: type[Exception] | None = None
    ) -> None:
        self.record = record
        self.in_call = SessionInCall(record, shared_with, also)
        """The changes of the current call; for middleware."""
        self.log = Log(self.in_call)

    def __repr__(self) -> str:
        return f"<Session {self.handle[:6]}… rev={self.rev} of {self.principal}>"

    # What it is

    @property
    def handle(self) -> Handle:
        """The id of the session, which its owner passes to tools as an argument."""
        return self.record.handle

    @property
    def principal(self) -> Principal:
        """The authenticated caller to which it belongs."""
        return self.record.base[0].principal

    @property
    def rev(self) -> int:
        """The number of its writes, as last read."""
        return self.record.base[0].rev

    @property
    def state(self) -> S:
        """A copy of the state as it was read or written last; in a call that has taken the session, with what
        the call has changed so far."""
        return self.in_call.state

    @property
    def title(self) -> str:
        """A short title to find it by."""
        return str(self.record.data.get("title") or "")

    @property
    def parent(self) -> tuple[Handle, int] | None:
        """The session and revision from which it was forked."""
        parent = members(self.record.data.get("parent"))
        return (Handle(str(parent["handle"])), int(cast("int", parent["rev"]))) if parent else None

    @property
    def created(self) -> float:
        """When it began, in seconds since 1970 by the store's clock."""
        return self.record.base[0].created

    @property
    def expires(self) -> float | None:
        """When it expires unless it is used before, in seconds since 1970 by the store's clock."""
        return self.record.base[0].expires

    # Reading and writing

    async def read(self) -> S:
        """Read the current state. This counts as use and restarts the idle time."""
        with self.in_call.showing():
            await self.record.refresh()
            await self.record.slide()
        return self.state

    @asynccontextmanager
    async def edit(self, label: str = "edit") -> AsyncGenerator[S]:
        """Change the state inside the block.
        It is written at the end of the block; if another caller wrote meanwhile, `Conflict` is raised. After an error
        inside the block nothing is written.
        """
        self.in_call.check_writable()
        draft = self.in_call.draft
        if draft is not None:
            before, changed = draft.copy(), draft.copy()
            yield changed
            with self.in_call.showing():
                draft.replace(changed, label, over=before)
            return
        with self.in_call.showing():
            await self.record.current()
        base, changed = self.record.base, self.state
        yield changed
        with self.in_call.showing():
            await self.record.commit(changed, label, base=base)

    async def update(self, change: Callable[[S], S | None], label: str = "update") -> S:
        """Apply a pure function to the state, and again to the new state if another caller wrote first.
        It may change its argument or return another state.
        """

        def changed(state: S) -> S:
            return _changed(state, change, self.record.table.kind, label)

        self.in_call.check_writable()
        draft = self.in_call.draft
        if draft is not None:
            before = draft.copy()
            state = changed(draft.copy())
            with self.in_call.showing():
                draft.replace(state, label, over=before)
            return self.state
        with self.in_call.showing():
            await self.record.retried(lambda: self.record.commit(changed(self.state), label))
        return self.state

    async def once(self, key: str, work: Callable[[S], R], label: str = "once") -> R:
        """Like `update`, for a call that may be repeated:
        the result of `work`, plain JSON, is kept in the same write, for a day. A call with the same key and label
        returns that result and writes nothing; the key with another label is refused.
        """
        self.in_call.check_writable()
        result: list[R] = []

        async def attempt() -> None:
            keyed, place = self.in_call.keyed(key, label)
            store = await self.record.table.store.open()
            answer = keyed.answer(await store.get(*place))
            if answer is not None:
                result[:] = [cast("R", answer["result"])]
                return
            draft = self.in_call.draft
            state = self.state
            result[:] = [work(state)]
            kept = keyed.record(place, {"result": cast("JSON", result[0])}, KEPT_SECONDS)
            if draft is None:
                await self.record.commit(state, label, beside=kept)
            else:
                await store.commit(kept, expect=0)
                draft.replace(state, label, over=draft.copy())

        with self.in_call.showing():
            self.in_call.keyed(key, label)  # refused before anything is read
            await (attempt() if self.in_call.draft is not None else self.record.retried(attempt))
        return result[0]

    @asynccontextmanager
    async def lease(self, label: str = "turn", ttl: float = 120.0) -> AsyncGenerator[S]:
        """A long turn: other callers get `Busy` until it ends, and its write is rejected if the lease has expired.
        The lease is renewed during the block; if the process dies, it expires after `ttl` seconds. In a call that has
        its turn on the session already it is an `edit`.
        """
        self.in_call.check_writable()
        if self.in_call.draft is not None:
            async with self.edit(label) as changed:
                yield changed
            return
        async with long_turn(self.in_call, ttl) as fence:
            base, changed = self.record.base, self.state
            yield changed
            with self.in_call.showing():
                await self.record.commit(changed, label, base=base, fence=fence)

    async def end(self) -> bool:
        """End the session permanently: no later write can restore it."""
        self.in_call.check_writable()
        with self.in_call.showing():
            return await self.record.table.end(self.handle)

    # What was

    async def at(self, rev: int) -> S:
        """The state as it was at the revision `rev`."""
        with self.in_call.showing():
            await self.record.refresh()
            return await self.record.at(rev)

    async def undo(self, steps: int = 1) -> S:
        """Go back to before the last change, or so many `steps` back; that is a new revision. Another undo goes on from
        there, and `redo` takes it back. Notes in the log do not count as changes."""
        return await self._move("undo()", lambda entries, record: history.undone(entries, record, steps))

    async def redo(self, steps: int = 1) -> S:
        """Take back the last undo, or so many `steps` of it, if nothing was changed since."""
        return await self._move("redo()", lambda entries, record: history.redone(entries, record, steps))

    async def restore(self, rev: int) -> S:
        """Go to the state at the revision `rev`, before or after this one. That is a change, which `undo` takes
        back."""
        return await self._move("restore()", lambda entries, record: history.restored(rev))

    async def _move(self, what: str, find: Callable[[AsyncGenerator[LogEntry, None], Record], Awaitable[Move]]) -> S:
        self.in_call.check_writable()
        with self.in_call.showing():
            draft = self.in_call.draft
            if draft is None:
                await self.record.move(find)
            else:
                self.in_call.check_unchanged(what)
                _, move, state = await self.record.moved(find)
                draft.move_to(move, state)
        return self.state

    async def fork(self, rev: int | None = None, title: str = "") -> "Session[S]":
        """Another session that begins with this one's state, now or at revision `rev`, under this `title` or
        its own. It takes the newest part of the log up to there along: revisions 0 and less are from before the
        fork."""
        with self.in_call.showing():
            self.in_call.check_unchanged("fork()")
            await self.record.refresh()
            child = await self.record.fork(rev, title)
        return Session(child, also=self.in_call.shows_as)


def _changed(state: S, change: Callable[[S], S | None], kind: type[S], label: str) -> S:
    """The state that the function given to `update` returned or changed in place."""
    result: object = change(state)
    if result is None:
        return state
    if isinstance(result, kind):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise UsageError(
        f"{label}: the function must return None or a state, not {result!r:.60}",
        remedy="change the state in place and return None, or return another state; it is called again after a "
        "conflict, so it can't be async",
    )
