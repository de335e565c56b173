"""The changes that a 2025 session is notified of by a 2026 server: one `subscriptions/listen` feeds all.

It owns the session's subscriptions to resources, and the change from one listen to the next without a gap: the next one
begins before the last one ends, so a change in between may be notified twice, and is never missed.
"""

import asyncio

from holdfast.core.eras import METHOD_NOT_FOUND, Era
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError, LimitReached, OutcomeUnknown, Unavailable
from holdfast.links.calls.watch import Watch
from holdfast.links.crossing.shapes import NOT_FOUND_2025
from holdfast.links.link import Link

LISTEN_SECONDS = 1.0  # that a session's start waits for the server to agree; it goes on without, and is told later
RESOURCES = 4_096  # that one session subscribes to: all of them stand in one request to the server
KINDS = ("tools", "prompts", "resources")


class ChangeFeed:
    """One session's. It listens for the lists that the server may change, and for the resources subscribed to."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._uris: dict[str, None] = {}
        self._watch: Watch | None = None
        self._starting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._refused_in: int | None = None
        self.is_open = False
        """A session is there that is to be notified."""

    async def start(self, seconds: float = LISTEN_SECONDS) -> None:
        """Listen, and wait until the server has agreed, at most so long."""
        self.ensure()
        if self._starting is not None:
            await asyncio.wait((self._starting,), timeout=seconds)

    def ensure(self) -> None:
        """Listen, if that is wanted and not so yet: the link may have been closed, or have changed its era."""
        if not self.is_open or self._link.era is not Era.Y2026 or self._refused_in == self._link.generation:
            return
        if (self._watch is not None and not self._watch.is_over) or (
            self._starting is not None and not self._starting.done()
        ):
            return
        if self._uris or any(self._kinds().values()):
            self._starting = self._link.background.start(self._start(), "changes for a 2025 session")

    async def _start(self) -> None:
        while self.is_open:
            try:
                async with self._lock:
                    await self._replace(tuple(self._uris))
                return
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0)  # it was tried for as long as a link may take to come up
            except HoldfastError:  # the server refuses it; its next generation may not
                self._refused_in = self._link.generation
                return

    async def subscribe(self, uri: str) -> None:
        """Listen for this resource too. Raises what a 2025 server would answer."""
        if not self._offers("resources", "subscribe"):
            raise _refused(self._link.name, "Method not found", METHOD_NOT_FOUND, None)
        async with self._lock:
            if uri in self._uris and self._watch is not None and not self._watch.is_over:
                return
            if len(self._uris) >= RESOURCES:
                raise LimitReached(
                    f"{len(self._uris)} resources of {self._link.name!r} are subscribed to",
                    limit=RESOURCES,
                    server=self._link.name,
                    remedy="unsubscribe from some",
                )
            if not await self._replace((*self._uris, uri), new=uri):
                raise _refused(self._link.name, "Resource not found", NOT_FOUND_2025, {"uri": uri})
            self._uris[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        """Listen for this resource no longer."""
        async with self._lock:
            if uri not in self._uris:
                return
            del self._uris[uri]
            await self._replace(tuple(self._uris))

    def subscribed(self, method: str, uri: object) -> None:
        """A 2025 server has taken a subscription, or the end of one: the link may come up in 2026 later."""
        if not isinstance(uri, str):
            return
        if method == "resources/subscribe":
            self._uris[uri] = None
        else:
            self._uris.pop(uri, None)

    async def _replace(self, uris: tuple[str, ...], *, new: str | None = None) -> bool:
        """Listen for these resources, in place of those before. False if the server does not agree to the new one:
        then nothing has changed."""
        before, kinds = self._watch, self._kinds()
        watch: Watch | None = None
        if uris or any(kinds.values()):
            watch = await self._link.watch(**kinds, uris=uris, partial=True)
            if not self.is_open or (new is not None and new not in watch.agreed):  # or the session ended meanwhile
                watch.close()
                return False
        self._watch = watch
        if before is not None:
            before.close()
        return True

    def _kinds(self) -> dict[str, bool]:
        return {kind: self._offers(kind, "listChanged") for kind in KINDS}

    def _offers(self, kind: str, what: str) -> bool:
        handshake = self._link.handshake
        return handshake is not None and members(handshake.capabilities.get(kind)).get(what) is True

    def close(self) -> None:
        """The session has ended."""
        self.is_open = False
        self._uris.clear()
        for each in (self._watch, self._starting):
            if isinstance(each, Watch):
                each.close()
            elif each is not None:
                each.cancel()
        self._watch = self._starting = None


def _refused(server: str, message: str, code: int, data: object) -> ErrorAnswer:
    return ErrorAnswer(f"resources/subscribe: {message}", message=message, code=code, data=data, server=server)
