"""The listens at one 2026 server, which announces changes of its lists only to clients that asked for them."""

import asyncio
import logging

from holdfast.core.eras import Era
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.links.link import LinkOwner
from holdfast.gateway.backends.links.shared_links import SharedLinks
from holdfast.gateway.backends.lists.known_lists import KnownLists
from holdfast.gateway.backends.lists.looks import LISTS
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

AGREE_SECONDS = 0.5  # for a server to agree to a listen, before a client's own is acknowledged


class ListWatches:
    """The listens for changes of one backend's lists."""

    def __init__(self, backend: LinkOwner, known: KnownLists, links: SharedLinks) -> None:
        self._backend = backend
        self._known = known
        self._links = links
        self._watching: dict[bool, tuple[Link, Watch]] = {}
        """By whether the link is the one that 2026 clients share, else the one for all clients."""
        self._agreeing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def watch_stateless(self) -> None:
        """Listen at the 2026 side of a server whose lists are read in 2025: it announces there what 2026 calls do. A
        server that is slow to agree is not waited for."""
        if self._agreeing is None and not self._is_closed:
            self._agreeing = asyncio.create_task(self._watch_stateless(), name=f"watch {self._backend.name}")
            self._agreeing.add_done_callback(self._agreed)
        if self._agreeing is not None:
            await asyncio.wait((self._agreeing,), timeout=AGREE_SECONDS)

    def _agreed(self, task: "asyncio.Task[None]") -> None:
        self._agreeing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: changes of its lists are not announced", self._backend.name, exc_info=error)

    async def _watch_stateless(self) -> None:
        if self._known.catalogue is None or self._backend.health.state != "up":
            return
        if self._known.catalogue.era == Era.Y2026.value:
            return  # the link for all clients listens
        try:
            backend_link = await self._links.stateless(keep=True)
        except HoldfastError as error:
            log.info("%s: changes of its lists are not announced: %s", self._backend.name, error.what)
            return
        if backend_link is not None:
            await self.watch(backend_link.link, is_stateless=True)

    async def watch(self, link: Link, *, is_stateless: bool = False) -> None:
        """Listen for changes at a 2026 server, which announces them only to clients that asked for them."""
        handshake = link.handshake
        known = self._watching.get(is_stateless)
        if (known is not None and known[0] is link) or handshake is None or handshake.era is not Era.Y2026:
            return
        sent = {kind: members(handshake.capabilities.get(kind)).get("listChanged") is True for kind in LISTS.values()}
        if not any(sent.values()):
            return
        try:
            tools, prompts, resources = (sent[kind] for kind in ("tools", "prompts", "resources"))
            self._watching[is_stateless] = link, await link.watch(tools=tools, prompts=prompts, resources=resources)
        except HoldfastError as error:
            log.info("%s: changes of its lists are not announced: %s", self._backend.name, error.what)

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        if self._agreeing is not None:
            self._agreeing.cancel()
