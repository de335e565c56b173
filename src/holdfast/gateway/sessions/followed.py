"""The resources that one 2025 session follows over links which it shares with others: one listen there feeds all.

It owns the session's share in those subscriptions, until the session ends or rests.
"""

from collections.abc import Iterator

from holdfast.core.eras import Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.subscriptions import Subscriptions


def shared_subscriptions(backend: Backend, principal: Principal, idle: float) -> Subscriptions | None:
    """The subscriptions of the link that a caller shares at a backend; None where each session has to follow a resource
    over its own link, because a 2025 server sends updates to the session that subscribed."""
    reuse, links = backend.policy.reuse, backend.links
    if backend.is_per_caller:
        return None
    if reuse == "principal" and principal != ANONYMOUS:
        return links.subscriptions(links.for_principal(principal, idle), principal)
    if reuse == "shared" or (backend.era is Era.Y2026 and not backend.is_child):
        return links.subscriptions(links.common())
    return None


class FollowedResources:
    """The resources of one session, by URI."""

    __slots__ = ("_subscriptions",)

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscriptions] = {}

    def __contains__(self, uri: object) -> bool:
        return uri in self._subscriptions

    def __iter__(self) -> Iterator[str]:
        return iter(self._subscriptions)

    async def add(self, uri: str, subscriptions: Subscriptions) -> bool:
        """Follow a resource. False: the server does not agree to it."""
        if uri in self._subscriptions:
            return True
        self._subscriptions[uri] = subscriptions
        agreed = False
        try:
            agreed = uri in await subscriptions.add([uri])
        finally:
            if not agreed:
                self._subscriptions.pop(uri, None)
        if agreed and self._subscriptions.get(uri) is not subscriptions:  # the session has ended meanwhile
            subscriptions.remove([uri])
        return agreed

    def remove(self, uri: str) -> bool:
        """Follow a resource no longer. False: it was not followed here."""
        subscriptions = self._subscriptions.pop(uri, None)
        if subscriptions is not None:
            subscriptions.remove([uri])
        return subscriptions is not None

    def close(self) -> None:
        """Follow nothing any more."""
        for uri in list(self._subscriptions):
            self.remove(uri)
