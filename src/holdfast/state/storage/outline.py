"""The steps of a session without what it held: read from its log, and kept for a while after its end."""

from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.core.models import Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, CorruptRecord, HoldfastError
from holdfast.state.storage import records
from holdfast.state.storage.entries import KIND, OUTLINES
from holdfast.state.storage.history import Origin, origin
from holdfast.stores.contract import Store

KEPT_SECONDS = 30 * 86_400.0  # after the end of the session
KEPT_STEPS = 2_000  # of one session, the newest: some hundred kilobytes
LABEL = 80  # characters of a label


@dataclass(frozen=True, slots=True)
class OutlineStep:
    """One revision: how it was made, when, and the phase that it left a companion in."""

    rev: int
    label: str
    at: float
    undone_to: int | None = None
    phase: str | None = None
    origin: Origin | None = None
    """Where it was made, if it came with a fork."""

    def to_json(self) -> JSON:
        came: JSON = [self.origin.handle, self.origin.rev] if self.origin is not None else None
        return [self.rev, self.label[:LABEL], self.at, self.undone_to, self.phase, came]


@dataclass(frozen=True, slots=True)
class Outline:
    """What there was of one session, ended or not."""

    handle: str
    principal: Principal
    created: float
    parent: tuple[str, int] | None = None
    phase: str | None = None
    """Of its first revision."""
    steps: list[OutlineStep] = field(default_factory=list[OutlineStep])
    ended: float | None = None


async def read(store: Store, handle: str) -> Outline | None:
    """The outline of a session: of one that ended or expired as much as was kept. None if there never was one, or it
    is too long ago."""
    record = await store.get(KIND, handle, dead=True)
    if record is not None and record.ended is None:
        return await _of(store, record)
    kept = await store.get(OUTLINES, handle)
    if kept is not None:
        return _kept(kept)
    if record is None:
        return None
    return Outline(handle, record.principal, record.created, ended=record.ended)


async def keep(store: Store, handle: str) -> None:
    """Write the outline of a session that is about to end. One in which nothing was done has none."""
    with suppress(HoldfastError):  # an outline is no reason not to end a session
        record = await store.get(KIND, handle)
        if record is None or (record.rev == 1 and not members(record.data).get("parent")):
            return
        found = await _of(store, record)
        data: dict[str, Any] = {"created": found.created, "phase": found.phase}
        data["parent"] = list(found.parent) if found.parent is not None else None
        data["steps"] = [step.to_json() for step in found.steps[-KEPT_STEPS:]]
        fresh = Record(OUTLINES, handle, record.principal, cast("JSON", data), max_age=KEPT_SECONDS)
        with suppress(Conflict):  # another call ends it, too
            await store.commit(fresh, expect=0)


def parent_of(record: Record) -> tuple[str, int] | None:
    """The session and revision that a live record was forked from."""
    parent = members(members(record.data).get("parent"))
    handle, rev = parent.get("handle"), parent.get("rev")
    return (handle, rev) if isinstance(handle, str) and type(rev) is int else None


async def forks(store: Store, principal: Principal) -> dict[str, list[tuple[str, int]]]:
    """By session of this caller, those that were forked from it and at which revision."""
    found: dict[str, list[tuple[str, int]]] = {}
    for kind in (KIND, OUTLINES):
        after: str | None = None
        while True:
            page = await store.scan(kind=kind, principal=principal, after=after)
            for record in page.records:
                parent = parent_of(record) if kind == KIND else _kept(record).parent
                if parent is not None:
                    found.setdefault(parent[0], []).append((record.id, parent[1]))
            after = page.next
            if after is None:
                break
    return found


async def _of(store: Store, record: Record) -> Outline:
    """From a live record and its log."""
    phase = members(records.stored(record)["state"]).get("phase")
    phase = phase if isinstance(phase, str) else None
    async with aclosing(records.newest(store, record.id)) as newest:
        entries = [entry async for entry in newest if entry.rev <= record.rev]
    steps: dict[int, OutlineStep] = {}
    at = {record.rev: phase}  # the phase at each revision, of a companion
    for entry in entries:
        body = members(entry.data)
        if phase is not None:
            was = members(body.get("was"))
            before = members(was.get("set")).get("phase", members(was.get("state")).get("phase"))
            phase = before if isinstance(before, str) else phase
            at[entry.rev - 1] = phase  # the oldest entry of a revision has the last word
        back, label = body.get("undo"), str(body.get("label", ""))
        undone_to = back if type(back) is int else None
        steps[entry.rev] = OutlineStep(entry.rev, label, entry.at, undone_to, at.get(entry.rev), origin(entry))
    ordered = [steps[rev] for rev in sorted(steps)]
    return Outline(record.id, record.principal, record.created, parent_of(record), at.get(1), ordered)


def _kept(record: Record) -> Outline:
    data = members(record.data)
    parent: Any = data.get("parent")
    try:
        return Outline(
            record.id,
            record.principal,
            cast("float", data["created"]),
            (str(parent[0]), int(parent[1])) if parent is not None else None,
            cast("str | None", data.get("phase")),
            [
                OutlineStep(rev, label, at, back, phase, Origin(*came) if came else None)
                for rev, label, at, back, phase, came in cast("list[Any]", data["steps"])
            ],
            record.created,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"the outline of {record.id!r} can't be read", id=record.id) from error
