"""Lists as servers show them now: which are read again before a client gets them, and what an answer has besides items.

A list is read over the session's own link where the session may see other things, else over the link for all clients.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from holdfast.core.eras import Era
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.lists.list_members import ListMembers, merged
from holdfast.gateway.backends.lists.looks import FRESH_SECONDS
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway


class FreshLists:
    """The lists of one gateway, for requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def freshen(self, context: RequestContext, name: str) -> None:
        """Read a list again at each server where it may have changed; a server that is slow is not waited for longer
        than at the start of a session."""
        await self._freshen(context, self._gateway.backends.values(), name, None)

    async def look_for(self, context: RequestContext, name: str, public: str) -> bool:
        """Fetch the lists of servers that may offer a tool or prompt of a public name by now. False: there are none."""
        asked = self._that_may_have(public)
        await self._freshen(context, asked, name, time.monotonic())
        return bool(asked)

    def why_unknown(self, context: RequestContext, public: str) -> HoldfastError | None:
        """Why it can't be said that no server has a name with its prefix; None: none has it, or it has no prefix."""
        if self._gateway.settings.naming.mode != "prefix":
            return None
        for backend in self._with_prefix_of(public):
            if backend.is_per_caller:
                error = self._gateway.caller_lists.why_unknown(context, backend)
                if error is not None:
                    return error
            elif backend.catalogue is None or backend.health.state == "down":
                return backend.health.unavailable()
        return None

    def _with_prefix_of(self, public: str) -> list[Backend]:
        return [backend for name, backend in self._gateway.backends.items() if public.startswith(f"{name}__")]

    def _that_may_have(self, public: str) -> list[Backend]:
        naming, backends = self._gateway.settings.naming, self._gateway.backends
        if naming.mode != "prefix" or public in naming.rename.values():
            return list(backends.values())
        return self._with_prefix_of(public)

    async def _freshen(
        self, context: RequestContext, backends: Iterable[Backend], name: str, since: float | None
    ) -> None:
        own = context.session.lists if context.session is not None else None
        seconds = self._gateway.settings.sessions.start
        due: list[Any] = []
        for backend in backends:
            if backend.is_per_caller:
                continue
            if own is not None and own.looks_over_own_link(backend.name):
                due.append(own.freshen(backend.name, name, seconds, since))
            elif backend.lists.can_look and not backend.lists.looks.is_fresh(name, since):
                due.append(backend.lists.looks.freshen(name, seconds, since))
        if due:
            await asyncio.gather(*due)

    def members(self, context: RequestContext, name: str) -> dict[str, Any]:
        """What the servers' lists of a name have beside their items, merged; for 2026 clients how long all of them may
        be kept."""
        lists: list[tuple[str, ListMembers]] = []
        ttl, public = float("inf"), self._gateway.settings.auth == "none"
        own = context.session.lists if context.session is not None else None
        for backend in self._gateway.backends.values():
            catalogue, looks = backend.catalogue, backend.lists.looks
            if own is not None and own.looks_over_own_link(backend.name):
                catalogue, looks = own.catalogues.get(backend.name, catalogue), own.looks_at(backend.name)
            if catalogue is None or backend.is_per_caller:
                ttl = 0.0  # it may offer something at any time
                continue
            if (about := catalogue.about.get(name)) is None:
                continue
            lists.append((backend.name, about))
            lasts = 1000 * FRESH_SECONDS if about.ttl_ms is None else about.ttl_ms
            ttl = min(ttl, lasts - 1000 * looks.age(name))
            public = public and about.public and looks is backend.lists.looks
        about_all = merged(lists)
        if context.era is Era.Y2026 and 0 < ttl < float("inf"):
            about_all |= {"ttlMs": int(ttl), "cacheScope": "public" if public else "private"}
        return about_all
