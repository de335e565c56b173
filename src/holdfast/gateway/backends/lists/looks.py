"""When each list of a server was read last, and the reading of one now, once for all who wait for it.

It owns the decision whether a list is fresh: read after the last call that may have changed it, and not long ago. A
server that does not answer delays its callers once, and is left alone for a while.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.gateway")

FRESH_SECONDS = 0.5  # for which a list that was read is taken as true, if its server gives no time and no call came
READINGS = 3  # for one caller: some servers announce a change whenever they are listed
REST_SECONDS = 5.0  # after a reading that failed or came late
METHODS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}
LISTS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}
NOTIFICATIONS = {kind: method for method, kind in LISTS.items()}


class Looks:
    """The readings of one server's lists over one kind of link. `read` reads the list of a name and keeps it; `ttl` is
    the seconds for which the server lets it be kept."""

    def __init__(self, server: str, read: Callable[[str], Awaitable[None]], ttl: Callable[[str], float]) -> None:
        self._server = server
        self._read = read
        self._ttl = ttl
        self.changes = 0
        """How often `mark_changed` was called."""
        self._read_at: dict[str, tuple[float, int]] = {}
        """When the last reading of a list that succeeded began, and how many changes there were then."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._rests: dict[str, float] = {}
        self._closed = False

    def mark_changed(self) -> None:
        """A call or an announcement, which may have changed any list."""
        self.changes += 1

    def began(self) -> tuple[float, int]:
        """The state before a reading, to be given to `done`."""
        return time.monotonic(), self.changes

    def done(self, name: str, began: tuple[float, int]) -> None:
        """A list was read, in whatever way."""
        self._read_at[name] = began

    def age(self, name: str) -> float:
        """Seconds since the list was read; infinite if it was not, or if it may have changed."""
        at, changes = self._read_at.get(name, (float("-inf"), -1))
        return time.monotonic() - at if changes == self.changes else float("inf")

    def is_fresh(self, name: str, since: float | None = None) -> bool:
        """`since`: it must have been read after that time."""
        at, changes = self._read_at.get(name, (float("-inf"), -1))
        if changes != self.changes:
            return False
        return at >= since if since is not None else time.monotonic() - at < max(FRESH_SECONDS, self._ttl(name))

    async def freshen(self, name: str, seconds: float, since: float | None = None) -> None:
        """Wait until the list is fresh, at most these seconds. One that was read since this call began is fresh,
        however long that took."""
        asked = time.monotonic()
        until = asked + seconds
        for _ in range(READINGS):
            if self._closed or self.is_fresh(name, since) or self.is_fresh(name, asked):
                return
            task = self._reading.get(name)
            if task is None:
                if time.monotonic() < self._rests.get(name, 0.0):
                    return
                task = asyncio.get_running_loop().create_task(self._look(name), name=f"{name} of {self._server}")
                self._reading[name] = task
                task.add_done_callback(lambda done, name=name: self._done(name, done))
            elif task in self._late:
                return
            await asyncio.wait((task,), timeout=max(0.0, until - time.monotonic()))
            if not task.done():
                self._late.add(task)
                return
            if time.monotonic() >= until:
                return

    async def _look(self, name: str) -> None:
        at, changes = self._read_at.get(name, (float("-inf"), -1))
        if changes == self.changes:  # asked for without a reason to think that it changed: not too often
            await asyncio.sleep(max(0.0, at + FRESH_SECONDS - time.monotonic()))
        began = self.began()
        try:
            await self._read(name)
        except HoldfastError as error:
            self._rests[name] = time.monotonic() + REST_SECONDS
            log.info("%s: %s could not be read: %s", self._server, METHODS[name], error.what)
        else:
            self.done(name, began)

    def _done(self, name: str, task: "asyncio.Task[None]") -> None:
        self._reading.pop(name, None)
        if task in self._late:
            self._late.discard(task)
            self._rests[name] = time.monotonic() + REST_SECONDS
        if not task.cancelled() and (error := task.exception()) is not None:
            self._rests[name] = time.monotonic() + REST_SECONDS
            log.error("%s: %s could not be read", self._server, METHODS[name], exc_info=error)

    def close(self) -> None:
        """Stop what is being read, and read nothing any more."""
        self._closed = True
        for task in self._reading.values():
            task.cancel()
