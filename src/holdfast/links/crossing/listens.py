"""`subscriptions/listen` of a 2026 session over a 2025 server: acknowledged here, and fed by what the server notifies.

It owns which listen gets which notification, and the server's subscriptions that listens need.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from holdfast.core.eras import SUBSCRIPTION_ID, Era
from holdfast.core.lifecycle import LinkState
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError, LimitReached
from holdfast.links.calls.errors import closed
from holdfast.links.calls.handlers import OnNotification, Params
from holdfast.links.calls.inbound import ACKNOWLEDGED
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link

OPEN_SECONDS = 1.0  # that the acknowledgement waits for the server's own stream
UNSUBSCRIBE_SECONDS = 10.0
LISTENS = 64  # of one session at once
RESOURCES = 4_096  # of one listen

LISTS: Mapping[str, tuple[str, str]] = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
"""The members of a filter, with the capability that each needs and the notification that it asks for."""
UPDATED = "notifications/resources/updated"
OF_LISTENS = frozenset({UPDATED, *(method for _, method in LISTS.values())})
"""The notifications that a 2026 session gets by a listen only."""


class Listen:
    """One listen. What comes before its acknowledgement waits for that, each kind once."""

    def __init__(self, id: str | int, kinds: tuple[str, ...], uris: tuple[str, ...]) -> None:
        self.id = id
        self.kinds = kinds
        self.uris = uris
        self.early: dict[tuple[str, object], tuple[str, dict[str, Any]]] | None = {}

    def wants(self, method: str, params: Params) -> bool:
        """Has it asked for this notification?"""
        if method != UPDATED:
            return any(LISTS[kind][1] == method for kind in self.kinds)
        changed = str((params or {}).get("uri"))  # which may be a part of what was subscribed to
        return any(changed == uri or changed.startswith(f"{uri.rstrip('/')}/") for uri in self.uris)


class Listens:
    """The listens of one session."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._open: list[Listen] = []
        self._ids = itertools.count(1)
        self.deliver: OnNotification | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def listen(self, id: str | int | None, params: Mapping[str, Any]) -> dict[str, Any]:
        """Serve one listen until its session cancels it, the link is closed, or the server comes back in 2026: then the
        session listens to the server itself."""
        if len(self._open) >= LISTENS:
            raise LimitReached(
                f"{len(self._open)} listens to {self._link.name!r} are open", limit=LISTENS, server=self._link.name
            )
        listen = self._honored(id if id is not None else f"listen-{next(self._ids)}", params)
        self._open.append(listen)
        watch: Watch | None = None
        try:
            self._link.stream.want()
            await self._link.stream.wait_listening(OPEN_SECONDS)
            watch = await self._watch(listen)
            self._acknowledge(listen)
            await self._wait_over(watch)
            raise closed(self._link.name, "subscriptions/listen", True)
        finally:
            self._open.remove(listen)
            if watch is not None:
                watch.close()
            self._end(listen.uris)

    async def _wait_over(self, watch: Watch) -> None:
        over = asyncio.ensure_future(watch.wait_over())
        try:
            while not over.done() and self._link.era is not Era.Y2026:
                changed = asyncio.ensure_future(self._link.lifecycle.changed.wait())
                try:
                    await asyncio.wait((over, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            over.cancel()

    def _honored(self, id: str | int, params: Mapping[str, Any]) -> Listen:
        """What the server can notify of, of what is wanted."""
        handshake = self._link.handshake
        offered: Mapping[str, Any] = handshake.capabilities if handshake is not None else {}
        wanted = members(params.get("notifications"))
        kinds = tuple(
            name
            for name, (kind, _) in LISTS.items()
            if wanted.get(name) is True and members(offered.get(kind)).get("listChanged") is True
        )
        uris: tuple[str, ...] = ()
        named = wanted.get("resourceSubscriptions")
        if isinstance(named, list) and members(offered.get("resources")).get("subscribe") is True:
            uris = tuple(dict.fromkeys(uri for uri in cast("list[object]", named) if isinstance(uri, str)))
        if len(uris) > RESOURCES:
            raise LimitReached(
                f"a listen to {self._link.name!r} names {len(uris)} resources", limit=RESOURCES, server=self._link.name
            )
        return Listen(id, kinds, uris)

    async def _watch(self, listen: Listen) -> Watch:
        tools, prompts, resources = (kind in listen.kinds for kind in LISTS)

        def watch_for(uris: tuple[str, ...]) -> Coroutine[Any, Any, Watch]:
            return self._link.watch(tools=tools, prompts=prompts, resources=resources, uris=uris, partial=True)

        try:
            watch = await watch_for(listen.uris)
        except ErrorAnswer:
            if not listen.uris:
                raise
            watch = await watch_for(())  # the server agrees to none of the resources
        listen.uris = watch.agreed
        return watch

    def _acknowledge(self, listen: Listen) -> None:
        honored: dict[str, Any] = dict.fromkeys(listen.kinds, True)
        if listen.uris:
            honored["resourceSubscriptions"] = list(listen.uris)
        self._send(listen, ACKNOWLEDGED, {"notifications": honored})
        early, listen.early = listen.early or {}, None
        for method, params in early.values():
            if listen.wants(method, params):
                self._send(listen, method, params)

    def take(self, method: str, params: Params) -> None:
        """Give a notification of the server to the listens that want it."""
        for listen in self._open:
            if not listen.wants(method, params):
                continue
            known = dict(params or {})
            if listen.early is not None:
                if len(listen.early) < RESOURCES:
                    listen.early[method, known.get("uri")] = (method, known)
            else:
                self._send(listen, method, known)

    def _send(self, listen: Listen, method: str, params: dict[str, Any]) -> None:
        if self.deliver is not None:
            meta = {**members(params.get("_meta")), SUBSCRIPTION_ID: listen.id}
            self.deliver(method, {**params, "_meta": meta})

    def _end(self, uris: tuple[str, ...]) -> None:
        """End the server's subscriptions that no other listen needs."""
        needed = {uri for listen in self._open for uri in listen.uris}
        gone = [uri for uri in uris if uri not in needed]
        if gone and self._link.phase is LinkState.READY and self._link.era is Era.Y2025:
            self._link.background.start(self._unsubscribe(gone), "unsubscribe")

    async def _unsubscribe(self, uris: list[str]) -> None:
        for uri in uris:
            if any(uri in listen.uris for listen in self._open):
                continue  # it is wanted again
            try:
                await self._link.request("resources/unsubscribe", {"uri": uri}, timeout=UNSUBSCRIBE_SECONDS)
            except HoldfastError:
                return  # the server goes on to notify, and nobody takes it
