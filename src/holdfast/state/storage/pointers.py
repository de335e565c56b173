"""Pointers from a principal, a connection or everyone to their session, which begins with the first call."""

from contextlib import suppress
from typing import Generic, TypeVar

from holdfast.core.models import Handle, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, Ended, LimitReached, NotFound, SessionExpired
from holdfast.state.calls.request import outside_transaction
from holdfast.state.identity import Key
from holdfast.state.model import SessionState
from holdfast.state.storage import ending
from holdfast.state.storage.entries import POINTERS
from holdfast.state.storage.table import SessionTable

S = TypeVar("S", bound=SessionState)
DAY = 86_400.0
REMEMBERED = 90 * DAY  # after its end, that a caller had a session
KNOWN = 10_000  # pointers remembered, to save reading them again


class Pointers(Generic[S]):
    """Records, one per key, that contain the session's handle."""

    def __init__(self, table: SessionTable[S]) -> None:
        self._table = table
        self._known: dict[str, Handle] = {}

    async def handle(self, key: Key) -> Handle:
        """The handle behind a key, from memory if it is there: its session may have ended since."""
        known = self._known.get(key.digest)
        return known if known is not None else Handle((await self.find(key))[0].id)

    def forget(self, key: Key) -> None:
        """Look it up again next time."""
        self._known.pop(key.digest, None)

    async def find(self, key: Key) -> tuple[Record, S]:
        """The session behind a key; begun if there is none, or if the last one was ended. One that expired is
        reported once before another one begins."""
        with outside_transaction():  # it is there for the next call as well, and its expiry is reported once
            return await self._find(key)

    async def _find(self, key: Key) -> tuple[Record, S]:
        table = self._table
        known = self._known.get(key.digest)
        if known is not None:
            with suppress(NotFound, SessionExpired, Ended):
                record, state = await table.load(known, key.principal)
                await table.slide(record)
                return record, state
        store, was_ended = await table.store.open(), False
        while True:
            pointer = await store.get(POINTERS, key.digest, dead=True)
            is_live = pointer is not None and pointer.ended is None
            is_lost = pointer is not None and pointer.expired
            if pointer is not None and is_live:
                is_lost = members(pointer.data).get("reported") is not True
                try:
                    found = await table.load(str(members(pointer.data).get("handle")), key.principal)
                except Ended:
                    is_lost = False
                except (NotFound, SessionExpired):  # the record itself may be gone by now
                    pass
                else:
                    self._know(key, found[0])
                    return found
            expect = pointer.rev if pointer is not None and is_live else 0
            if is_lost:
                with suppress(Conflict):  # another call was faster, and reports it
                    await store.commit(self._pointer(key, {"reported": True}), expect=expect)
                    raise SessionExpired(
                        "the session that you had here has expired, and what it held is gone",
                        remedy="do it again to begin a new one",
                    )
                continue
            try:
                async with table.room(key.principal, shared=key.shared):
                    begun = await table.begin_for_key(key)
                    await self._point(key, begun[0].id, expect)
            except Conflict:  # another call was faster, and its session counts
                continue
            except LimitReached:
                now = await store.get(POINTERS, key.digest)
                if now is None or now.rev == expect:
                    raise
                continue  # as well: it took the last place
            except Ended:  # a damaged pointer that an operator ended; nothing else ends one, so a new one may begin
                if was_ended:
                    raise
                was_ended = True
                await store.reap(kind=POINTERS, ended_for=0.0)
                continue
            self._know(key, begun[0])
            return begun

    async def _point(self, key: Key, handle: str, expect: int) -> None:
        """Let the key stand for a session that was begun for it; if it can't, that one ends."""
        store = await self._table.store.open()
        try:
            await store.commit(self._pointer(key, {"handle": handle}), expect=expect)
        except (Conflict, Ended):
            await ending.end(store, handle)
            raise

    def _pointer(self, key: Key, data: dict[str, JSON]) -> Record:
        """It outlives its session, so that a caller who comes back late learns that there was one."""
        table = self._table
        idle = None if table.idle is None else 2 * table.idle if key.brief else table.idle + REMEMBERED
        longest = None if table.max_age is None else table.max_age + (DAY if key.brief else REMEMBERED)
        return Record(POINTERS, key.digest, key.principal, data, idle=idle, max_age=longest)

    def _know(self, key: Key, record: Record) -> None:
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[key.digest] = Handle(record.id)
