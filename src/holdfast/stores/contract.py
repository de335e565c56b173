"""The contract that every store keeps; `holdfast.testing.StoreSuite` tests it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from holdfast.core.models import Claim, LogEntry, NoticeOrGap, Page, Reaped, Record, Turn, Write
from holdfast.core.records import State
from holdfast.core.values import JSON

MAX_RECORD_BYTES = 1024 * 1024  # one record, or the log entries of one commit; bigger things belong in a file store
MAX_AT_ONCE = 32  # records that one commit, one turn or one read names: a call needs a handful
MAX_COMMIT_BYTES = 8 * 1024 * 1024  # records and entries of one commit: a server does nothing else meanwhile
TURNS = "holdfast.turns"
"""The topic of notices that a claim was released: `{"kind": …, "id": …}`. Sent if someone asked with `notify`."""
TOMBSTONE_SECONDS = 86_400.0  # a write that is a day late is no longer a race
PAGE = 100  # records a page of `scan`, entries a page of `log`
CLOSE_SECONDS = 10.0  # closing waits for what is under way, and then no longer


class Store(Protocol):
    """Records, their logs, claims and notices, kept for many writers.

    **Records.** A record is one row, named by (kind, id), owned by a principal. `rev` counts its commits from 1
    without gaps. Reads and writes of one record are linearizable: after `commit`, `touch` or `end` returned, every
    later read, from any process, sees it or something newer.

    **Absent is not unavailable.** None means that there is no live record. A store that can't be asked raises
    `StoreDown`; a row that Holdfast did not write raises `CorruptRecord`.

    **Dead is dead.** A record ends by `end`, or by expiry: when it was not touched for `idle` seconds, or is older
    than `max_age`. Reads treat both as absent, unless asked with `dead=True`. An ended record leaves a tombstone that
    answers `Ended` to every write, a create included, until `reap` removes it. An expired id may be created anew.

    **Time** is the store's own: spans come from the caller, moments never do. A clock given at `open_store` replaces
    it, for tests.

    **Values** are plain JSON and come back equal, or are refused with `UnstorableValue` and the path.

    Every method raises `StoreDown` when the store can't be reached, and `LeaseClosed` after it was closed. A write
    whose answer was lost is `WriteUnsettled`, unless reading back told what became of it. A cancelled write happened
    whole or not at all. A store belongs to the event loop that opened it.
    """

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...

    async def get(self, kind: str, id: str, *, dead: bool = False) -> Record | None:
        """The live record or None. With `dead`, also what remains of an ended or expired one: `ended` says since
        when, `expired` says why, its data is gone."""
        ...

    async def commit(
        self, record: Record, *, expect: int, entries: Sequence[JSON] = (), fence: int | None = None
    ) -> Record:
        """Write the record and append its log entries in one atomic step, if the stored rev is `expect` (0 creates).

        Returns the record as stored, with its new rev. Refused, with nothing written: `Conflict` (another rev, or the
        `fence` is not the token of a claim on (kind, id) that is held right now), `Ended`, `SessionExpired`,
        `NotFound`, `Forbidden` (another principal's), `UnstorableValue`, `LimitReached` (too large). If the answer is
        lost the store reads back; `WriteUnsettled` if that did not tell either.
        """
        ...

    async def commit_all(self, writes: Sequence[Write], *, release: Sequence[Claim] = ()) -> list[Record]:
        """Write several records with their log entries and give up claims, all in one atomic step or none of it.

        Each write keeps the rules of `commit`; no reader sees some of them without the others. The claims in `release`
        must be held, whether they fence a write or not, and are free afterwards. Returns the records as stored, in the
        order given. One refusal refuses everything; its `kind` and `id` name the record or claim. At most
        `MAX_AT_ONCE` writes and as many claims, and `MAX_COMMIT_BYTES` in all. A lost answer is settled for the whole.
        """
        ...

    async def get_all(self, keys: Sequence[tuple[str, str]], *, dead: bool = False) -> list[Record | None]:
        """What `get` returns for each (kind, id), in the order given, all read at one moment: a commit of several is
        seen whole or not at all. At most `MAX_AT_ONCE`."""
        ...

    async def touch(self, kind: str, id: str, *, fence: int | None = None) -> None:
        """Start the idle time over; rev and data stay. Refused like a commit if there is no live record, or if `fence`
        is not the token of a claim that is held right now."""
        ...

    async def end(self, kind: str, id: str, *, created: float | None = None, fence: int | None = None) -> bool:
        """End the record: data and log go, a tombstone stays. False if there was nothing left to end.

        With `created`, only the life that began then: a reaper that saw an expired record must not end the new one
        under the same id. With `fence`, only while that claim is held. `Conflict` otherwise.
        """
        ...

    async def log(
        self, kind: str, id: str, *, after: int = 0, limit: int = PAGE, newest_first: bool = False
    ) -> list[LogEntry]:
        """Up to `limit` entries of a live record with `seq` over `after`, oldest first; with `newest_first` the newest
        ones, from the newest to the oldest."""
        ...

    async def claim(self, kind: str, id: str, *, owner: str, ttl: float) -> Claim:
        """The sole right to act for (kind, id), which need not exist as a record, for `ttl` seconds.

        `Busy` with `retry_after` while another owner holds it. Every claim has a higher token than any before it.
        """
        ...

    async def begin_turn(
        self, kind: str, id: str, *, owner: str, ttl: float, dead: bool = False, notify: bool = False
    ) -> Turn:
        """Claim (kind, id) as `claim` does, and read its record as `get` does, in one step.

        A caller that is cancelled meanwhile leaves no claim behind. `Busy` has the `retry_after` of the claim that
        stands in the way; with `notify` its release publishes a notice on the topic `TURNS`. Listen before you ask, and
        ask again after `retry_after` all the same: a holder may die, and a notice may be lost.
        """
        ...

    async def begin_turns(
        self,
        keys: Sequence[tuple[str, str]],
        *,
        owner: str,
        ttl: float,
        dead: bool = False,
        notify: bool = False,
    ) -> list[Turn]:
        """Claim several names and read their records in one step: a turn for each (kind, id), in the order given, or
        none of them. `Busy` is about the claim that lasts longest. At most `MAX_AT_ONCE`, none of them twice."""
        ...

    async def renew(self, claim: Claim, *, ttl: float) -> Claim:
        """Hold the `claim` for `ttl` seconds from now, under the same token. `Conflict` if it was lost meanwhile."""
        ...

    async def release(self, claim: Claim) -> bool:
        """Give the `claim` up. False if it was no longer held."""
        ...

    async def holder(self, kind: str, id: str) -> Claim | None:
        """The claim that is held right now, or None."""
        ...

    async def scan(
        self,
        *,
        kind: str | None = None,
        principal: str | None = None,
        state: State | None = "live",
        after: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        """One page of at most `limit` records that match `kind`, `principal` and `state` (None for all), ordered by
        kind and id. The next page begins with `after=page.next`. A record that matches throughout a scan is seen
        exactly once."""
        ...

    async def count(
        self, *, kind: str | None = None, principal: str | None = None, state: State | None = "live"
    ) -> int:
        """How many records match `kind`, `principal` and `state`; `state=None` for all."""
        ...

    async def reap(
        self, *, kind: str | None = None, expired_for: float = 0.0, ended_for: float = TOMBSTONE_SECONDS
    ) -> Reaped:
        """Remove for good what expired at least `expired_for` seconds ago and tombstones of at least `ended_for`
        seconds, in small steps that let other clients through."""
        ...

    async def erase(self, principal: str, *, kind: str | None = None) -> int:
        """Remove for good every record of this `principal`, of one `kind` or all: live, expired and ended ones, with
        logs and tombstones. Returns how many. A write that is under way meanwhile is refused as to a record that never
        was; records that are created meanwhile may stay."""
        ...

    async def publish(self, topic: str, data: JSON) -> None:
        """Send `data` to every listener of the topic, in all processes. It is a hint and may be lost."""
        ...

    def listen(self, *topics: str) -> AbstractAsyncContextManager[AsyncIterator[NoticeOrGap]]:
        """Receive what is published on these topics from now on. A `Gap` marks a place where notices may be missing."""
        ...
