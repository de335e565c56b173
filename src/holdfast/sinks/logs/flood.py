"""A bound on lines of one kind: so many in a while, and after it one line with the number of the others."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SECONDS = 10.0  # the while

K = TypeVar("K", bound=Hashable)


class Flood(Generic[K]):
    """Counts lines by kind. `summed` is called with a kind and the number of its lines that were left out."""

    def __init__(self, summed: Callable[[K, int], None], *, seconds: float = SECONDS) -> None:
        self._summed = summed
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._seen: dict[K, int] = {}
        self._left_out: dict[K, int] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    def lets(self, kind: K, most: int) -> bool:
        """May a line of this kind be written now? `most`: so many are in one while."""
        now = time.monotonic()
        with self._lock:
            over = self._take() if now >= self._until else {}
            if now >= self._until:
                self._until = now + self._seconds
            seen = self._seen[kind] = self._seen.get(kind, 0) + 1
            good = seen <= most
            if not good:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                if self._timer is None and not self._closed:  # the count must be seen if nothing else comes
                    self._timer = threading.Timer(max(0.0, self._until - now), self.sum_up)
                    self._timer.daemon = True
                    self._timer.start()
        self._report(over)
        return good

    def sum_up(self) -> None:
        """Report what was left out until now."""
        with self._lock:
            over = self._take()
        self._report(over)

    def close(self) -> None:
        """Report what was left out, and stop waiting."""
        with self._lock:
            self._closed, timer = True, self._timer
        self.sum_up()
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()

    def _take(self) -> dict[K, int]:
        if self._timer is not None:
            self._timer.cancel()
        left_out, self._left_out, self._seen, self._timer = self._left_out, {}, {}, None
        self._until = 0.0
        return left_out

    def _report(self, left_out: dict[K, int]) -> None:
        for kind, number in left_out.items():
            self._summed(kind, number)
