"""Lists that are fetched anew because the server said that they changed, or may be another one: soon, not too often.

It owns the spacing: a server that comes back brings a handshake for each session, and one that says a thousand times
that a list changed is asked once for all of it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.gateway")

SPACING = 1.0  # seconds between two fetches


class Refetch:
    """Of one backend. `fetch` takes what was said to have changed; `fetched` says when its lists were fetched last by
    anybody else."""

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
        self._said: set[str] = set()
        self._closed = False

    def soon(self, said: str | None = None) -> None:
        """Fetch them, and once more if this comes while they are being fetched."""
        self._due = True
        if said is not None:
            self._said.add(said)
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"news {self._name}")
            self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        while self._due:
            await asyncio.sleep(max(0.0, max(self._fetched(), self._began) + SPACING - time.monotonic()))
            said, self._said = frozenset(self._said), set()
            self._due, self._began = False, time.monotonic()
            try:
                await self._fetch(said)
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
