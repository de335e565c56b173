"""What all stores share: opening once, closing to the end, settling lost answers, reporting events.

A store can't be entered twice or used from another event loop, and a cancelled opening leaves nothing behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.models import Record
from holdfast.core.records import Row, Write, settle
from holdfast.errors import CorruptRecord, HoldfastError, LeaseClosed, StoreDown, UsageError, WriteUnsettled
from holdfast.events import Event, ListenerFailed, Sink, StoreClosed
from holdfast.stores.codec import Codec
from holdfast.stores.notices import Listeners

T = TypeVar("T")
REPORTED = 1_000  # damaged rows that are logged: beyond it the store is a loss, and the log would be, too

Look: TypeAlias = tuple[float, Row | None]
"""What was read, and when by the store's clock."""

_log = logging.getLogger("holdfast")


class BaseStore:
    """The base of each store: subclasses say how to `_open` and `_close`, which never raises."""

    def __init__(self, url: str, *, clock: Clock | None, codec: Codec, on_event: Sink | None) -> None:
        self.url = url
        self._clock = clock or SYSTEM
        self._codec = codec
        self._on_event = on_event
        self._listeners = Listeners()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reported: set[tuple[str | None, str | None]] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'open' if self._loop else 'closed'}>"

    async def _open(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise UsageError(
                f"the store {self.url} is open already", store=self.url, remedy="open a second store for a second use"
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
        self._report(lambda at: StoreClosed(at, self.url))

    async def _settle(self, write: Write, lost: StoreDown, look: Callable[[], Awaitable[Look | None]]) -> Record:
        """The answer to a commit was lost. The record, if it was written all the same; or what became of it.

        `look` first makes sure that the lost write can do nothing more, and then reads; None if it can't be sure.
        """
        seen = None
        with suppress(HoldfastError):
            seen = await look()
        if seen is not None:
            now, row = seen
            happened = settle(row, write)
            if happened and row is not None:
                return self._codec.record(row, now)
            if happened is False:
                raise StoreDown(lost.what, store=self.url, kind=write.kind, id=write.id) from lost
        raise WriteUnsettled(
            f"whether {write.kind}/{write.id} was written as rev {write.rev} is unknown: {lost.what}",
            kind=write.kind,
            id=write.id,
            store=self.url,
            remedy="read it again when the store is back",
        ) from lost

    def _unsettled(self, lost: StoreDown) -> WriteUnsettled:
        """The same for a write that no nonce can settle."""
        return WriteUnsettled(f"{lost.what}; whether it was done is unknown", store=self.url)

    def _report_corrupt(self, error: CorruptRecord) -> None:
        """Log a row that is not a record, once for as long as the store is open: reapers scan every minute."""
        name = error.kind, error.id
        if name not in self._reported and len(self._reported) < REPORTED:
            self._reported.add(name)
            _log.error("%s: a scan leaves out what is not a record: %s", self.url, error)

    def _listener_failed(self, why: str) -> None:
        self._report(lambda at: ListenerFailed(at, self.url, why))

    def _check_open(self) -> None:
        if self._loop is None:
            raise LeaseClosed(f"the store {self.url} is closed", store=self.url, remedy="use it inside `async with`")
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                f"the store {self.url} was opened in another event loop", store=self.url, remedy="open one in each loop"
            )

    def _report(self, event: Callable[[float], Event]) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event(self._clock.now()))
        except Exception:
            _log.exception("on_event raised on an event of %s", self.url)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait until the work has finished, even if the caller is cancelled meanwhile; then raise `CancelledError`."""
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
