"""The subscriptions of 2026 clients: who follows which lists and resources, and what each has not taken yet.

What a server announces in one caller's session goes to that caller's listeners; other announcements go to all.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.links.codec import weight

TASKS = ("tasks",)
"""In the place of the kinds of lists, in the update of a task."""
UPDATE_BYTES = 64 * 1024  # of one update beside its URI: it is kept until the client takes it
AGAIN_SECONDS = 1.0  # within which one change that a server announces over several links is announced once
_Change: TypeAlias = tuple[tuple[str, ...], str | None]
"""Kinds of lists, and the URI of a resource."""
_Update: TypeAlias = tuple[tuple[str, ...], Mapping[str, Any] | None]
"""Kinds of lists, and the parameters of a resource's update."""


class _Changes:
    """What a listener has not taken yet, each change once: it grows with the number of resources, not with time."""

    def __init__(self) -> None:
        self._waiting: dict[_Change | None, Mapping[str, Any] | None] = {}
        self._some = asyncio.Event()

    def put(self, change: _Change | None, params: Mapping[str, Any] | None = None) -> None:
        self._waiting[change] = params
        self._some.set()

    async def get(self) -> _Update | None:
        await self._some.wait()
        change = next(iter(self._waiting))
        params = self._waiting.pop(change)
        if not self._waiting:
            self._some.clear()
        return None if change is None else (change[0], params)


class RecentKinds:
    """Which kinds of lists were announced to one client a moment ago."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def note(self, kinds: Iterable[str]) -> None:
        """These are announced now."""
        self._at.update(dict.fromkeys(kinds, time.monotonic()))

    def without(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those of the kinds that were not announced a moment ago."""
        limit = time.monotonic() - AGAIN_SECONDS
        return tuple(kind for kind in kinds if self._at.get(kind, float("-inf")) < limit)


class Listener:
    """A 2026 subscription: to changes of lists, and of some resources. `session`: of its caller, if it names one."""

    def __init__(self, principal: Principal = ANONYMOUS, session: str | None = None) -> None:
        self.principal = principal
        self.session = session
        self.uris: frozenset[str] = frozenset()
        self._changes = _Changes()
        self._recent = RecentKinds()

    def follow(self, uris: Iterable[str]) -> None:
        """Follow these resources, too."""
        self.uris |= frozenset(uris)

    def lists_changed(self, kinds: tuple[str, ...]) -> None:
        self._recent.note(kinds)
        for kind in kinds:
            self._changes.put(((kind,), None))

    def lists_announced(self, kinds: tuple[str, ...]) -> None:
        """A server announced changes that do not show. It may have done so on several links."""
        self.lists_changed(self._recent.without(kinds))

    def resource_updated(self, uri: str, params: Mapping[str, Any]) -> None:
        if uri in self.uris:
            self._changes.put(((), uri), params)

    def task_updated(self, id: str, params: Mapping[str, Any]) -> None:
        """The latest state of a task replaces those before it."""
        self._changes.put((TASKS, id), params)

    def end(self) -> None:
        self._changes.put(None)

    async def next(self) -> _Update | None:
        """The next change; None: the subscription ends."""
        return await self._changes.get()


class Listeners:
    """The subscriptions of one gateway's 2026 clients."""

    def __init__(self) -> None:
        self._all: set[Listener] = set()
        self._over = False

    def __len__(self) -> int:
        return len(self._all)

    def add(self, listener: Listener) -> None:
        self._all.add(listener)
        if self._over:  # it was still finding its resources when the others ended
            listener.end()

    def remove(self, listener: Listener) -> None:
        self._all.discard(listener)

    def end(self) -> None:
        """The gateway goes down: every subscription ends."""
        self._over = True
        for listener in self._all:
            listener.end()

    def _of(self, principal: Principal | None, session: str | None) -> list[Listener]:
        """All, those of one caller, or of these the ones that may concern a session."""
        if principal is None:
            return list(self._all)
        own = (each for each in self._all if each.principal == principal)
        return [each for each in own if session is None or each.session in (None, session)]

    def lists_changed(
        self, kinds: tuple[str, ...], principal: Principal | None = None, session: str | None = None
    ) -> None:
        """Lists of these kinds show other items: to all, or to one caller in a session."""
        for listener in self._of(principal, session):
            listener.lists_changed(kinds)

    def lists_announced(
        self, kinds: tuple[str, ...], principal: Principal | None = None, session: str | None = None
    ) -> None:
        """A server announced a change of these lists, and no difference shows."""
        for listener in self._of(principal, session):
            listener.lists_announced(kinds)

    def resource_updated(
        self, uri: str, params: Mapping[str, Any], principal: Principal | None = None, session: str | None = None
    ) -> None:
        """A resource has changed: for all, or for one caller in a session."""
        kept = params if weight(params) <= UPDATE_BYTES else {"uri": uri}
        for listener in self._of(principal, session):
            listener.resource_updated(uri, kept)
