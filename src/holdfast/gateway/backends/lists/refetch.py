"""Fetching lists again after the server announced a change or was replaced: soon, and not too often.

It owns the spacing: a server that comes back brings a handshake for each session, and one that announces a thousand
changes of a list is asked once for all of them. The first of each kind does not wait: lists often change together.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.gateway")

SPACING = 1.0  # seconds between two fetches for the same kind of list


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
        self._began: dict[str | None, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._due: set[str | None] = set()
        """What was announced since the last fetch; None stands for the server as a whole."""
        self._more = asyncio.Event()
        self._closed = False

    def soon(self, announced: str | None = None) -> None:
        """Fetch them, and once more if this comes while they are being fetched."""
        self._due.add(announced)
        self._more.set()
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"news {self._name}")
            self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        while self._due:
            await self._wait_until_due()
            due, self._due = self._due, set()
            self._began.update(dict.fromkeys(due, time.monotonic()))
            try:
                await self._fetch(frozenset(each for each in due if each is not None))
            except HoldfastError as error:
                if not self._closed:
                    log.warning("%s: its lists could not be fetched: %s", self._name, error.what)

    async def _wait_until_due(self) -> None:
        while (wait := min(map(self._left, self._due))) > 0:
            self._more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._more.wait()  # another kind may be due at once

    def _left(self, announced: str | None) -> float:
        """Seconds until this may be fetched again."""
        return max(self._fetched(), self._began.get(announced, float("-inf"))) + SPACING - time.monotonic()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: its lists could not be fetched", self._name, exc_info=error)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
