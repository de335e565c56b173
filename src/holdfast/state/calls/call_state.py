"""The current call, where middleware saves sessions after it: the sessions that it uses, and their drafts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Protocol

from holdfast.core.models import Handle
from holdfast.core.values import JSON
from holdfast.errors import HoldfastError, UsageError
from holdfast.state.calls.draft import Draft
from holdfast.state.identity import Found
from holdfast.state.tool_errors import shown


class SavedSession(Protocol):
    """How a call saves a session that it uses."""

    def open_draft(self) -> Draft[Any]: ...

    def drop_draft(self) -> None: ...

    def key_name(self, key: str) -> str: ...

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None: ...


class TakenSession(Protocol):
    """A session that a call uses, implemented by `Session`."""

    @property
    def handle(self) -> Handle: ...

    @property
    def in_call(self) -> SavedSession: ...


class CallState:
    """The sessions that one call uses, saved together with its result."""

    def __init__(
        self,
        request: object,
        *,
        means: Found | None = None,
        take_turn: Callable[[], Awaitable[None]] | None = None,
        is_keyed: bool = False,
        also: type[Exception] | None = None,
    ) -> None:
        self.request = request
        self.is_open = True
        self.in_turn = False
        self._means = means
        self._take_turn = take_turn
        self._is_keyed = is_keyed
        self._also = also
        self._entering = asyncio.Lock()
        self._taken: dict[str, TakenSession] = {}
        self._drafts: dict[str, Draft[Any]] = {}
        self.named: TakenSession | None = None
        """The session of a call with an idempotency key, in which the key is stored."""
        self._keeps_no_key: UsageError | None = None
        self.needs_no_place = False
        """A session for the call's key is in use, or the tool ignores keys."""
        self.is_late = False
        """A session of another kind was saved before the end of this call."""
        self.beside: str | None = None
        """What was written in this call without waiting for its end."""
        self._standing: list[str] = []  # written elsewhere in this call: it persists if the save is rejected

    @property
    def has_taken(self) -> bool:
        """Whether there is any session to save."""
        return bool(self._taken)

    async def wait_for_turn(self, wanted: Found | None) -> None:
        """Let calls of this process that use the same session take turns, until each has ended."""
        if self._take_turn is None or wanted is None or wanted != self._means:
            return  # a nested call may use another one
        async with self._entering:
            if not self.in_turn:
                await self._take_turn()
                self.in_turn = True

    def keep_key_in(self, session: TakenSession) -> None:
        """Record the session, already read, that the call names."""
        self.named = session

    def refuse_key(self, error: UsageError) -> None:
        """Record that the call's session can't store its key: `error` is raised when a tool uses the session."""
        self._keeps_no_key = error

    def loaded(self, found: Found | None) -> TakenSession | None:
        """Use the session that was read before the call."""
        return self.named if found is not None and found == self._means else None

    def take(self, session: TakenSession) -> TakenSession:
        """Save this session after the call. The same session used twice in one call is saved once."""
        if self.beside is not None:
            raise _not_as_one(self.beside)
        if self._keeps_no_key is not None:
            raise self._keeps_no_key
        if self._is_keyed and (self.named is None or self.named.handle != session.handle):
            raise UsageError(
                "an idempotency key covers the session that the call names, and this tool uses another one",
                remedy="call it without a key",
            )
        ignore_keys()
        known = self._taken.get(session.handle)
        if known is None:
            known = self._taken[session.handle] = session
            self._drafts[session.handle] = session.in_call.open_draft()
        return known

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the changes gathered so far, for a nested call that fails."""
        before = [draft.snapshot() for draft in self._drafts.values()]
        known = set(self._taken)

        def restore() -> None:
            for put_back in before:
                put_back()
            for handle in set(self._taken) - known:
                self._drafts[handle] = self._taken[handle].in_call.open_draft()

        return restore

    def write_beside(self, what: str) -> None:
        """Reject a write that would persist even if the save after the call fails."""
        if self._taken:
            raise shown(_not_as_one(what), self._also)
        self._check_key(what)
        self.beside = what

    def check_end(self, handle: str) -> None:
        """Reject ending a session beside another one that is saved after the call."""
        if set(self._taken) - {handle}:
            raise shown(_not_as_one("the end of another session"), self._also)
        self._check_key("the end of a session")

    def drop_draft(self, handle: str) -> None:
        """Write nothing more to this session, which has ended."""
        if handle in self._taken:
            self._taken[handle].in_call.drop_draft()

    def will_stand(self, what: str) -> None:
        """Record a write that persists if the save after the call is rejected."""
        if what not in self._standing:
            self._standing.append(what)

    def _check_key(self, what: str) -> None:
        """Reject a write that a repeated call would repeat."""
        if self._is_keyed and not self.needs_no_place:
            error = UsageError(
                f"{what} would not be covered by the call's idempotency key, which is stored in the session that a "
                "tool uses",
                remedy="call it without a key",
            )
            raise shown(error, self._also)

    @property
    def will_write(self) -> bool:
        """Whether a session was changed or is to store the answer."""
        return bool(self._taken) and (self._is_keyed or any(draft.is_changed for draft in self._drafts.values()))

    def check_alone(self, label: str) -> None:
        """Reject saving where sessions of another kind are saved after the same call, which would be two writes."""
        if not self.will_write:
            return
        others = [call for call in _open() if call is not self]
        if any(call.will_write for call in others):
            raise UsageError(
                f"{label}: the call changed sessions of two kinds, or took them with an idempotency key: they can't be "
                "saved as one, and nothing of them was written",
                remedy="change sessions of one kind per call, or use edit() without the saving middleware",
            )
        for call in others:
            call.is_late = True

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        """Save all changes in one write, or none. The error of a rejected save names what was written independently."""
        try:
            await self._save(label, once)
        except HoldfastError as error:
            if self._standing:
                error.what = f"{error.what}; what may have been written: {', '.join(self._standing)}"
            raise

    async def _save(self, label: str, once: dict[str, JSON] | None) -> None:
        if self.is_late and self.will_write:
            raise UsageError(
                f"{label}: a session of another kind was already saved during this call; they can't be "
                "saved as one, and nothing of this one was written",
                remedy="change sessions of one kind per call, or use edit() without the saving middleware",
            )
        changed = [self._taken[handle] for handle, draft in self._drafts.items() if draft.is_changed]
        if len(changed) > 1:
            raise UsageError(
                f"{label}: the call changed {len(changed)} sessions, which can't be saved as one",
                remedy="change one session per call, or use edit() without the saving middleware",
            )
        last = self.named or (changed[0] if changed else next(iter(self._taken.values())))
        for session in self._taken.values():
            await session.in_call.save(label, once if session is last else None)

    def close(self) -> None:
        """The call has ended: tasks that it left running save for themselves."""
        self.is_open = False


def _not_as_one(what: str) -> UsageError:
    return UsageError(
        f"{what} is written at once, and this call's session after the call: if that save is rejected, only one of "
        "them is written",
        remedy="install without save=True, and change the session in `async with session.edit()`",
    )


CALLS: ContextVar[Mapping[object, CallState]] = ContextVar("holdfast_calls", default=MappingProxyType({}))
"""The current calls, by the table of the sessions that each of them saves."""


def call_state_of(table: object) -> CallState | None:
    """The current call that saves sessions of this kind; None in a task that outlived its call."""
    call = CALLS.get().get(table)
    return call if call is not None and call.is_open else None


def write_beside(what: str) -> None:
    """Reject an immediate write where the current call may save a session of any kind after it."""
    for call in _open():
        call.write_beside(what)


def end_beside(handle: str) -> None:
    """Reject ending a session where the current call saves another one of any kind after it."""
    for call in _open():
        call.check_end(handle)
    for call in _open():
        call.beside = "the end of a session"


def drop_draft(handle: str) -> None:
    """Let the current call write nothing more to a session that was ended."""
    for call in _open():
        call.drop_draft(handle)


def will_stand(what: str) -> None:
    """Record a write of the current call that persists if its save is rejected."""
    for call in _open():
        call.will_stand(what)


def ignore_keys() -> None:
    """Let the current call's key be ignored."""
    for call in _open():
        call.needs_no_place = True


def holds_another(table: object) -> bool:
    """Whether the current call has a turn on a session of another kind."""
    return any(call.in_turn and call.is_open for kind, call in CALLS.get().items() if kind is not table)


def _open() -> list[CallState]:
    return [call for call in CALLS.get().values() if call.is_open]
