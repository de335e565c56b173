"""The store of one `Sessions`: a given one, one in memory, or one opened from a URL by the first call that needs it.

A store belongs to one event loop, so a store opened here is opened once for each loop.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError, UsageError
from holdfast.state.calls.request import current_transaction
from holdfast.stores import open_store
from holdfast.stores.contract import Store

log = logging.getLogger(__name__)


class StoreHandle:
    """Provides the open store to concurrent callers, and closes it if it opened it."""

    def __init__(self, store: str | Store, *, keys: Sequence[bytes | str] | None, max_bytes: int, owner: str) -> None:
        if not isinstance(store, str) and keys is not None:
            raise UsageError(
                "keys= needs a store URL: a store that is given has keys of its own", remedy="open_store(url, keys=…)"
            )
        self._owner = owner
        self._keys, self._max_bytes = tuple(keys) if keys is not None else None, max_bytes
        self._unopened = self._made(store) if isinstance(store, str) else store  # a bad address raises here
        self._url = store if isinstance(store, str) else None
        self._memory_loop: asyncio.AbstractEventLoop | None = None
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Store]] = {}

    def __repr__(self) -> str:
        return self._unopened.url  # without secrets

    def _made(self, url: str) -> Store:
        return open_store(url, keys=self._keys, max_bytes=self._max_bytes)

    @property
    def place(self) -> object:
        """Equal for handles of one store, whose records can be written in one step."""
        return (self._url, self._keys) if self._url not in (None, "memory:") else self._unopened

    async def open(self) -> Store:
        """Open the store for the running event loop, unless that was done, and return it. In a call that has taken
        sessions of it, the store as that call sees it."""
        transaction = current_transaction()
        if transaction is not None and transaction.covers(self.place):
            return transaction.staged
        return await self.open_real()

    async def open_real(self) -> Store:
        """The same, also within a call."""
        loop = asyncio.get_running_loop()
        if self._url is None:
            return self._unopened
        if self._url == "memory:":  # lives as long as this object, in any event loop
            if self._memory_loop is not loop:
                if self._memory_loop is not None:
                    await self._unopened.__aexit__(None, None, None)
                self._memory_loop = loop
                await self._unopened.__aenter__()
            return self._unopened
        for other in [other for other in self._opening if other.is_closed()]:
            left = self._opening.pop(other)
            if left.done() and not left.cancelled() and left.exception() is None:
                log.warning(
                    "%s: an event loop ended without `await sessions.close()`, and left its store open", self._owner
                )
        opening = self._opening.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = loop.create_task(self._made(self._url).__aenter__(), name=f"open the store of {self._owner}")
            self._opening[loop] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close the store of the running event loop; the next call opens it again."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            with suppress(HoldfastError):
                await (await opening).__aexit__(None, None, None)
