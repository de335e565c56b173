"""The stored form of sessions, readable without the class of their state, for operators and command-line tools.

A record or log entry of another shape, and a log with a gap, raise `CorruptRecord`; they are never skipped.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, cast

from holdfast.core.models import Handle, LogEntry, Record, check_name
from holdfast.core.values import JSON, members
from holdfast.errors import (
    Conflict,
    CorruptRecord,
    Ended,
    HoldfastError,
    NotFound,
    SessionExpired,
    UnstorableValue,
    UsageError,
)
from holdfast.state.storage import history
from holdfast.state.storage.entries import COMPANIONS, KIND, PAGE, back
from holdfast.stores.contract import Store

_LIST = "`holdfast state ls` lists live sessions"


def new_handle() -> Handle:
    """A new handle of 192 random bits, which may be the only proof of ownership."""
    return Handle(f"s_{secrets.token_urlsafe(24)}")


def check_handle(text: str) -> Handle:
    """Return the text as a handle; raises `UsageError` if it can't be one."""
    try:
        return Handle(check_name(text, "it"))
    except UnstorableValue as error:
        raise UsageError(f"{text!r:.80} is not a handle: {error.what}", remedy=_LIST) from None


async def find(store: Store, handle: str) -> Record:
    """A live session of any owner. The errors distinguish what only its owner and an operator may know."""
    record = await store.get(KIND, check_handle(handle), dead=True)
    if record is None:
        raise NotFound(f"the session {handle!r} does not exist", id=handle, remedy=_LIST)
    if record.ended is None:
        return record
    gone = "it can't be restored; begin or fork another"
    if record.expired:
        raise SessionExpired(f"the session {handle!r} has expired", id=handle, remedy=gone)
    raise Ended(f"the session {handle!r} was ended", id=handle, remedy=gone)


def stored(record: Record) -> dict[str, Any]:
    """The version and the state in a record: `{"v": …, "state": …}`."""
    data = members(record.data)
    if type(data.get("v")) is not int or not isinstance(data.get("state"), dict) or not isinstance(data.get("t"), str):
        raise CorruptRecord(
            f"the record {record.id!r} has the kind {KIND!r} but is not a session",
            id=record.id,
            remedy=f"`holdfast store show URL {KIND} {record.id}` shows it as it is",
        )
    return {"v": data["v"], "state": data["state"]}


async def newest(store: Store, handle: str) -> AsyncGenerator[LogEntry, None]:
    """The log of a live session, newest first, a page at a time."""
    last = await store.log(KIND, handle, limit=1, newest_first=True)
    top = last[0].seq if last else 0
    while top:
        start = max(top - PAGE, 0)
        page = await store.log(KIND, handle, after=start, limit=top - start)
        if len(page) < top - start:
            raise await _lost(
                store, handle, CorruptRecord(f"the log of {handle!r} has a gap before entry {top}", id=handle)
            )
        for entry in reversed(page):
            yield history.placed(entry)
        top = start


async def at(store: Store, record: Record, rev: int) -> dict[str, Any]:
    """The version and the state at any revision that the log reaches."""
    found = stored(record)
    if rev > record.rev:
        raise _no_revision(record, rev, 1)
    if rev == record.rev:
        return found
    reached = record.rev + 1  # the oldest revision whose entries were applied
    async with aclosing(newest(store, record.id)) as entries:
        async for entry in entries:
            if entry.rev > record.rev:
                continue  # written since the record was read
            if entry.rev <= rev or entry.rev < reached - 1 or (entry.rev < 2 and "was" not in members(entry.data)):
                break
            found = back(found, _was(record.id, entry))
            reached = entry.rev
    if reached == rev + 1:
        return found
    if reached <= 2:  # before a fork: as far as it took the history along
        raise _no_revision(record, rev, reached - 1)
    missing = f"the log of {record.id!r} does not have the state before revision {reached - 1}"
    raise await _lost(store, record.id, CorruptRecord(missing, id=record.id, remedy=_later(reached - 1)))


def _no_revision(record: Record, rev: int, oldest: int) -> NotFound:
    return NotFound(
        f"there is no revision {rev}",
        id=record.id,
        remedy=f"ask for one from {oldest} to {record.rev}",
    )


async def fork(store: Store, record: Record, rev: int | None = None, title: str = "") -> Record:
    """Another session of the same owner and lifetime, from the state now or at a revision, with the log up to it."""
    number = record.rev if rev is None else rev
    data: dict[str, Any] = {"t": members(record.data).get("t"), **await at(store, record, number)}
    title = title or str(members(record.data).get("title") or "")
    if title:
        data["title"] = title
    data["parent"] = {"handle": record.id, "rev": number}
    child = Record(KIND, new_handle(), record.principal, cast("JSON", data), idle=record.idle, max_age=record.max_age)
    made = await history.create_fork(store, child, newest(store, record.id), record.id, number)
    await fork_companions(store, record, await replaced(store, record, number), made.id)
    return made


async def companions(store: Store, handle: str) -> list[str]:
    """The kinds of companions that a session has."""
    record = await store.get(COMPANIONS, handle)
    found = members(record.data).get("kinds") if record is not None else None
    return [kind for kind in cast("list[object]", found or []) if isinstance(kind, str)]


async def add_companion(store: Store, owner: Record, kind: str) -> None:
    """Add a kind to a record beside the session's, so that it does not conflict with edits of the session."""
    while True:
        known = await store.get(COMPANIONS, owner.id)
        kinds = cast("list[JSON]", members(known.data).get("kinds") or []) if known is not None else []
        if kind in kinds:
            return
        data: JSON = {"kinds": [*kinds, kind]}
        fresh = Record(COMPANIONS, owner.id, owner.principal, data, max_age=owner.max_age)
        with suppress(Conflict):
            await store.commit(fresh, expect=0 if known is None else known.rev)
            return


async def fork_companions(
    store: Store, parent: Record, until: float | None, child: str, at_rev: Mapping[str, int] | None = None
) -> None:
    """Give a forked session copies of the companions and their logs, as they were before the moment `until`; those of
    the kinds in `at_rev` as they were at that revision of their own."""
    for kind in await companions(store, parent.id):
        with suppress(NotFound, SessionExpired, Ended):
            companion = await find(store, f"{parent.id}.{kind}")
            if at_rev is not None and kind in at_rev:
                number = at_rev[kind]
            else:
                number = companion.rev if until is None else await rev_before(store, companion, until)
            if number is None:
                continue  # it did not exist yet
            data: dict[str, Any] = {"t": members(companion.data).get("t"), **await at(store, companion, number)}
            data |= {"of": child, "parent": {"handle": companion.id, "rev": number}}
            await add_companion(store, replace(parent, id=child), kind)
            copy = Record(KIND, f"{child}.{kind}", companion.principal, cast("JSON", data), max_age=companion.max_age)
            await history.create_fork(store, copy, newest(store, companion.id), companion.id, number)


async def replaced(store: Store, record: Record, rev: int) -> float | None:
    """When a revision was replaced by the next; None if it is the newest."""
    if rev >= record.rev:
        return None
    async with aclosing(newest(store, record.id)) as entries:
        async for entry in entries:
            if entry.rev == rev + 1:
                return entry.at
            if entry.rev <= rev:
                break
    return None


async def rev_before(store: Store, record: Record, moment: float) -> int | None:
    async with aclosing(newest(store, record.id)) as entries:
        async for entry in entries:
            if entry.rev < 2:
                break
            if entry.at < moment:
                return entry.rev
    return 1 if record.created < moment else None


def _was(handle: str, entry: LogEntry) -> dict[str, Any]:
    """What an entry stores of the previous state."""
    was = members(entry.data).get("was")
    if isinstance(was, dict):
        kept = cast("dict[str, Any]", was)
        if "state" in kept:
            if type(kept.get("v")) is int and isinstance(kept["state"], dict):
                return kept
        elif isinstance(kept.get("set", {}), dict) and _are_names(kept.get("new", [])):
            return kept
    raise CorruptRecord(
        f"entry {entry.seq} of the log of {handle!r} does not have the previous state",
        id=handle,
        remedy=_later(entry.rev),
    )


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value))


def _later(rev: int) -> str:
    return f"revision {rev} and later ones are available"


async def _lost(store: Store, handle: str, otherwise: CorruptRecord) -> HoldfastError:
    """The error for a log that became shorter because its session ended."""
    if await store.get(KIND, handle) is not None:
        return otherwise
    return NotFound(f"the session {handle!r} ended while it was read", id=handle, remedy=_LIST)
