"""How many requests a gateway serves, and how long they take, over the last seconds. It is measured only while somebody
reads it: otherwise no event is built for it."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.events import Event, RequestServed
from holdfast.observers import add_observer, remove_observer

WINDOW_SECONDS = 10.0
KEPT = 20_000  # requests; of more, the latest are measured
_LISTEN = "subscriptions/listen"  # lasts as long as its client listens


class Rates:
    """The requests of the last seconds. An observer of the process while it has readers."""

    def __init__(self) -> None:
        self._served: deque[tuple[float, float, str | None]] = deque(maxlen=KEPT)
        self._readers = 0
        self._since = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestServed) and event.method != _LISTEN:
            self._served.append((time.monotonic(), event.seconds, event.backend))

    def add_reader(self) -> None:
        self._readers += 1
        if self._readers == 1:
            self._since = time.monotonic()
            self._served.clear()
            add_observer(self)

    def remove_reader(self) -> None:
        self._readers -= 1
        if not self._readers:
            remove_observer(self)
            self._served.clear()

    def figures(self) -> "tuple[dict[str, Any], dict[str, dict[str, Any]]]":
        """Of all requests, and of those of each backend."""
        now = time.monotonic()
        while self._served and self._served[0][0] < now - WINDOW_SECONDS:
            self._served.popleft()
        seconds = min(WINDOW_SECONDS, now - self._since)
        if len(self._served) == KEPT:
            seconds = now - self._served[0][0]
        by_backend: dict[str, list[float]] = {}
        for _, took, backend in self._served:
            if backend is not None:
                by_backend.setdefault(backend, []).append(took)
        return _figures([took for _, took, _ in self._served], seconds), {
            backend: _figures(took, seconds) for backend, took in by_backend.items()
        }


def _figures(took: list[float], seconds: float) -> dict[str, Any]:
    took.sort()
    return {
        "over_seconds": round(seconds, 3),
        "per_second": round(len(took) / seconds, 2) if seconds > 0 else 0.0,
        "p50": _quantile(took, 0.5),
        "p99": _quantile(took, 0.99),
    }


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 6) if ordered else None
