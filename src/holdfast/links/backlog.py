"""The notifications that a session of the SDK has not taken yet, bounded in bytes.

A session that never reads must not fill the memory. Progress and log messages can be left out: the oldest of them that
have not been handed over go first. Where anything else does not fit, the session is over.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import LimitReached
from holdfast.links.codec import weight

BACKLOG_BYTES = 16 * 1024 * 1024
DROPPABLE = frozenset({"notifications/progress", "notifications/message"})


class Backlog:
    """The notifications for one session."""

    def __init__(self, server: str) -> None:
        self.used = 0
        self.dropped = 0
        self._server = server
        self._held: OrderedDict[int, tuple[int, Callable[[], object] | None]] = OrderedDict()

    def admit(self, method: str, params: Mapping[str, Any] | None) -> int | None:
        """The bytes of a notification for which there is room; None: it is left out. Raises `LimitReached` for one that
        can't be left out."""
        size = weight(dict(params or {}))
        for key in [key for key, (_, drop) in self._held.items() if drop is not None]:
            if self._fits(size):
                break
            _, drop = self._held[key]
            self.release(key)
            self.dropped += 1
            if drop is not None:
                drop()
        if self._fits(size):
            return size
        if method in DROPPABLE:
            self.dropped += 1
            return None
        raise LimitReached(
            f"the session over {self._server!r} does not read: {self.used} bytes of notifications wait for it, and "
            f"{method!r:.80} does not fit",
            limit=BACKLOG_BYTES,
            actual=self.used + size,
            server=self._server,
            remedy="the session has ended: begin another one, and read what it gets",
        )

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= BACKLOG_BYTES

    def hold(self, key: int, size: int, drop: Callable[[], object] | None = None) -> None:
        """It waits for the session from now on. `drop` takes it back."""
        self._held[key] = size, drop
        self.used += size

    def release(self, key: int) -> None:
        """The session has taken it, or is gone."""
        size, _ = self._held.pop(key, (0, None))
        self.used -= size
