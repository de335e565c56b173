"""What every store has around it: opening once, closing to the end, telling events. It owns no data.

It refuses to be entered twice, to be used from another event loop, and to leave anything behind when cancelled.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.events import Event, Sink, StoreClosed
from holdfast.errors import LeaseClosed, UsageError
from holdfast.stores.codec import Codec
from holdfast.stores.notices import Listeners

T = TypeVar("T")

_log = logging.getLogger("holdfast")


class Frame:
    """The base of each store: subclasses say how to `_open` and `_close`, which never raises."""

    def __init__(self, url: str, *, clock: Clock | None, codec: Codec, on_event: Sink | None) -> None:
        self.url = url
        self._clock = clock or SYSTEM
        self._codec = codec
        self._on_event = on_event
        self._listeners = Listeners()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'open' if self._loop else 'closed'}>"

    async def _open(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise UsageError(
                f"{self.url} is open already", store=self.url, remedy="open a second store for a second use"
            )
        self._loop = asyncio.get_running_loop()
        try:
            await to_the_end(self._open())
        except BaseException:
            self._loop = None
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._loop = None
        self._listeners.close()
        await to_the_end(self._close())
        self._tell(lambda at: StoreClosed(at, self.url))

    def _check_open(self) -> None:
        if self._loop is None:
            raise LeaseClosed(f"the store {self.url} is closed", store=self.url, remedy="use it inside `async with`")
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                f"the store {self.url} was opened in another event loop", store=self.url, remedy="open one in each loop"
            )

    def _tell(self, event: Callable[[float], Event]) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event(self._clock.now()))
        except Exception:
            _log.exception("a sink failed on an event of %s", self.url)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Let it finish, however often the caller is cancelled meanwhile; then be cancelled."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("after a cancel: %r", error)
        raise asyncio.CancelledError
    return task.result()
