"""Fetching lists again after the server announced a change or was replaced: soon, and not too often.

It owns the spacing: a server that comes back brings a handshake for each session, and one that announces a thousand
changes is asked once for all of them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.gateway")

SPACING = 1.0  # seconds between two fetches


class Refetch:
    """The pending fetch of one backend. `fetch` takes what was announced; `fetched` is when its lists were fetched last
    for another reason."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[frozenset[str]], Awaitable[object]],
        fetched: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._fetched = fetched
        self._began = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._announced: set[str] = set()
        self._closed = False

    def soon(self, announced: str | None = None) -> None:
        """Fetch them, and once more if this comes while they are being fetched."""
        self._due = True
        if announced is not None:
            self._announced.add(announced)
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"news {self._name}")
            self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        while self._due:
            await asyncio.sleep(max(0.0, max(self._fetched(), self._began) + SPACING - time.monotonic()))
            announced, self._announced = frozenset(self._announced), set()
            self._due, self._began = False, time.monotonic()
            try:
                await self._fetch(announced)
            except HoldfastError as error:
                if not self._closed:
                    log.warning("%s: its lists could not be fetched: %s", self._name, error.what)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: its lists could not be fetched", self._name, exc_info=error)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
