"""A thread that does a sink's slow work: the call that an event comes from only queues it.

The queue is bounded, and what does not fit is dropped and counted: a call never waits here. Who would rather take no
calls than lose events looks at `is_crowded` before one begins. A sink that raises is logged once until it works again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger("holdfast.events")

QUEUED = 10_000  # items: some megabytes, and seconds of work
AT_ONCE = 500  # items handed over together
GATHER_SECONDS = 0.005  # after the first item, for more to come: to wake for each would slow down who queues them
CLOSE_SECONDS = 5.0  # to work off what is queued at the end

T = TypeVar("T")


class Background(Generic[T]):
    """A queue and the thread that empties it. `work` gets what is queued, in order, some at a time."""

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[T]], None],
        *,
        most: int = QUEUED,
        at_once: int = AT_ONCE,
        drops: bool = True,
    ) -> None:
        """`drops=False`: what comes is queued in any case, and its sources look at `is_crowded` first."""
        self._name = name
        self._work = work
        self._most = most
        self._at_once = at_once
        self._drops = drops
        self._queue: deque[T] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self.dropped = 0
        """Items that were not handed over: the queue was full, or `work` raised on them."""
        self._thread = threading.Thread(target=self._run, name=f"holdfast {name}", daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """Queue an item. False if it was dropped."""
        queue = self._queue
        if self._drops and len(queue) >= self._most:
            self.dropped += 1
            return False
        queue.append(item)
        if not self._wake.is_set():
            self._wake.set()
        return True

    @property
    def is_crowded(self) -> bool:
        """Is more than half of the queue taken?"""
        return 2 * len(self._queue) > self._most

    def _run(self) -> None:
        queue = self._queue
        while True:
            if not queue:
                if self._closing.is_set():
                    return
                self._wake.wait()
                self._closing.wait(GATHER_SECONDS)
                self._wake.clear()
                continue
            items = [queue.popleft() for _ in range(min(self._at_once, len(queue)))]
            try:
                self._work(items)
                self._failing = False
            except Exception:
                self.dropped += len(items)
                if not self._failing:
                    self._failing = True
                    log.exception("%s failed; it is logged again once it has worked", self._name)

    def close(self) -> None:
        """Work off what is queued, in bounded time, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if self._queue:
            log.warning("%s: %d events were not written", self._name, len(self._queue))
