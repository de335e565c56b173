"""What a call has in hand while middleware stands around it: sessions to be saved after it, and the request's scope.

It owns the two context variables. It refuses to save what nobody changed, and anything at all after an error.
"""

import copy
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from holdfast.core.values import JSON
from holdfast.errors import UsageError
from holdfast.state.identity import Found
from holdfast.state.session import Session


class CallState:
    """The sessions that one call has taken, saved together with its result. Over when the call is."""

    def __init__(self, request: object) -> None:
        self.request = request
        self.is_open = True
        self.taken: dict[str, Session[Any]] = {}
        self.loaded: dict[Found, Session[Any]] = {}
        """Sessions that were read before the call takes them."""
        self.wait_for_turn: Callable[[Found | None], Awaitable[None]] | None = None
        self.in_turn = False
        self.is_keyed = False
        self.named: Session[Any] | None = None
        """The session that a call with an idempotency key names: the key is kept in it."""
        self.beside: str | None = None
        """What was written in this call without waiting for its end."""

    def take(self, session: Session[Any]) -> Session[Any]:
        """The same session twice in one call is one."""
        if self.beside is not None:
            raise _not_as_one(self.beside)
        if self.is_keyed and (self.named is None or self.named.handle != session.handle):
            raise UsageError(
                "an idempotency key covers the session that the call names, and this tool takes another one",
                remedy="call it without a key",
            )
        known = self.taken.get(session.handle)
        if known is None:
            known = self.taken[session.handle] = session
            session.open_draft()
        return known

    def snapshot(self) -> Callable[[], None]:
        """A function that puts back what was gathered so far, for a nested call that fails."""
        before = [session.snapshot() for session in self.taken.values()]
        known = set(self.taken)

        def restore() -> None:
            for put_back in before:
                put_back()
            for handle in set(self.taken) - known:
                self.taken[handle].open_draft()

        return restore

    def write_beside(self, what: str) -> None:
        """Refuse a write that would stand even if what is saved after the call does not."""
        if self.taken:
            raise _not_as_one(what)
        self.beside = what

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        """One write: what changed is whole or not there."""
        changed = [session for session in self.taken.values() if session.is_changed]
        if len(changed) > 1:
            raise UsageError(
                f"{label}: the call changed {len(changed)} sessions, which can't be saved as one",
                remedy="change one session a call, or use edit() without the saving middleware",
            )
        last = self.named or (changed[0] if changed else next(iter(self.taken.values())))
        for session in self.taken.values():
            await session.save(label, once if session is last else None)


def _not_as_one(what: str) -> UsageError:
    return UsageError(
        f"{what} is written at once, and this call's session after the call: if that is refused, one of them stands",
        remedy="install without save=True, and change the session in `async with session.edit()`",
    )


def write_beside(what: str) -> None:
    """The same for the sessions of every kind that the call under way may have saved."""
    for work in WORK.get().values():
        if work.is_open:
            work.write_beside(what)


class Scope:
    """The values of one request, of which a nested call gets copies."""

    def __init__(self, request: object, values: dict[object, Any], arguments: Mapping[str, Any] | None = None) -> None:
        self.request = request
        self.values = values
        self.arguments = arguments
        """Of the call under way, nested ones included; None where nobody knows them."""
        self.prefix = ""
        """What the names of this server's tools begin with where the caller knows them: a mount's namespace."""

    def nested(self, arguments: Mapping[str, Any] | None = None) -> "Scope":
        copied = {scope: copy.deepcopy(value) for scope, value in self.values.items()}
        inner = Scope(self.request, copied, arguments)
        inner.prefix = self.prefix
        return inner


WORK: ContextVar[Mapping[object, CallState]] = ContextVar("holdfast_work", default=MappingProxyType({}))
"""By the `Sessions` that the work is of."""


def call_state_of(owner: object) -> CallState | None:
    """The work of the call under way; what was left by a call that is over is nobody's."""
    work = WORK.get().get(owner)
    return work if work is not None and work.is_open else None


def holds_another(owner: object) -> bool:
    """Has the call under way a turn on a session of another kind?"""
    return any(work.in_turn and work.is_open for kind, work in WORK.get().items() if kind is not owner)


SCOPE: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)


def known_as(*tools: str) -> str:
    """Tools of this server as the caller of the call under way knows them. A gateway may put more before a name."""
    scope = SCOPE.get()
    prefix = scope.prefix if scope is not None else ""
    return " or ".join(f"{prefix}{tool}" for tool in tools)


ENDS_SO = "(or the tool whose name ends so)"
