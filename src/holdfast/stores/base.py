"""What all stores share: opening once, closing to the end, settling lost answers, reporting events.

A store can't be entered twice or used from another event loop, and a cancelled opening leaves nothing behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from holdfast.core import values
from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.models import Claim, Record, Turn, Write, check_name, check_seconds
from holdfast.core.records import EncodedWrite, Key, Row, settle_all
from holdfast.core.values import JSON
from holdfast.errors import CorruptRecord, HoldfastError, LeaseClosed, StoreDown, UsageError, WriteUnsettled
from holdfast.events import Event, ListenerFailed, Sink, StoreAnswered, StoreClosed
from holdfast.observers import deliver, is_observed, wants_each
from holdfast.stores.codec import Codec, check_claims, check_keys
from holdfast.stores.contract import CLOSE_SECONDS
from holdfast.stores.notices import Listeners
from holdfast.stores.timing import OPERATIONS, timed

T = TypeVar("T")
REPORTED = 1_000  # damaged rows that are logged: beyond it the store is a loss, and the log would be, too

Look: TypeAlias = Mapping[Key, Row]
"""The rows that were found."""


class Begun(NamedTuple):
    """What a backend claimed for `begin_turns`: the claims, when by its clock, and each row, checked when called."""

    claims: list[Claim]
    now: float
    rows: "Rows"


Rows: TypeAlias = Sequence[Callable[[], Row | None]]
"""Rows in the order of the names that were given. Calling one checks it, and raises if it is no row of ours."""


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

    async def _commit(self, writes: list[EncodedWrite], release: Sequence[Claim]) -> list[Record]:
        """Write and release all of it in one step, or refuse."""
        raise NotImplementedError

    async def _begin_turns(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        """Claim all of the keys and read their rows in one step, or refuse."""
        raise NotImplementedError

    async def _read_all(self, keys: Sequence[Key]) -> "tuple[float, Rows]":
        """The rows at one moment, and when by the store's clock."""
        raise NotImplementedError

    async def release(self, claim: Claim) -> bool:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise UsageError(
                f"the store {self.url} is open already", store=self.url, remedy="open a second store for a second use"
            )
        self._loop = asyncio.get_running_loop()
        if wants_each(self._on_event):
            self._time_operations()
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

    async def commit(
        self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None
    ) -> Record:
        return (await self._commit([self._codec.write(record, expect, entries, fence)], ()))[0]

    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()) -> list[Record]:
        check_keys([(write.record.kind, write.record.id) for write in writes], "records")
        check_claims(release)
        if not writes and not release:
            raise UsageError("commit_all was given neither writes nor claims to release")
        return await self._commit(self._codec.writes(writes), release)

    async def get_all(self, keys: Sequence[Key], *, dead: bool = False) -> list[Record | None]:
        keys = check_keys(keys, "records", once=False)
        self._check_open()
        if not keys:
            return []
        now, rows = await self._read_all(keys)
        return [self._read_row(row(), now, dead=dead) for row in rows]

    async def begin_turn(
        self, kind: str, id: str, *, owner: str, ttl: float, dead: bool = False, notify: bool = False
    ) -> Turn:
        return (await self.begin_turns([(kind, id)], owner=owner, ttl=ttl, dead=dead, notify=notify))[0]

    async def begin_turns(
        self, keys: Sequence[Key], *, owner: str, ttl: float, dead: bool = False, notify: bool = False
    ) -> list[Turn]:
        keys = check_keys(keys, "turns")
        check_name(owner, "owner")
        check_seconds(ttl, "ttl")
        self._check_open()
        if not keys:
            raise UsageError("begin_turns was given no names")
        claims, now, rows = await self._begin_to_the_end(keys, owner, ttl, notify)
        try:
            records = [self._read_row(row(), now, dead=dead) for row in rows]
        except HoldfastError:  # a row that can't be read: nobody gets the claims, so nobody would release them
            await to_the_end(self._give_back(claims))
            raise
        return [Turn(claim, record) for claim, record in zip(claims, records, strict=True)]

    async def _begin_to_the_end(self, keys: Sequence[Key], owner: str, ttl: float, notify: bool) -> Begun:
        """A claim that is made while its caller is cancelled would stand in everybody's way until it runs out."""
        beginning = asyncio.ensure_future(self._begin_turns(keys, owner, ttl, notify))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await to_the_end(self._give_back_begun(beginning))
            raise

    async def _give_back_begun(self, beginning: asyncio.Future[Begun]) -> None:
        with suppress(HoldfastError):
            await self._give_back((await beginning).claims)

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        with suppress(HoldfastError, TimeoutError):  # then they run out by themselves
            async with asyncio.timeout(CLOSE_SECONDS):
                for claim in claims:
                    await self.release(claim)

    def _read_row(self, row: Row | None, now: float, *, dead: bool) -> Record | None:
        return self._codec.record(row, now) if row is not None and (dead or row.state(now) == "live") else None

    async def _settle(
        self, writes: Sequence[EncodedWrite], lost: StoreDown, look: Callable[[], Awaitable[Look | None]]
    ) -> list[Record]:
        """The answer to a commit was lost. The records, if they were written all the same; or what became of them.

        `look` first makes sure that the lost write can do nothing more, and then reads; None if it can't be sure.
        """
        if not writes:
            raise self._unsettled(lost) from lost
        first = writes[0]
        seen = None
        with suppress(HoldfastError):
            seen = await look()
        if seen is not None:
            happened = settle_all(seen, writes)
            if happened:
                return _as_written(writes, seen)
            if happened is False:
                raise StoreDown(lost.what, store=self.url, kind=first.kind, id=first.id) from lost
        others = f" and {len(writes) - 1} more" if len(writes) > 1 else ""
        raise WriteUnsettled(
            f"whether {first.kind}/{first.id}{others} was written as rev {first.rev} is unknown: {lost.what}",
            kind=first.kind,
            id=first.id,
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

    def _time_operations(self) -> None:
        """Replace the operations of this store by ones that report how long they take."""
        for name in OPERATIONS:
            setattr(self, name, timed(self.url, name, getattr(type(self), name).__get__(self), self._answered))

    def _answered(self, event: StoreAnswered) -> None:
        deliver(event, self._on_event)

    def _report(self, event: Callable[[float], Event]) -> None:
        if is_observed(self._on_event):
            deliver(event(self._clock.now()), self._on_event)


def _as_written(writes: Sequence[EncodedWrite], rows: Mapping[Key, Row]) -> list[Record]:
    """The records of a commit that happened. Another writer may stand on top of some of them by now."""
    found = [rows.get(write.key) for write in writes]
    touched = next(row.touched for row, write in zip(found, writes, strict=True) if row and row.nonce == write.nonce)
    return [
        written(write, created=write.created or (row.created if row else touched), touched=touched)
        for row, write in zip(found, writes, strict=True)
    ]


def written(write: EncodedWrite, *, created: float, touched: float) -> Record:
    """The record as a commit stored it."""
    return Record(
        write.kind,
        write.id,
        write.principal,
        values.decode(write.plain),
        rev=write.rev,
        created=created,
        touched=touched,
        idle=write.idle,
        max_age=write.max_age,
    )


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
