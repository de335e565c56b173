"""The log of a session: its changes and notes in order, append-only.

Entries are never changed: a correction is another entry.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from holdfast.core.models import LogEntry
from holdfast.core.values import JSON, members
from holdfast.state.calls.session_in_call import SessionInCall
from holdfast.state.storage import history, records
from holdfast.state.storage.entries import KIND, PAGE


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry: `label` says what was done, `data` what was noted with it, `rev` the revision that it created, `at`
    when (seconds since 1970); `seq` numbers the entries of a log."""

    seq: int
    rev: int
    at: float
    label: str
    data: JSON = None
    undone_to: int | None = None
    """The revision that an undo, a redo or a restore went to."""
    origin: history.Origin | None = None
    """The session and revision where it was written, if it came with a fork."""

    @classmethod
    def of(cls, entry: LogEntry) -> "HistoryEntry":
        """The `entry` of a store's log."""
        body = members(entry.data)
        back = body.get("undo")
        label = str(body.get("label", ""))
        undone_to = back if isinstance(back, int) else None
        return cls(entry.seq, entry.rev, entry.at, label, body.get("data"), undone_to, history.origin(entry))


class Log:
    """The log of a `session`: `await session.log.last(5)`, `async for entry in session.log`, `await
    session.log.add("note", {…})`."""

    def __init__(self, session: SessionInCall[Any]) -> None:
        self._session = session

    async def last(self, count: int = 20, *, label: str | None = None) -> list[HistoryEntry]:
        """The newest `count` entries, oldest of them first; with `label`, only entries with this label."""
        found: list[HistoryEntry] = []
        if count < 1:
            return found
        async with aclosing(self.newest_first()) as entries:
            async for entry in entries:
                if label is None or entry.label == label:
                    found.append(entry)
                if len(found) == count:
                    break
        return found[::-1]

    async def add(self, label: str, data: JSON = None) -> None:
        """Add an entry with this `label` and `data` that changes no state."""
        session = self._session
        session.check_writable()
        if session.draft is not None:  # written when the call ends, or not at all
            session.draft.note(label, data)
            return
        with session.showing():
            await session.record.retried(lambda: session.record.note(label, data))

    async def newest_first(self) -> AsyncGenerator[HistoryEntry]:
        """Iterate over the entries from the newest to the oldest, reading a page at a time."""
        session = self._session
        with session.showing():
            session.check_unchanged("the log")
            store = await session.record.table.store.open()
            async with aclosing(records.newest(store, session.record.handle)) as entries:
                async for entry in entries:
                    yield HistoryEntry.of(entry)

    async def __aiter__(self) -> AsyncIterator[HistoryEntry]:
        session, after = self._session, 0
        while True:
            with session.showing():
                session.check_unchanged("the log")
                store = await session.record.table.store.open()
                page = await store.log(KIND, session.record.handle, after=after, limit=PAGE)
            for entry in page:
                yield HistoryEntry.of(history.placed(entry))
            if len(page) < PAGE:
                return
            after = page[-1].seq
