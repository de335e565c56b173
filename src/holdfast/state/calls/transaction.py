"""One call as a transaction: turns on what it takes, its writes gathered, and all of them written at its end or none.

A turn is a claim of the store, so calls in other processes wait as well. Calls that take nothing wait for nobody.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from holdfast.core.models import Claim, Record, Write
from holdfast.core.records import Key
from holdfast.errors import Busy, Conflict, HoldfastError, UsageError, WriteUnsettled
from holdfast.events import TurnRefused, TurnTaken
from holdfast.observers import deliver, is_observed, wants_each
from holdfast.state.calls.results import KEPT_SECONDS, Keyed
from holdfast.state.calls.staged_store import StagedStore
from holdfast.state.calls.stale_turns import LEASE, TURN, lasts_too_long, release_stale
from holdfast.state.calls.turn_line import begin_line, is_shared, line_of
from holdfast.state.calls.turn_wait import FIRST_WAIT, LISTEN_SECONDS, give_way, wait_before_asking, wait_for_notice
from holdfast.state.tool_errors import reworded
from holdfast.state.turns import Turns
from holdfast.stores.base import to_the_end
from holdfast.stores.contract import CLOSE_SECONDS, Store

log = logging.getLogger(__name__)

TURN_SECONDS = 60.0  # that a call waits for its turn
TURN_TTL = 30.0  # after which the turn of a process that died is free; renewed at every third of it
LOST_ANSWERS = 2  # after which the store is down, and says so
_TURNS = Turns()
_REFUSED: dict[Key, float] = {}  # when the store last said that another process was in the way
_REFUSED_KEPT = 1_000


class Leased(Exception):
    """A lease stands in the way of a turn."""


class Opener(Protocol):
    """Opens a store, and knows which one it is; in fact a `StoreHandle`."""

    @property
    def place(self) -> object: ...

    async def open_real(self) -> Store: ...


class Saved(Protocol):
    """A session that a call has taken, which stages what was changed in it."""

    async def save(self, label: str) -> None: ...

    def drop_draft(self) -> None: ...

    def snapshot(self) -> Callable[[], None]: ...


class Transaction:
    """The transaction of one call. Nothing is read or claimed before `take`."""

    def __init__(self, request: object = None) -> None:
        self.request = request
        self.is_open = True
        self.keyed: Keyed | None = None
        """The call, where it came with an idempotency key."""
        self.result_place: Key | None = None
        """Where its result is to be kept: set by the first taking."""
        self.answer: dict[str, Any] | None = None
        """The result of the same call made before: nothing is done then."""
        self.sessions: dict[str, Any] = {}
        """The sessions that the call has taken, by handle."""
        self._saved: dict[str, Saved] = {}
        self._place: object = None
        self._store: Store | None = None
        self._staged: StagedStore | None = None
        self._owner = ""
        self._ttl = TURN_TTL
        self._claims: dict[Key, Claim] = {}
        self._names: list[str] = []
        self._renewing: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._after: list[Callable[[], Awaitable[None]]] = []

    # Turns

    @property
    def has_begun(self) -> bool:
        """Whether the call has taken anything."""
        return self._staged is not None

    @property
    def held(self) -> set[Key]:
        """The names on which the call has its turn."""
        return set(self._claims)

    def covers(self, place: object) -> bool:
        """Whether writes to the store at this place are part of the call."""
        return self.is_open and self._staged is not None and self._place == place

    @property
    def staged(self) -> StagedStore:
        """The store as the call sees it."""
        assert self._staged is not None
        return self._staged

    async def begin(self, opener: Opener) -> None:
        """Gather the writes to this store from here on. A call writes to one store."""
        if self._staged is None:
            self._store = await opener.open_real()
            self._place, self._staged = opener.place, StagedStore(self._store)
            self._owner = f"{TURN}{secrets.token_hex(8)}"
        elif self._place != opener.place:
            raise UsageError(
                "the call takes sessions of two stores, which can't be written in one step",
                remedy="give both Sessions the same store",
            )

    async def take(
        self,
        opener: Opener,
        keys: Collection[Key],
        *,
        wait: float = TURN_SECONDS,
        ttl: float = TURN_TTL,
        over_leases: bool = False,
    ) -> None:
        """Take the turns on these names, and read their records, in one round trip. `Busy` after `wait` seconds;
        with `over_leases`, `Leased` at once if a lease stands in the way.

        A call that holds turns already waits only for names that sort after them: two calls that wait for each other
        would wait for ever.
        """
        await self.begin(opener)
        wanted = sorted(set(keys) - self._claims.keys())
        if not wanted:
            return
        self._ttl = min(self._ttl, ttl)
        may_wait = not self._claims or wanted[0] > max(self._claims)
        since = time.monotonic()
        deadline = since + (wait if may_wait else 0.0)
        waited, names = False, list[str]()
        try:
            for kind, id in wanted:
                name = f"{kind}/{id}"
                try:
                    waited = await _TURNS.take(name, deadline - time.monotonic()) or waited
                except Busy:
                    raise _busy(id, wait, may_wait, None) from None
                names.append(name)
            if waited and self._store is not None and is_shared(self._store):
                begin_line(self._store)  # who waits here may keep others waiting
            await self._claim(wanted, since, deadline, waited, wait, may_wait, over_leases)
        except BaseException as error:
            self._say_released(wanted)
            _give_back(names)
            if isinstance(error, Busy) and is_observed():
                deliver(TurnRefused(time.time(), _kinds(wanted), time.monotonic() - since))
            raise
        self._names += names
        if wants_each():
            deliver(TurnTaken(time.time(), _kinds(wanted), time.monotonic() - since))

    async def give_up(self, keys: Collection[Key]) -> None:
        """Give turns back under which nothing was done: what they were taken for has ended."""
        assert self._store is not None
        for key in keys:
            with suppress(HoldfastError):  # then it runs out by itself
                await self._store.release(self._claims[key])
            del self._claims[key]  # not before: if the call is cancelled meanwhile, its end releases it
        self.staged.forget(keys)
        self._say_released(keys)
        names = [f"{kind}/{id}" for kind, id in keys]
        self._names = [name for name in self._names if name not in names]
        _give_back(names)

    async def take_found(self, opener: Opener, key: Key, *, wait: float, ttl: float) -> None:
        """Take the turn on a session that the call has found by itself, before it writes it: another call that has
        the turn keeps what it does. A lease is meant to lose. A companion is written under its session's turn."""
        kind, id = key
        if key in self._claims or (kind, id.partition(".")[0]) in self._claims or self.staged.begins(key):
            return
        with suppress(Leased):
            await self.take(opener, [key], wait=wait, ttl=ttl, over_leases=True)

    async def _claim(
        self,
        wanted: list[Key],
        since: float,
        deadline: float,
        waited: bool,
        wait: float,
        may_wait: bool,
        over_leases: bool,
    ) -> None:
        assert self._store is not None
        line = line_of(self._store)
        if line is None and waited:
            last = max((_REFUSED[key] for key in wanted if key in _REFUSED), default=None)
            if pause := give_way(None if last is None else time.monotonic() - last, waited, random.random()):
                await asyncio.sleep(pause)
        rounds = news = lost = 0
        ends = 0.0
        asked = False
        while True:
            if line is not None and line.is_listening:
                await line.let_pass(wanted, since, deadline - time.monotonic())
                asked, news = line.is_listening, line.news(wanted)
            try:
                turns = await self._store.begin_turns(wanted, owner=self._owner, ttl=self._ttl, dead=True, notify=asked)
                break
            except WriteUnsettled:  # its owner may claim it again, if it was claimed
                lost += 1
                if lost > LOST_ANSWERS or time.monotonic() > deadline:
                    raise
                continue
            except Busy as busy:
                _note_refused(wanted)
                if lasts_too_long(busy.retry_after, self._ttl) and await release_stale(self._store, wanted, self._ttl):
                    continue
                if over_leases and await self._is_leased(wanted):
                    raise Leased from busy
                now = time.monotonic()
                before, ends = ends, now + (busy.retry_after or 0.0)
                if 0.0 < before < ends - FIRST_WAIT:
                    rounds = 0  # another call has it now: turns are short, and this one has its chance soon
                left = deadline - now
                if left <= 0:
                    raise _busy(wanted[0][1], wait, may_wait, busy.retry_after) from None
                if line is not None and asked and line.is_listening:
                    line.say(wanted, since)
                    await line.wait(wanted, news, min(left, wait_for_notice(busy.retry_after, rounds)))
                else:
                    line = begin_line(self._store)
                    if line is None or not await line.listens(min(left, LISTEN_SECONDS)):
                        chance = random.random()
                        await asyncio.sleep(wait_before_asking(left, busy.retry_after, rounds, chance) or 0.0)
                rounds += 1
        self._claims.update({(turn.claim.kind, turn.claim.id): turn.claim for turn in turns})
        self.staged.know(turns)
        if self._renewing is None:
            self._renew_later()

    async def _is_leased(self, keys: Collection[Key]) -> bool:
        assert self._store is not None
        holders = [await self._store.holder(*key) for key in keys]
        return any(holder is not None and holder.owner.startswith(LEASE) for holder in holders)

    def _renew_later(self) -> None:
        """A timer costs nothing where the call is over before it rings."""
        loop = asyncio.get_running_loop()

        def ring() -> None:
            self._renewing = loop.create_task(self._renew(), name="renew turns")

        self._renewing = loop.call_later(self._ttl / 3, ring)

    async def _renew(self) -> None:
        assert self._store is not None
        while True:
            for key, claim in list(self._claims.items()):
                try:
                    renewed = await self._store.renew(claim, ttl=self._ttl)
                    if key in self._claims:  # it may have been given up meanwhile
                        self._claims[key] = renewed
                except Conflict:
                    if key in self._claims:
                        return  # the commit will be refused, and says so
                except HoldfastError as error:
                    log.warning("a turn was not renewed, and is tried again: %s", error)
            await asyncio.sleep(self._ttl / 3)

    def record(self, key: Key) -> Record | None:
        """What was read with the turn on this name, dead or alive."""
        return self.staged.known(key)

    # What the call does

    def adopt(self, handle: str, session: Any, saved: Saved) -> None:
        """Write what was changed in this session at the end of the call."""
        self.sessions[handle] = session
        self._saved[handle] = saved

    def drop(self, handle: str) -> None:
        """Write nothing more to a session that the call has ended."""
        if handle in self._saved:
            self._saved.pop(handle).drop_draft()
            del self.sessions[handle]

    def after_commit(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this once the call was written; never if it was not."""
        self._after.append(work)

    def snapshot(self) -> Callable[[], None]:
        """A function that puts back what was gathered so far, for a nested call that fails."""
        saved_then, sessions = dict(self._saved), dict(self.sessions)
        drafts = {handle: saved.snapshot() for handle, saved in self._saved.items()}
        staged: Any = self._staged.snapshot() if self._staged is not None else ({}, {}, set())
        after = list(self._after)

        def restore() -> None:
            for handle, saved in self._saved.items():
                if handle not in drafts:
                    saved.drop_draft()
            self._saved, self.sessions = dict(saved_then), dict(sessions)
            for put_back in drafts.values():
                put_back()
            if self._staged is not None:
                self._staged.restore(staged)
            self._after = list(after)

        return restore

    # Its end

    async def commit(self, label: str, result: dict[str, Any] | None = None) -> None:
        """Write everything in one step, or nothing; the turns are over either way. The `result` is kept where the call
        has a key."""
        if self._staged is None:
            self.is_open = False
            return
        done = False
        try:
            for saved in self._saved.values():
                await saved.save(label)
            if self.keyed is not None and self.result_place is not None and result is not None:
                await self._staged.commit(self.keyed.record(self.result_place, result, KEPT_SECONDS), expect=0)
            await self._written()
            done = True
        finally:
            await self._close(released=done)
        for work in self._after:
            try:
                await work()
            except HoldfastError as error:  # the call is written, and has not failed
                log.warning("after a call: %s", error)

    async def _written(self) -> None:
        self._stop_renewing()
        try:
            await self.staged.write_all(self._claims)
        except Conflict as error:
            if error.actual is None:
                why = "the call took longer than its turn could be held"
            else:
                why = "what the call has read was changed outside of a turn before its end"
            reworded(error, f"{why}: nothing of this call was kept", "do it again")
            raise

    async def write_alone(self, write: Write, beside: Sequence[Write] = ()) -> Record:
        """Write one record under the turn on it, which is over then, and with it new ones that need no turn."""
        assert self._store is not None
        claim, done = self._claims[write.record.kind, write.record.id], False
        try:
            written = await self._store.commit_all([replace(write, fence=claim.token), *beside], release=[claim])
            done = True
        finally:
            await self._close(released=done)
        return written[0]

    async def abandon(self) -> None:
        """Write nothing, and give the turns up."""
        for saved in self._saved.values():
            saved.drop_draft()
        if self._staged is None:
            self.is_open = False
        elif self.is_open:
            await self._close(released=False)

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def _close(self, *, released: bool) -> None:
        self.is_open = False
        self._stop_renewing()
        try:
            if not released and self._claims:
                await to_the_end(self._release())
        finally:
            self._say_released(self._claims)
            _give_back(self._names)

    def _say_released(self, keys: Collection[Key]) -> None:
        """Let other processes know that nobody here has these turns any more."""
        line = line_of(self._store) if self._store is not None and keys else None
        if line is not None:
            for kind, id in keys:
                line.released((kind, id), _TURNS.first_since(f"{kind}/{id}"))

    async def _release(self) -> None:
        assert self._store is not None
        if isinstance(self._renewing, asyncio.Task):
            await asyncio.wait([self._renewing])
        with suppress(HoldfastError, TimeoutError):  # then they run out by themselves
            async with asyncio.timeout(CLOSE_SECONDS):
                for claim in self._claims.values():
                    await self._store.release(claim)


async def write_in_turn(
    opener: Opener, write: Write, beside: Sequence[Write] = (), *, wait: float, ttl: float
) -> Record:
    """Commit a write of no call under a turn of its own, so that it never comes between the reading and the writing of
    a call. A lease is no call: it is meant to lose against other writers, who can't wait for it."""
    turn = Transaction()
    try:
        await turn.take(opener, [(write.record.kind, write.record.id)], wait=wait, ttl=ttl, over_leases=True)
    except Leased:
        store = await opener.open_real()
        return (await store.commit_all([write, *beside]))[0]
    return await turn.write_alone(write, beside)


def _kinds(wanted: Collection[Key]) -> str:
    return ",".join(sorted({kind for kind, _ in wanted}))


def _give_back(names: list[str]) -> None:
    while names:
        _TURNS.give_back(names.pop())


def _note_refused(keys: Collection[Key]) -> None:
    if len(_REFUSED) > _REFUSED_KEPT:
        _REFUSED.clear()
    _REFUSED.update(dict.fromkeys(keys, time.monotonic()))


def _busy(id: str, wait: float, may_wait: bool, retry_after: float | None) -> Busy:
    if not may_wait:
        return Busy(
            "another call has its turn on a session that was taken within this call, after others",
            id=id,
            remedy="do it again; the server should take all sessions of a call at its beginning",
        )
    return Busy(
        f"other calls had their turn on the session for {wait:g} s, and nothing was done",
        id=id,
        retry_after=retry_after or 0.0,
        remedy="do it again later",
    )
