"""The sessions of a server's callers: beginning, finding by handle or caller, listing and ending."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from holdfast.core.models import ANONYMOUS, Handle, Principal
from holdfast.core.values import JSON
from holdfast.errors import CorruptRecord, HoldfastError, NotFound, UsageError
from holdfast.state.calls import results
from holdfast.state.calls.request import current_transaction
from holdfast.state.identity import Chain, Found, Identity, Key, Named, user_of
from holdfast.state.model import SessionState
from holdfast.state.session import Session
from holdfast.state.storage import ending
from holdfast.state.storage.entries import COMPANIONS, KIND, OUTLINES, POINTERS, RESULTS
from holdfast.state.storage.pointers import DAY, Pointers
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.storage.table import SessionTable
from holdfast.stores.contract import Store

log = logging.getLogger(__name__)
S = TypeVar("S", bound=SessionState)
REAP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SessionPage(Generic[S]):
    """Some of a caller's `sessions`, where the `next` page begins, and the handles of those that are `unreadable`."""

    sessions: list[Session[S]]
    next: Handle | None
    unreadable: Sequence[Handle] = ()


class SessionRegistry(Generic[S]):
    """All sessions of one kind of state, and the lookup of a call's session."""

    def __init__(self, table: SessionTable[S], chain: Chain, noun: str) -> None:
        self.table = table
        self.chain = chain
        self.noun = noun
        """What a session is called in names of tools and arguments."""
        self.pointers = Pointers(table)
        self._companions: dict[str, type] = {}
        self._at_end: list[Callable[[], Awaitable[None]]] = []

    def __repr__(self) -> str:
        return f"<Sessions of {self.table.name} in {self.table.store!r}>"

    @property
    def kind(self) -> type[S]:
        """The class of their state."""
        return self.table.kind

    # On a server

    def add_companions(self, kind: str, companion: type, at_end: Callable[[], Awaitable[None]]) -> None:
        """Sessions get companions of this kind; `at_end` runs when the server stops."""
        if self._companions.setdefault(kind, companion) is not companion:
            raise UsageError(
                f"{self!r} already has another companion of the kind {kind!r}",
                remedy=f"give {companion.__name__} a kind of its own",
            )
        self._at_end.append(at_end)

    # The store

    async def open(self) -> Store:
        """Open the store, unless an earlier call did, and return it. A store belongs to one event loop."""
        return await self.table.store.open()

    async def close(self) -> None:
        """Close the store that was opened here; the next call opens it again."""
        await self.table.store.close()

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncGenerator[dict[str, Any]]:
        """The context of a running server:
        opens the store, so that a fault is noticed at the start, removes dead records periodically, and closes the
        store at the end.
        """
        await self.open()
        reaping = asyncio.get_running_loop().create_task(self._reap(), name=f"reap {self.table.name}")
        try:
            yield {}
        finally:
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping
            for last in self._at_end:
                await last()
            await self.close()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_SECONDS)
            try:
                store = await self.open()
                await ending.end_orphans(store)
                await store.reap(kind=KIND, expired_for=DAY)
                await store.reap(kind=COMPANIONS)
                await store.reap(kind=POINTERS)
                await store.reap(kind=RESULTS)
                await results.trim(store)
                await store.reap(kind=OUTLINES)
            except HoldfastError as error:
                log.warning("%r: dead records were not removed: %s", self, error.what)

    # Sessions

    async def begin(
        self,
        principal: Principal = ANONYMOUS,
        state: S | None = None,
        *,
        title: str = "",
        parent: dict[str, JSON] | None = None,
    ) -> Session[S]:
        """Begin a session, with the defaults or the given state."""
        return Session(SessionRecord(self.table, *await self.table.begin(principal, state, title=title, parent=parent)))

    async def find(self, handle: str, principal: Principal = ANONYMOUS) -> Session[S]:
        """The caller's session. `NotFound` for one that never was, and exactly the same for another caller's; the owner
        gets `SessionExpired` or `Ended`. In a call that has taken it, with what the call has changed."""
        taken = self.taken(handle, principal)
        return (
            taken
            if taken is not None
            else Session(SessionRecord(self.table, *await self.table.load(handle, principal)))
        )

    def taken(self, handle: str, principal: Principal) -> Session[S] | None:
        """The session as the call under way has taken it, if it has."""
        transaction = current_transaction()
        known = transaction.sessions.get(handle) if transaction is not None else None
        if known is None or known.record.table is not self.table or known.principal != principal:
            return None
        return cast("Session[S]", known)

    async def all(self, principal: Principal) -> list[Session[S]]:
        """All live sessions of one caller; none for anonymous callers, who are known by the handle alone."""
        found: list[Session[S]] = []
        after: str | None = None
        while True:
            page = await self.page(principal, after=after)
            found += page.sessions
            if page.next is None:
                return found
            after = page.next

    async def page(self, principal: Principal, *, after: str | None = None, limit: int = 100) -> SessionPage[S]:
        """At most `limit` live sessions of one caller. The next page begins with `after=page.next`, which is None on
        the last one. `page.unreadable` are the handles of those that can't be read, and are not shown."""
        if principal == ANONYMOUS:
            return SessionPage([], None)
        sessions: list[Session[S]] = []
        unreadable: list[Handle] = []
        last: Handle | None = None
        async with aclosing(self.table.scan(principal, after=after)) as scanned:
            async for record in scanned:
                if len(sessions) + len(unreadable) == limit:
                    return SessionPage(sessions, last, unreadable)
                last = Handle(record.id)
                try:
                    sessions.append(Session(SessionRecord(self.table, record, self.table.read(record))))
                except CorruptRecord as error:  # one of a newer version hides no other
                    log.warning("%r: left out of a list: %s", self, error.what)
                    unreadable.append(last)
        return SessionPage(sessions, None, unreadable)

    async def erase(self, principal: Principal) -> int:
        """Remove everything that the store has of one caller, and nothing else: sessions of every kind, companions,
        logs, kept results, outlines and tombstones; not what the caller did in a session that all callers share.
        What is kept for the user whatever client they use (`FromPrincipal(key="subject")`) goes, too.
        Returns how many records that were."""
        if principal == ANONYMOUS:
            raise UsageError(
                "what anonymous callers have is everybody's, and can't be erased as one caller's",
                remedy="end their sessions by handle: `await sessions.end(handle)`",
            )
        store, user = await self.open(), user_of(principal)
        erased = await store.erase(principal)
        return erased + (await store.erase(user) if user not in (None, principal) else 0)

    async def end(self, handle: str) -> bool:
        """End a session of any owner. Returns True if it was alive."""
        return await self.table.end(handle)

    async def find_for(self, caller: Identity, found: Found | None = None) -> Session[S]:
        """The session that a call names; `found` if it was looked up already."""
        found = found or self.chain.find(caller, self.table.name)
        match found:
            case None:
                raise NotFound(
                    "this call needs a session and names none",
                    remedy=f"{self.table.begin_hint}, or {self.chain.hint}"
                    if self.chain.is_named_by_callers
                    else self.chain.hint,
                )
            case Named(handle):
                taken = self.taken(handle, caller.principal)
                if taken is not None:
                    return taken
                record, state = await self.table.load(handle, caller.principal)
                await self.table.slide(record)
                return Session(SessionRecord(self.table, record, state))
            case Key():
                record = SessionRecord(self.table, *await self.pointers.find(found))
                taken = self.taken(record.handle, found.principal)
                return (
                    taken
                    if taken is not None
                    else Session(record, shared_with=caller.principal if found.shared else None)
                )
