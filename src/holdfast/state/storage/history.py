"""Where an undo, a redo or a restore goes to, and the part of a log that a fork takes along.

Revisions before a fork count down from its first one: 1 is what it began with, 0 and less are what came before.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.core.models import Handle, LogEntry, Record
from holdfast.core.values import JSON, members
from holdfast.errors import CorruptRecord, LimitReached, NotFound, UsageError
from holdfast.state.storage.entries import REDO, RESTORE, UNDO
from holdfast.stores.contract import Store

INHERITED = 500  # entries of a log that a fork takes along: more than the revisions that can be gone back to
INHERITED_BYTES = 768 * 1024  # of them together: a commit takes a mebibyte


@dataclass(frozen=True, slots=True)
class Move:
    """A way to another revision: which one, and where a redo goes to after it, the next first."""

    label: str
    to: int
    redo: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an inherited entry was written."""

    handle: Handle
    rev: int


def origin(entry: LogEntry) -> Origin | None:
    """Where an entry was written that came with a fork; None for an entry of the session's own."""
    came = members(members(entry.data).get("inherited"))
    if not isinstance(came.get("handle"), str) or type(came.get("of")) is not int:
        return None
    return Origin(Handle(str(came["handle"])), cast("int", came["of"]))


def placed(entry: LogEntry) -> LogEntry:
    """An entry as it is read: an inherited one with its number before the fork and its own time."""
    came = members(members(entry.data).get("inherited"))
    if type(came.get("rev")) is not int or not isinstance(came.get("at"), int | float):
        return entry
    return replace(entry, rev=cast("int", came["rev"]), at=float(cast("float", came["at"])))


async def undone(entries: AsyncGenerator[LogEntry, None], record: Record, steps: int) -> Move:
    """Where an undo of so many changes goes to, from the log of `record`, newest first. Notes are no changes, and what
    was undone before does not count again."""
    _check_steps(steps)
    place, passed, redo = record.rev, list[int](), ()
    is_newest = True
    async for entry in entries:
        body = members(entry.data)
        if entry.rev > place or not _moves(body):
            continue
        if is_newest:
            is_newest, redo = False, _redo(body)
        back = _back(body)
        if back is not None:
            place = back
            continue
        passed.append(min(entry.rev, place))
        place = entry.rev - 1
        if len(passed) == steps:
            return Move(UNDO, place, (*reversed(passed), *redo))
    if not passed:
        raise NotFound("there is nothing to undo", id=record.id, remedy="go on from what is there now")
    many = "one change" if len(passed) == 1 else f"{len(passed)} changes"
    raise NotFound(
        f"only {many} can be undone, not {steps}",
        id=record.id,
        remedy=f"undo at most {len(passed)}; nothing was undone",
    )


async def redone(entries: AsyncGenerator[LogEntry, None], record: Record, steps: int) -> Move:
    """Where a redo of so many changes goes to. A change after an undo leaves nothing to redo."""
    _check_steps(steps)
    redo: tuple[int, ...] = ()
    async for entry in entries:
        body = members(entry.data)
        if entry.rev <= record.rev and _moves(body):
            redo = _redo(body)
            break
    if not redo:
        raise NotFound(
            "there is nothing to redo", id=record.id, remedy="a redo follows an undo, before any other change"
        )
    if len(redo) < steps:
        raise NotFound(
            f"only {len(redo)} can be redone, not {steps}",
            id=record.id,
            remedy=f"redo at most {len(redo)}; nothing was redone",
        )
    return Move(REDO, redo[steps - 1], redo[steps:])


async def restored(rev: int) -> Move:
    """A way to any revision; itself a change, which an undo takes back."""
    if type(rev) is not int:
        raise UsageError(f"a revision is a whole number, not {rev!r:.40}", remedy="see the log for revisions")
    return Move(RESTORE, rev)


def _check_steps(steps: object) -> None:
    if type(steps) is not int or steps < 1:
        raise UsageError(f"the number of steps must be at least 1, not {steps!r:.40}", remedy="give a whole number")


def _moves(body: dict[str, Any]) -> bool:
    """The entry stands for a change, or for a way to another revision; not a note."""
    return type(body.get("undo")) is int or bool(body.get("was")) or ("inherited" in body and "was" not in body)


def _back(body: dict[str, Any]) -> int | None:
    """The revision that an undo or redo went to. A restore is a change of its own."""
    to = body.get("undo")
    return to if type(to) is int and body.get("label") != RESTORE else None


def _redo(body: dict[str, Any]) -> tuple[int, ...]:
    kept: object = body.get("redo")
    return tuple(rev for rev in cast("list[object]", kept) if type(rev) is int) if isinstance(kept, list) else ()


# Forks


async def create_fork(
    store: Store, child: Record, entries: AsyncGenerator[LogEntry, None], parent: str, rev: int
) -> Record:
    """Create the record of a fork with as much of its parent's log as fits, the newest of it. `entries` are the
    parent's, newest first."""
    taken = await _inherited(entries, parent, rev)
    room = INHERITED_BYTES
    while True:
        try:
            return await store.commit(child, expect=0, entries=_fitting(taken, room))
        except LimitReached:  # the store takes less at once
            if not room:
                raise
            room = room // 4 if room > 4_096 else 0


async def _inherited(entries: AsyncGenerator[LogEntry, None], parent: str, rev: int) -> list[dict[str, Any]]:
    """The entries up to a revision as the fork keeps them, newest first."""
    found: list[dict[str, Any]] = []
    shift = 1 - rev
    with suppress(CorruptRecord):  # a damaged log is inherited as far as it can be read
        async with aclosing(entries) as newest:
            async for entry in newest:
                if entry.rev > rev:
                    continue
                body = members(entry.data)
                if not body or len(found) == INHERITED:
                    break
                came = origin(entry) or Origin(Handle(parent), entry.rev)
                here: dict[str, JSON] = {"rev": entry.rev + shift, "at": entry.at}
                body = {**body, "inherited": {**here, "handle": came.handle, "of": came.rev}}
                back: object = body.get("undo")
                if type(back) is int:
                    body["undo"] = back + shift
                if "redo" in body:
                    body["redo"] = [each + shift for each in _redo(body)]
                found.append(body)
    return found


def _fitting(newest_first: list[dict[str, Any]], room: int) -> list[JSON]:
    """As many as there is room for, oldest first. What was before a change goes first, and then the entry."""
    kept: list[JSON] = []
    is_whole = True
    for body in newest_first:
        size = len(json.dumps(body))
        if is_whole and size > room // 2:
            is_whole = False  # no going back beyond a gap
        if not is_whole:
            body = {name: value for name, value in body.items() if name != "was" or not value}
            size = len(json.dumps(body))
        if size > room:
            break
        room -= size
        kept.append(cast("JSON", body))
    return kept[::-1]
