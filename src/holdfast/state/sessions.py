"""The sessions of a server's callers, in a store: begun, found by a chain of identities, counted, ended.

It owns the store's opening and closing, quotas, and what outsiders are told: unknown, expired, ended and foreign are
told apart only to the owner. It refuses to adopt an id that it did not give out.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from holdfast.core.models import ANONYMOUS, Handle, Principal, Record, check_name, check_seconds
from holdfast.core.records import ended, expired
from holdfast.core.values import JSON, members
from holdfast.errors import (
    Busy,
    Conflict,
    CorruptRecord,
    Ended,
    HoldfastError,
    LimitReached,
    NotFound,
    SessionExpired,
    UnstorableValue,
    UsageError,
)
from holdfast.state import model, records
from holdfast.state.frameworks.injection import Injectable
from holdfast.state.frameworks.lifecycle_tools import install
from holdfast.state.frameworks.middleware import StateMiddleware
from holdfast.state.identity import DEFAULT, Chain, Found, Identity, IdentitySource, Key, Named
from holdfast.state.log import COMPANIONS, KIND
from holdfast.state.model import SessionState
from holdfast.state.records import new_handle
from holdfast.state.session import Session
from holdfast.state.work import ENDS_SO, call_state_of, known_as
from holdfast.stores import open_store
from holdfast.stores.contract import MAX_RECORD_BYTES, Store
from holdfast.stores.update import UPDATE_SECONDS

log = logging.getLogger(__name__)
S = TypeVar("S", bound=SessionState)
POINTERS = "state-key"  # what a principal or a connection stands for
DAY = 86_400.0
HISTORY = 200  # revisions that can be gone back to
REAP_SECONDS = 600.0


class Sessions(Injectable[S]):
    """All sessions of one kind of state: `sessions = Sessions(Basket, store="sqlite:///baskets.db")`."""

    def __init__(
        self,
        kind: type[S],
        store: str | Store = "memory:",
        *,
        identity: Sequence[IdentitySource] = DEFAULT,
        idle: float | None = DAY,
        max_age: float | None = 30 * DAY,
        quota: int | None = None,
        keys: Sequence[bytes | str] | None = None,
        history: int = HISTORY,
        max_bytes: int = MAX_RECORD_BYTES,
        name: str | None = None,
    ) -> None:
        if not isinstance(kind, type) or not issubclass(kind, SessionState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{kind!r:.80} is not a class of state", remedy="derive it from holdfast.SessionState")
        for span, what in ((idle, "idle"), (max_age, "max_age")):
            if span is not None:
                check_seconds(span, what)
        if quota is not None and quota < 1:
            raise UsageError(f"quota={quota!r} lets nobody in", remedy="give the number of sessions a caller may have")
        if history < 1:
            raise UsageError(f"history={history!r}", remedy="give the number of revisions that can be gone back to")
        self.kind: type[S] = kind
        super().__init__(Chain(identity), name or kind.__name__)
        self.history = history
        self.idle = idle
        self.max_age = max_age
        self.begun_by: str | None = None
        """The lifecycle tool that begins one."""
        self._quota = quota
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Store]] = {}
        self._turns: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = weakref.WeakValueDictionary()
        self._known: dict[str, Handle] = {}
        self.helpers: dict[str, type] = {}
        self.is_saved = False
        self.at_end: list[Callable[[], Awaitable[None]]] = []
        self._memory: Store | None = None
        self._memory_loop: asyncio.AbstractEventLoop | None = None
        if isinstance(store, str):
            self._url: str | None = store
            self._given: Store | None = None
            self._keys, self._max_bytes = keys, max_bytes
            checked = open_store(store, keys=keys, max_bytes=max_bytes)  # a bad address is told here
            self._shown_url = checked.url  # without secrets
            if store == "memory:":  # lives as long as this object, and in any loop
                self._memory = checked
        else:
            if keys is not None:
                raise UsageError("keys= seals a store that is opened here", remedy="open_store(url, keys=…)")
            self._url, self._given, self._shown_url = None, store, store.url

    def __repr__(self) -> str:
        return f"<Sessions of {self.name} in {self._shown_url}>"

    @property
    def begin_hint(self) -> str:
        """What a caller does to have another session."""
        if self.begun_by is None:
            return "begin a new one"
        return f"call {known_as(self.begun_by)} to begin one {ENDS_SO}"

    # On a server

    def install(
        self,
        server: object,
        *,
        noun: str = "session",
        create: Sequence[str] = (),
        save: bool = False,
        tools: bool = True,
    ) -> None:
        """Put the lifecycle tools, the request's scope and the closing of the store on a FastMCP or MCPServer.

        `noun="basket"` names the tools create_basket, list_baskets, resume_basket, fork_basket and end_basket;
        `create` are the fields of the state that create_… takes; `save=True` saves `session.draft` after each call.
        """
        install(server, self, noun, create, save, tools)

    def middleware(self, *, save: bool = True) -> StateMiddleware:
        """For `FastMCP(middleware=[…])` and `MCPServer(middleware=[…])`: loads before a call and saves after it."""
        return StateMiddleware(self, save=save)

    # The store

    async def opened(self) -> Store:
        """The store, opened by the first who asks. A store belongs to one event loop."""
        loop = asyncio.get_running_loop()
        if self._memory is not None:
            if self._memory_loop is not loop:
                if self._memory_loop is not None:
                    await self._memory.__aexit__(None, None, None)
                self._memory_loop = loop
                await self._memory.__aenter__()
            return self._memory
        if self._given is not None:
            return self._given
        for other in [other for other in self._opening if other.is_closed()]:
            left = self._opening.pop(other)
            if left.done() and not left.cancelled() and left.exception() is None:
                log.warning("%r: an event loop ended without `await sessions.close()`, and left its store open", self)
        opening = self._opening.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening[loop] = loop.create_task(self._open(), name=f"open the store of {self.name}")
        return await asyncio.shield(opening)

    async def _open(self) -> Store:
        store = open_store(cast("str", self._url), keys=self._keys, max_bytes=self._max_bytes)
        return await store.__aenter__()

    async def close(self) -> None:
        """Close the store that was opened here; the next call opens it again."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            with suppress(HoldfastError):
                await (await opening).__aexit__(None, None, None)

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncGenerator[dict[str, Any]]:
        """While a server runs: the store is opened now, so that a fault is told at the start; what is dead is removed
        now and then; the store is closed at the end."""
        await self.opened()
        reaping = asyncio.get_running_loop().create_task(self._reap(), name=f"reap {self.name}")
        try:
            yield {}
        finally:
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping
            for last in self.at_end:
                await last()
            await self.close()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_SECONDS)
            try:
                store = await self.opened()
                await records.end_orphans(store)
                await store.reap(kind=KIND, expired_for=DAY)
                await store.reap(kind=COMPANIONS)
                await store.reap(kind=POINTERS)
            except HoldfastError as error:
                log.warning("%r: what is dead was not removed: %s", self, error.what)

    # Sessions

    async def begin(
        self,
        principal: Principal = ANONYMOUS,
        state: S | None = None,
        *,
        title: str = "",
        parent: dict[str, JSON] | None = None,
    ) -> Session[S]:
        """A new session, with the defaults or the state given."""
        if self._quota is None or principal == ANONYMOUS:
            return await self._begin(principal, state, title, parent)
        async with self.turn(f"quota of {principal}", UPDATE_SECONDS):
            count = await self._count(principal)
            if count >= self._quota:
                raise LimitReached(
                    f"{count} of {self._quota} sessions of this caller are open",
                    limit=self._quota,
                    actual=count,
                    remedy="end one that is done",
                )
            return await self._begin(principal, state, title, parent)

    async def _count(self, principal: Principal) -> int:
        """A caller's open sessions of this kind: other kinds and helpers are in the same store."""
        store, count, after = await self.opened(), 0, None
        while True:
            page = await store.scan(kind=KIND, principal=principal, after=after)
            count += sum(members(record.data).get("t") == self.name for record in page.records)
            after = page.next
            if after is None:
                return count

    async def _begin(
        self,
        principal: Principal,
        state: S | None = None,
        title: str = "",
        parent: dict[str, JSON] | None = None,
        key: str | None = None,
    ) -> Session[S]:
        store = await self.opened()
        fresh, plain = model.checked(state if state is not None else self.kind(), self.kind, "begin")
        data: dict[str, Any] = {"t": self.name, "v": self.kind.version, "state": plain}
        if title:
            data["title"] = title
        if parent is not None:
            data["parent"] = parent
        if key is not None:
            data["key"] = key
        record = Record(KIND, new_handle(), principal, cast("JSON", data), idle=self.idle, max_age=self.max_age)
        return Session(self, await store.commit(record, expect=0), fresh)

    async def find(self, handle: str, principal: Principal = ANONYMOUS) -> Session[S]:
        """The caller's session. `NotFound` for one that never was, and exactly the same for another caller's; the owner
        is told `SessionExpired` and `Ended`."""
        record, state = await self.load(handle, principal)
        return Session(self, record, state)

    async def load(self, handle: str, principal: Principal) -> tuple[Record, S]:
        """The record and the state in it, if the principal may see them."""
        unknown = NotFound("there is no such session", id=str(handle)[:80], remedy=self.begin_hint)
        try:
            check_name(handle, "handle")
        except UnstorableValue:  # odd characters: no session has them
            raise unknown from None
        record = await (await self.opened()).get(KIND, handle, dead=True)
        if record is None or record.principal != principal:
            raise unknown
        if record.ended is not None:
            error = expired("session", handle) if record.expired else ended("session", handle)
            error.remedy = self.begin_hint
            raise error
        if members(record.data).get("t") != self.name:
            raise unknown
        return record, cast("S", self.kind.read(record.data, handle))

    async def of(self, principal: Principal, limit: int = 100) -> list[Session[S]]:
        """A caller's own sessions. Nobody in particular has none: there the handle is all there is."""
        if principal == ANONYMOUS:
            return []
        store = await self.opened()
        found: list[Session[S]] = []
        after: str | None = None
        while len(found) < limit:
            page = await store.scan(kind=KIND, principal=principal, after=after)
            for record in page.records:
                if members(record.data).get("t") != self.name:
                    continue
                try:
                    found.append(Session(self, record, cast("S", self.kind.read(record.data, record.id))))
                except CorruptRecord as error:  # one of a newer version hides no other
                    log.warning("%r: left out of a list: %s", self, error.what)
            after = page.next
            if after is None:
                break
        return found[:limit]

    async def end(self, handle: str) -> bool:
        return await records.end(await self.opened(), handle)

    async def slide(self, record: Record, *, now: bool = False) -> None:
        """Use starts the idle time over. Not written at every use: a tenth of that time is no difference."""
        if record.idle is None or (not now and 0 <= time.time() - record.touched < record.idle / 10):
            return
        store = await self.opened()
        await store.touch(KIND, record.id)
        pointer = members(record.data).get("key")
        if isinstance(pointer, str):
            with suppress(NotFound, SessionExpired, Ended):
                await store.touch(POINTERS, pointer)

    def will_be_saved(self) -> None:
        """Middleware saves these sessions after each call; steps of helpers would stand where a save is refused."""
        if self.helpers:
            raise UsageError(
                f"{self!r} has companions, whose steps are written at once and would stand if the save is refused",
                remedy="install without save=True, and change the session in `async with session.edit()`",
            )
        self.is_saved = True

    def write_at_once(self) -> None:
        """A session that the call under way did not take is about to be written: refused where another one of this kind
        is saved after the call."""
        work = call_state_of(self)
        if work is not None:
            work.write_beside("a change of a session that the call did not take")

    def is_taken(self, name: str) -> bool:
        """Would `turn` have to wait?"""
        lock = self._turns.get((id(asyncio.get_running_loop()), name))
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def turn(self, handle: str, seconds: float) -> AsyncGenerator[bool]:
        """One after another within this process; true if it had to wait."""
        place = (id(asyncio.get_running_loop()), handle)
        lock = self._turns.get(place)
        if lock is None:
            lock = self._turns[place] = asyncio.Lock()
        waited = lock.locked()
        if not waited:
            await lock.acquire()
        else:
            try:
                async with asyncio.timeout(seconds):
                    await lock.acquire()
            except TimeoutError:
                raise Busy(f"others were writing for {seconds:g} s", id=handle, remedy="try again later") from None
        try:
            yield waited
        finally:
            lock.release()

    # Whose

    async def find_for(self, caller: Identity, found: Found | None = None) -> Session[S]:
        """The session that a call means; `found` if that was looked up already."""
        found = found or self.chain.find(caller, self.name)
        match found:
            case None:
                raise NotFound(
                    "this needs a session, and the call names none", remedy=f"{self.begin_hint}, or {self.chain.hint}"
                )
            case Named(handle):
                record, state = await self.load(handle, caller.principal)
                await self.slide(record)
                return Session(self, record, state)
            case Key():
                session = await self._stands_for(found)
                if found.shared:
                    session.keys_belong_to(caller.principal)
                return session

    async def _stands_for(self, key: Key) -> Session[S]:
        """The session behind a pointer; begun if there is none, or if the last one has ended."""
        known = self._known.get(key.digest)
        if known is not None:
            with suppress(NotFound, SessionExpired, Ended):
                record, state = await self.load(known, key.principal)
                await self.slide(record)
                return Session(self, record, state)
        store, was_ended = await self.opened(), False
        while True:
            pointer = await store.get(POINTERS, key.digest)
            if pointer is not None:
                with suppress(NotFound, SessionExpired, Ended):
                    session = await self.find(str(members(pointer.data).get("handle")), key.principal)
                    self._know(key, session.handle)
                    return session
            session = await self._begin(key.principal, key=key.digest)
            fresh = Record(
                POINTERS,
                key.digest,
                key.principal,
                {"handle": session.handle},
                idle=2 * self.idle if self.idle is not None else None,
                max_age=self.max_age + DAY if self.max_age is not None else None,
            )
            try:
                await store.commit(fresh, expect=0 if pointer is None else pointer.rev)
            except Conflict:  # another call was faster: that one's counts
                await self.end(session.handle)
                continue
            except (
                Ended
            ):  # by an operator: it was damaged. Nobody else ends a pointer, so no write must be kept from it
                await self.end(session.handle)
                if was_ended:
                    raise
                was_ended = True
                await store.reap(kind=POINTERS, ended_for=0.0)
                continue
            self._know(key, session.handle)
            return session

    def _know(self, key: Key, handle: Handle) -> None:
        if len(self._known) >= 10_000:
            self._known.clear()
        self._known[key.digest] = handle
