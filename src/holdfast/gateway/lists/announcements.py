"""Announcements of changes to clients: of lists and resources, to sessions that listen and to 2026 subscriptions.

It receives what backends report on links of no session.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.core.models import Principal
from holdfast.gateway.backends.lists.caller_lists import CallerLists
from holdfast.gateway.backends.lists.looks import NOTIFICATIONS
from holdfast.gateway.lists.listeners import Listeners
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.sessions.session import GatewaySession


class Announcements:
    """The announcements of one gateway; a `BackendListener`."""

    def __init__(
        self,
        offers: Offers,
        live: Mapping[str, GatewaySession],
        caller_lists: CallerLists,
        listeners: Listeners,
    ) -> None:
        self._offers = offers
        self._live = live
        self._caller_lists = caller_lists
        self._listeners = listeners
        self.states = asyncio.Event()
        """A backend went up or down since this was cleared."""

    def state_changed(self) -> None:
        self.states.set()

    def lists_changed(self) -> None:
        changed = self._offers.rebuild()
        for session in self._live.values():
            if session.lists.differ:  # also where nothing changed for the others: a reload may have dropped its own
                session.lists.rebuild()
            else:
                session.notices.announce(changed)
        if changed:
            self._listeners.lists_changed(changed)

    def lists_announced(self, kind: str) -> None:
        for session in self._live.values():
            session.notices.announce_unseen((kind,))
        self._listeners.lists_announced((kind,))

    def resource_updated(self, uri: str, params: Mapping[str, Any], principal: Principal | None = None) -> None:
        for session in self._live.values():
            if uri in session.links.followed and principal in (None, session.principal):
                session.notices.push({"method": "notifications/resources/updated", "params": dict(params)})
        self._listeners.resource_updated(uri, params, principal)

    def server_replaced(self, backend: str) -> None:
        self._caller_lists.forget(backend)
        kinds = tuple(NOTIFICATIONS)
        for session in self._live.values():
            session.notices.announce(kinds)
        self._listeners.lists_changed(kinds)
