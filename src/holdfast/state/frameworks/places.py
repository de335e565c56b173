"""The sessions that a call means, taken to be written under the call's turn, or read.

A call with an idempotency key takes the record of its result in the same step as its sessions.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.core.models import Principal
from holdfast.core.records import Key as StoreKey
from holdfast.errors import HoldfastError, NotFound
from holdfast.state.calls.transaction import Transaction
from holdfast.state.identity import FromArgument, Identity, Key, Named
from holdfast.state.registry import SessionRegistry
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import showing


@dataclass(frozen=True, slots=True)
class Place:
    """The session that a call means, not read yet."""

    sessions: SessionRegistry[Any]
    handle: str
    principal: Principal
    found: Named | Key

    @property
    def key(self) -> StoreKey:
        return KIND, self.handle

    @property
    def shared(self) -> bool:
        return isinstance(self.found, Key) and self.found.shared


async def place_of(sessions: SessionRegistry[Any], caller: Identity, argument: str | None = None) -> Place:
    """The session that the caller means, by the identity chain, or by an `argument` of a parameter of its own."""
    chain = sessions.chain
    if argument is not None and argument not in chain.arguments:
        handle = caller.arguments.get(argument)
        found = FromArgument(argument).find(caller, sessions.table.name) if handle else None
    else:
        found = chain.find(caller, sessions.table.name)
    if found is None:
        raise NotFound(
            "this needs a session, and the call names none",
            remedy=f"{sessions.table.begin_hint}, or {chain.hint}" if chain.is_named_by_callers else chain.hint,
        )
    if isinstance(found, Named):
        return Place(sessions, sessions.table.check_handle(found.handle), caller.principal, found)
    return Place(sessions, await sessions.pointers.handle(found), found.principal, found)


async def _current(place: Place) -> Place:
    """The session that stands for a caller now that the one before has ended."""
    assert isinstance(place.found, Key)
    place.sessions.pointers.forget(place.found)
    return replace(place, handle=await place.sessions.pointers.handle(place.found))


async def take_with_result(
    transaction: Transaction, table: SessionTable[Any], names: Collection[StoreKey], result: StoreKey | None
) -> None:
    """Take the turns on these names, and on the `result` of a call with an idempotency key. If the same call was made
    before, its result is set as the transaction's answer, and an error ends this one."""
    await transaction.begin(table.store)
    wanted = {*names, result} if result is not None else names
    await transaction.take(table.store, wanted, wait=table.turn_wait, ttl=table.turn_ttl)
    if transaction.keyed is not None and result is not None:
        transaction.answer = transaction.keyed.answer(transaction.record(result))
        transaction.result_place = result
        if transaction.answer is not None:
            raise HoldfastError("the call was made before, and its result is known")


async def take_to_write(
    places: Sequence[Place], caller: Identity, transaction: Transaction, also: type[Exception] | None
) -> list[Session[Any]]:
    """The sessions under the call's turn, with a draft each.

    A session that stands for a caller and turns out to have ended is given up with all that was taken beside it, before
    the one that follows is taken: turns are taken in the order of names, and a key's result is beside the sessions.
    """
    keyed = transaction.keyed if not transaction.has_begun else None
    for place in places:
        await transaction.begin(place.sessions.table.store)
    with showing(also):
        for last in (False, False, True):
            handles = [each.handle for each in places]
            result = keyed.place(handles, shared=any(each.shared for each in places)) if keyed else None
            names = {each.key for each in places if each.handle not in transaction.sessions}
            before = transaction.held
            await take_with_result(transaction, places[0].sessions.table, names, result)
            if last or not any(_is_over(each, transaction) for each in places):
                break
            over = [_is_over(each, transaction) for each in places]
            await transaction.give_up(transaction.held - before)
            places = [await _current(each) if is_over else each for each, is_over in zip(places, over, strict=True)]
    return [_draft(place, caller, transaction, also) for place in places]


def _is_over(place: Place, transaction: Transaction) -> bool:
    """Whether a session that stands for a caller has ended: another one follows."""
    if not isinstance(place.found, Key) or place.handle in transaction.sessions:
        return False
    record = transaction.record(place.key)
    return record is None or record.ended is not None


def _draft(place: Place, caller: Identity, transaction: Transaction, also: type[Exception] | None) -> Session[Any]:
    table = place.sessions.table
    known = transaction.sessions.get(place.handle)
    if known is not None and known.record.table is table and known.principal == place.principal:
        return cast("Session[Any]", known)
    session = Session(
        SessionRecord(table, *table.check(transaction.record(place.key), place.handle, place.principal)),
        shared_with=caller.principal if place.shared else None,
        also=also,
    )
    session.in_call.open_draft()
    transaction.adopt(place.handle, session, session.in_call)
    return session


async def take_to_read(
    places: Sequence[Place], caller: Identity, transaction: Transaction | None, also: type[Exception] | None
) -> list[Session[Any]]:
    """The sessions as they are at one moment, with what the call itself has changed."""
    found: dict[int, Session[Any]] = {}
    groups: dict[object, list[int]] = {}
    for number, place in enumerate(places):
        known = transaction.sessions.get(place.handle) if transaction is not None else None
        if known is not None and known.record.table is place.sessions.table:
            found[number] = known
        else:
            groups.setdefault(place.sessions.table.store.place, []).append(number)
    for group in groups.values():
        store = await places[group[0]].sessions.table.store.open()
        records = await store.get_all([places[number].key for number in group], dead=True)
        for number, record in zip(group, records, strict=True):
            place = places[number]
            table = place.sessions.table
            if isinstance(place.found, Key) and (record is None or record.ended is not None):
                now = await _current(place)
                loaded = await table.load(now.handle, now.principal)
            else:
                loaded = table.check(record, place.handle, place.principal)
            await table.slide(loaded[0])
            shared = caller.principal if place.shared else None
            found[number] = Session(SessionRecord(table, *loaded), shared_with=shared, also=also)
    return [found[number] for number in range(len(places))]
