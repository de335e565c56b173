"""The log of a session: what was done, in order, append-only; and the way back to an earlier state.

Entries are never rewritten: a correction is another entry.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from holdfast.core.models import LogEntry
from holdfast.core.values import JSON, members

KIND = "state"
COMPANIONS = "state-companions"  # which companions a session has
POINTERS = "state-key"  # what a principal or a connection stands for
UNDO = "undo"
PAGE = 100


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step: `label` says what was done, `data` what was noted with it, `rev` the revision that it made."""

    seq: int
    rev: int
    at: float
    label: str
    data: JSON = None
    undone_to: int | None = None
    """The revision that an undo went back to."""

    @classmethod
    def of(cls, entry: LogEntry) -> "HistoryEntry":
        body = members(entry.data)
        back = body.get("undo")
        label = str(body.get("label", ""))
        return cls(entry.seq, entry.rev, entry.at, label, body.get("data"), back if isinstance(back, int) else None)


class SessionWithLog(Protocol):
    """What a log needs of its session."""

    async def entries(self, *, after: int = 0, limit: int = PAGE, newest_first: bool = False) -> list[LogEntry]: ...

    def newest(self) -> AsyncIterator[LogEntry]: ...

    async def append(self, label: str, data: JSON) -> None: ...


class Log:
    """`await session.log.last(5)`, `async for entry in session.log`, `await session.log.add("note", {…})`."""

    def __init__(self, session: SessionWithLog) -> None:
        self._session = session

    async def last(self, count: int = 20, *, label: str | None = None) -> list[HistoryEntry]:
        """The newest entries, oldest of them first; with `label`, the newest of that kind."""
        found: list[HistoryEntry] = []
        if count < 1:
            return found
        async for entry in self._session.newest():
            step = HistoryEntry.of(entry)
            if label is None or step.label == label:
                found.append(step)
            if len(found) == count:
                break
        return found[::-1]

    async def add(self, label: str, data: JSON = None) -> None:
        """Add an entry that changes no state."""
        await self._session.append(label, data)

    async def __aiter__(self) -> AsyncIterator[HistoryEntry]:
        after = 0
        while True:
            page = await self._session.entries(after=after, limit=PAGE)
            for entry in page:
                yield HistoryEntry.of(entry)
            if len(page) < PAGE:
                return
            after = page[-1].seq


def same(one: object, other: object) -> bool:
    """Equal as JSON: Python takes 1, 1.0 and true for the same."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields were that changed, and which were not there."""
    changed = {name: before[name] for name in before if name not in after or not same(before[name], after[name])}
    return {"set": changed, "new": [name for name in after if name not in before]}


def back(stored: dict[str, Any], was: Mapping[str, Any]) -> dict[str, Any]:
    """The version and state before an entry, from those after it."""
    if "state" in was:  # written by newer code than what was there before: kept whole
        return {"v": was.get("v"), "state": members(was.get("state"))}
    new = set(cast("list[str]", was.get("new") or []))
    state = {name: value for name, value in members(stored.get("state")).items() if name not in new}
    return {"v": stored.get("v"), "state": state | members(was.get("set"))}
