"""Sessions that stand for something: a principal, a connection or everyone. They begin with the first call."""

from contextlib import suppress
from typing import Generic, TypeVar

from holdfast.core.models import Handle, Record
from holdfast.core.values import members
from holdfast.errors import Conflict, Ended, NotFound, SessionExpired
from holdfast.state.identity import Key
from holdfast.state.model import SessionState
from holdfast.state.storage import ending
from holdfast.state.storage.entries import POINTERS
from holdfast.state.storage.table import SessionTable

S = TypeVar("S", bound=SessionState)
DAY = 86_400.0
KNOWN = 10_000  # pointers remembered, to save reading them again


class Pointers(Generic[S]):
    """One record for each key, which names the session's handle."""

    def __init__(self, table: SessionTable[S]) -> None:
        self._table = table
        self._known: dict[str, Handle] = {}

    async def find(self, key: Key) -> tuple[Record, S]:
        """The session behind a key; begun if there is none, or if the last one has ended."""
        table = self._table
        known = self._known.get(key.digest)
        if known is not None:
            with suppress(NotFound, SessionExpired, Ended):
                record, state = await table.load(known, key.principal)
                await table.slide(record)
                return record, state
        store, was_ended = await table.store.open(), False
        while True:
            pointer = await store.get(POINTERS, key.digest)
            if pointer is not None:
                with suppress(NotFound, SessionExpired, Ended):
                    found = await table.load(str(members(pointer.data).get("handle")), key.principal)
                    self._know(key, found[0])
                    return found
            begun = await table.begin_for_key(key.principal, key.digest)
            fresh = Record(
                POINTERS,
                key.digest,
                key.principal,
                {"handle": begun[0].id},
                idle=2 * table.idle if table.idle is not None else None,
                max_age=table.max_age + DAY if table.max_age is not None else None,
            )
            try:
                await store.commit(fresh, expect=0 if pointer is None else pointer.rev)
            except Conflict:  # another call was faster, and its session counts
                await ending.end(store, begun[0].id)
                continue
            except Ended:  # a damaged pointer that an operator ended; nothing else ends one, so a new one may begin
                await ending.end(store, begun[0].id)
                if was_ended:
                    raise
                was_ended = True
                await store.reap(kind=POINTERS, ended_for=0.0)
                continue
            self._know(key, begun[0])
            return begun

    def _know(self, key: Key, record: Record) -> None:
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[key.digest] = Handle(record.id)
