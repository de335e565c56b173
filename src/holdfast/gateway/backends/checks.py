"""Checks of all backends: one at the start and after a change of the configuration, then each at its own pace.

It owns the checks under way: a backend that hangs holds up no check of another.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from holdfast.gateway.backends.backend import Backend

log = logging.getLogger("holdfast.gateway")

STOP_SECONDS = 5.0  # for checks to take their cancellation


class HealthChecks:
    """The checks of one gateway's backends."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._checking: dict[Backend, asyncio.Task[None]] = {}
        self._all: set[asyncio.Task[None]] = set()
        self._checked = asyncio.Event()

    @property
    def done(self) -> bool:
        """Has every backend been checked once, since the start or the last change?"""
        return self._checked.is_set()

    def check_all(self) -> "asyncio.Task[None]":
        """Check every backend once, as at the start."""
        self._checked.clear()
        task = asyncio.get_running_loop().create_task(self._check_all(), name="gateway first check")
        self._all.add(task)
        task.add_done_callback(self._all.discard)
        return task

    async def _check_all(self) -> None:
        try:
            await asyncio.gather(*(backend.check() for backend in self._backends.values()))
        finally:
            self._checked.set()

    async def fetch_all(self) -> None:
        """Fetch the lists of every backend now, however old they are."""
        await asyncio.gather(*(backend.check(fetch=True) for backend in self._backends.values()))

    async def keep_checking(self, every: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(every())
            for backend in self._backends.values():
                if backend not in self._checking:
                    task = asyncio.get_running_loop().create_task(backend.check(), name=f"gateway check {backend.name}")
                    self._checking[backend] = task
                    task.add_done_callback(lambda task, backend=backend: self._done(backend, task))

    def _done(self, backend: Backend, task: "asyncio.Task[None]") -> None:
        self._checking.pop(backend, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("backend %r could not be checked", backend.name, exc_info=error)

    async def wait_first(self, seconds: float) -> None:
        """Wait until each backend that is still coming up for the first time has shown what it offers."""
        if self.done or all(backend.catalogue is not None for backend in self._backends.values()):
            return
        try:
            await asyncio.wait_for(self._checked.wait(), timeout=seconds)
        except TimeoutError:
            return

    async def close(self) -> None:
        tasks = (*self._all, *self._checking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
