"""How sessions end, with the companions beside them."""

from contextlib import suppress

from holdfast.core.values import members
from holdfast.errors import CorruptRecord, HoldfastError
from holdfast.state.storage import outline, records
from holdfast.state.storage.entries import COMPANIONS, KIND, POINTERS
from holdfast.stores.contract import Store


async def end(store: Store, handle: str) -> bool:
    """End a session and its companions. The session first, because no companion can begin beside an ended one."""
    await outline.keep(store, handle)
    await _release_key(store, handle)
    ended = await store.end(KIND, handle)
    await end_companions(store, handle)
    return ended


async def _release_key(store: Store, handle: str) -> None:
    """Nobody has to hear that a session expired which was ended: its pointer forgets it."""
    with suppress(HoldfastError):
        record = await store.get(KIND, handle)
        key = members(record.data).get("key") if record is not None else None
        pointer = await store.get(POINTERS, key) if isinstance(key, str) else None
        if pointer is not None and members(pointer.data).get("handle") == handle:
            await store.commit(pointer.with_data({"reported": True}), expect=pointer.rev)


async def end_companions(store: Store, handle: str) -> None:
    kinds: list[str] = []
    with suppress(CorruptRecord):  # even a damaged session may be ended
        kinds = await records.companions(store, handle)
    for kind in kinds:
        await outline.keep(store, f"{handle}.{kind}")
        await store.end(KIND, f"{handle}.{kind}")
    if kinds:
        await store.end(COMPANIONS, handle)


async def end_orphans(store: Store) -> None:
    """End the companions of expired sessions."""
    after: str | None = None
    while True:
        page = await store.scan(kind=COMPANIONS, after=after)
        for record in page.records:
            with suppress(CorruptRecord):  # a session that can't be read may live; a scan has logged it
                if await store.get(KIND, record.id) is None:
                    await end_companions(store, record.id)
        after = page.next
        if after is None:
            return
