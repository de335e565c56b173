"""Announcements of changes to clients: of lists and resources, to sessions that listen and to 2026 subscriptions.

It receives what backends report, and owns the subscriptions of 2026 clients.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.gateway.backends.caller_lists import CallerLists
from holdfast.gateway.backends.lists import NOTIFICATIONS
from holdfast.gateway.backends.offers import Offers
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.codec import weight

TASKS = ("tasks",)
"""Stands where the kinds of lists are, in the update of a task."""
UPDATE_BYTES = 64 * 1024  # of one update beside its URI: it is kept until the client takes it
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


class Listener:
    """A 2026 subscription: to changes of lists, and of some resources."""

    def __init__(self) -> None:
        self._changes = _Changes()
        self.uris: frozenset[str] = frozenset()

    def follow(self, uris: Iterable[str]) -> None:
        """Follow these resources, too."""
        self.uris |= frozenset(uris)

    def lists_changed(self, kinds: tuple[str, ...]) -> None:
        self._changes.put((kinds, None))

    def resource_updated(self, uri: str, params: Mapping[str, Any]) -> None:
        if uri in self.uris:
            self._changes.put(((), uri), params)

    def task_updated(self, id: str, params: Mapping[str, Any]) -> None:
        """The latest state of a task stands for those before it."""
        self._changes.put((TASKS, id), params)

    def end(self) -> None:
        self._changes.put(None)

    async def next(self) -> _Update | None:
        """The next change; None: the subscription ends."""
        return await self._changes.get()


class Announcements:
    """The announcements of one gateway; a `BackendListener`."""

    def __init__(self, offers: Offers, live: Mapping[str, GatewaySession], caller_lists: CallerLists) -> None:
        self._offers = offers
        self._live = live
        self._caller_lists = caller_lists
        self.listeners: set[Listener] = set()
        self.states = asyncio.Event()
        """A backend went up or down since this was cleared."""

    def add(self, listener: Listener) -> None:
        self.listeners.add(listener)

    def remove(self, listener: Listener) -> None:
        self.listeners.discard(listener)

    def end(self) -> None:
        """The gateway goes down: every subscription ends."""
        for listener in self.listeners:
            listener.end()

    def state_changed(self) -> None:
        self.states.set()

    def lists_changed(self) -> None:
        changed = self._offers.rebuild()
        for session in self._live.values():
            if session.lists.differ:  # also where nothing changed for the others: a reload may have dropped its own
                session.lists.rebuild()
            else:
                session.announce(changed)
        if changed:
            for listener in self.listeners:
                listener.lists_changed(changed)

    def lists_announced(self, kind: str) -> None:
        self._announce((kind,))

    def resource_updated(self, uri: str, params: Mapping[str, Any]) -> None:
        kept = params if weight(params) <= UPDATE_BYTES else {"uri": uri}
        for listener in self.listeners:
            listener.resource_updated(uri, kept)

    def server_replaced(self, backend: str) -> None:
        self._caller_lists.forget(backend)
        self._announce(tuple(NOTIFICATIONS))

    def _announce(self, kinds: tuple[str, ...]) -> None:
        for session in self._live.values():
            session.announce(kinds)
        for listener in self.listeners:
            listener.lists_changed(kinds)
