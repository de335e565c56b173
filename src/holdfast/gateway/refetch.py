"""Lists that are fetched anew because a handshake said that the server may be another one: soon, and not too often.

It owns the spacing: a server that comes back brings a handshake for each session, and one fetch does for all of them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger("holdfast.gateway")

SPACING = 1.0  # seconds between two fetches


class Refetch:
    """Of one backend. `fetched` says when its lists were fetched last."""

    def __init__(self, name: str, fetch: Callable[[], Awaitable[object]], fetched: Callable[[], float]) -> None:
        self._name = name
        self._fetch = fetch
        self._fetched = fetched
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._closed = False

    def soon(self) -> None:
        """Fetch them, and once more if this comes while they are being fetched."""
        self._due = True
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"news {self._name}")
            self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        while self._due:
            await asyncio.sleep(max(0.0, self._fetched() + SPACING - time.monotonic()))
            self._due = False
            await self._fetch()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: its lists could not be fetched: %s", self._name, error)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
