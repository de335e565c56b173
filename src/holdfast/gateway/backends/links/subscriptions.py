"""The resources that readers of one link subscribe to: one upstream subscription for all of them.

It owns the number of readers of each resource, and the change from one upstream listen to the next without a gap. It
holds at most `RESOURCES`. Notifications go to the link's `on_notification`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from holdfast.core.eras import Era
from holdfast.errors import HoldfastError, LimitReached
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

LISTEN_URIS = 256  # of one `subscriptions/listen`, and of one 2025 session: what a client can sensibly follow
RESOURCES = 4_096  # of one link: all of them are in one request to the server
UNSUBSCRIBE_SECONDS = 10.0


class Subscriptions:
    """The subscriptions of one link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._readers: Counter[str] = Counter()
        self._watches: list[Watch] = []
        self._lock = asyncio.Lock()

    def __contains__(self, uri: str) -> bool:
        return uri in self._readers

    def __len__(self) -> int:
        return len(self._readers)

    async def add(self, uris: Iterable[str]) -> list[str]:
        """One more reader for each. Returns those that the server agreed to; HoldfastError if it takes none."""
        wanted = list(dict.fromkeys(uris))
        async with self._lock:  # one change at a time: each starts from the result of the one before
            new = [uri for uri in wanted if uri not in self._readers]
            if len(self._readers) + len(new) > RESOURCES:
                raise LimitReached(
                    f"{self.link.name!r} has {len(self._readers)} subscribed resources, and {len(new)} more are wanted",
                    limit=RESOURCES,
                    server=self.link.name,
                    remedy="unsubscribe from some",
                )
            agreed = await self._begin(new) if new else frozenset[str]()
            taken = [uri for uri in wanted if uri in self._readers or uri in agreed]
            self._readers.update(taken)
        return taken

    async def _begin(self, new: list[str]) -> frozenset[str]:
        await self.link.open()
        if self.link.era is Era.Y2026:
            # One listen is for all. The next one begins before the last one ends, so that nothing is missed.
            watch = await self.link.watch(uris=[*self._readers, *new], partial=True)
            self._close()
        else:
            watch = await self.link.watch(uris=new, partial=True)
        self._watches.append(watch)
        return frozenset(watch.agreed)

    def remove(self, uris: Iterable[str]) -> None:
        """One reader less for each. The server's listen may go on with more than is wanted until the next change."""
        gone: list[str] = []
        for uri in uris:
            self._readers[uri] -= 1
            if self._readers[uri] <= 0:
                del self._readers[uri]
                gone.append(uri)
        if not self._readers:
            self._close()
        if gone and self.link.era is Era.Y2025:
            self.link.background.start(self._unsubscribe(gone), "unsubscribe")

    def _close(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()

    async def _unsubscribe(self, uris: list[str]) -> None:
        for uri in uris:
            if uri in self._readers:
                continue  # it has a reader again
            try:
                await self.link.request("resources/unsubscribe", {"uri": uri}, timeout=UNSUBSCRIBE_SECONDS)
            except HoldfastError as error:
                log.info("%s: a resource stays subscribed to: %s", self.link.name, error.what)
                return
