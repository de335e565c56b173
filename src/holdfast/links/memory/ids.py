"""A memory made of two functions that load and save a session id, for code that already stores session ids.

Such a memory has no compare-and-swap, stores no handshake and can't delete.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import cast

from holdfast.core.handshake import Saved, legal_session_id
from holdfast.links.memory.store import MemoryEntry, bare


class IdMemory:
    """`IdMemory(load, save)`: `load()` returns the stored id or None; `save(id)` stores one. Both may be async.

    Only the id is stored: what the server declared at the handshake is not known afterwards, and if two links begin a
    session at once, the last one's id is stored.
    """

    touch_every: float | None = None

    def __init__(
        self,
        load: Callable[[], Awaitable[str | None] | str | None],
        save: Callable[[str], Awaitable[object] | object],
    ) -> None:
        self._load = load
        self._save = save
        self._known: str | None = None
        self._ended: str | None = None

    async def load(self) -> MemoryEntry:
        found = await _result(self._load())
        self._known = found if isinstance(found, str) else None
        if found is None or found in ("", self._ended):
            return MemoryEntry(None, None)
        if not isinstance(found, str) or not legal_session_id(found):
            return MemoryEntry(
                None, None, lost=True, unreadable="the loaded session id is not valid and will be replaced"
            )
        return MemoryEntry(bare(found), None)

    async def save(self, saved: Saved, token: object) -> object:
        if saved.session is not None and saved.session != self._known:
            await _result(self._save(saved.session))
            self._known = saved.session
        return None

    async def forget(self) -> None:
        """Nothing can delete the id: a later process will find that its session is gone."""
        self._ended = self._known

    async def touch(self) -> None:
        return

    async def claim_stream(self, seconds: float) -> bool:
        return True

    async def release_stream(self) -> None:
        return

    async def close(self) -> None:
        return


def keeps_ids_alone(memory: object) -> bool:
    """Whether it is an `IdMemory`, or an object with its two methods, which is wrapped in one."""
    return isinstance(memory, IdMemory) or all(
        callable(getattr(memory, name, None)) for name in ("get_session_id", "set_session_id")
    )


async def _result(value: object) -> object:
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
