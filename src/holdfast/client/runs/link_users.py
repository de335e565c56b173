"""The runs that currently use a link: the newest answers the server's questions, and all get the link's events."""

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import ServerDeclaration
from holdfast.events import Event, LinkSessionReplaced
from holdfast.links.link import Link


class LinkUser(Protocol):
    """The part of a run that a link uses."""

    @property
    def callbacks(self) -> Callbacks: ...
    @property
    def wants_requests(self) -> bool: ...
    def on_event(self, server: ServerDeclaration, event: Event) -> None: ...


class LinkUsers:
    """The users of one link. Only a link that is kept for the process can have several, or temporarily none."""

    def __init__(self, server: ServerDeclaration, kept: bool) -> None:
        self._server = server
        self._kept = kept
        self._now: list[LinkUser] = []
        self._missed: LinkSessionReplaced | None = None
        """Events of a kept link while no run used it."""

    def join(self, user: LinkUser, link: Link) -> None:
        self._now.append(user)
        if self._kept:
            link.losses.sharers.add(user)
        missed, self._missed = self._missed, None
        if missed is not None:
            user.on_event(self._server, missed)

    def leave(self, user: LinkUser, link: Link) -> None:
        """For a kept link; a link of the run itself still reports to it while closing."""
        if self._kept and user in self._now:
            self._now.remove(user)
            link.losses.sharers.remove(user)

    def _callbacks(self) -> Callbacks:
        merged = self._server.callbacks or Callbacks()
        for user in reversed(self._now):
            merged = merged.over(user.callbacks)
        return merged

    async def answer(self, method: str, params: Mapping[str, Any] | None, id: str | int) -> dict[str, Any]:
        """Answer a request of the server."""
        return await self._callbacks().answer(method, params, id, server=self._server.name)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._callbacks().notify(method, params)

    def want_requests(self) -> bool:
        """Does one of them want an event for each request?"""
        return any(user.wants_requests for user in self._now)

    def on_event(self, event: Event) -> None:
        if not self._now and isinstance(event, LinkSessionReplaced):
            self._missed = event
        for user in tuple(self._now):
            user.on_event(self._server, event)
