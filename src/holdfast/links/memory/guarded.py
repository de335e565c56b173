"""A wrapper around a user's memory: whatever it raises or returns, and however long it takes, no call fails.

It adds a deadline and converts errors to `StoreDown`. An object that is not a memory is rejected at declaration.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from holdfast.core.handshake import Saved, legal_session_id
from holdfast.core.models import Principal
from holdfast.errors import ConfigError, HoldfastError, StoreDown
from holdfast.links.background import cancelling
from holdfast.links.memory.ids import IdMemory, keeps_ids_alone
from holdfast.links.memory.store import FINDER, Memory, MemoryEntry, bare

SECONDS = 15.0  # for one operation of a memory: longer than a store's own deadline, shorter than connecting may take
_METHODS = ("load", "save", "forget", "touch_every", "touch", "claim_stream", "release_stream", "close")

log = logging.getLogger("holdfast.links")
T = TypeVar("T")


class GuardedMemory:
    """A memory, as used by a link of one principal."""

    def __init__(self, inner: Memory, principal: Principal) -> None:
        self._inner = inner
        self._principal = principal

    async def load(self) -> MemoryEntry:
        found = cast("object", await self._do("load", self._inner.load))
        if isinstance(found, str) and legal_session_id(found):
            found = MemoryEntry(bare(found), None)
        if found is None:
            return MemoryEntry(None, None)
        if not isinstance(found, MemoryEntry) or not isinstance(cast("object", found.saved), Saved | None):
            what = f"{self._name}.load() returned a {type(found).__name__}, not a saved session"
            return MemoryEntry(None, None, unreadable=what)
        if found.saved is not None and found.saved.principal == FINDER:
            return found._replace(saved=replace(found.saved, principal=self._principal))
        return found

    async def save(self, saved: Saved, token: object) -> object:
        return await self._do("save", lambda: self._inner.save(saved, token))

    async def forget(self) -> None:
        await self._do("forget", self._inner.forget)

    @property
    def touch_every(self) -> float | None:
        try:
            return self._inner.touch_every
        except Exception:
            log.exception("%s.touch_every raised; the saved session is not touched", self._name)
            return None

    async def touch(self) -> None:
        await self._do("touch", self._inner.touch)

    async def claim_stream(self, seconds: float) -> bool:
        return await self._do("claim_stream", lambda: self._inner.claim_stream(seconds))

    async def release_stream(self) -> None:
        await self._do("release_stream", self._inner.release_stream)

    async def close(self) -> None:
        await self._do("close", self._inner.close)

    @property
    def _name(self) -> str:
        return type(self._inner).__name__

    async def _do(self, what: str, step: Callable[[], Awaitable[T]]) -> T:
        deadline = asyncio.timeout(SECONDS)
        try:
            async with deadline:
                return await step()
        except HoldfastError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelling():
                raise  # otherwise something that the memory awaited was cancelled
            if isinstance(error, TimeoutError) and deadline.expired():
                raise StoreDown(f"{self._name}.{what}() took longer than {SECONDS:g} s") from error
            log.exception("%s.%s() raised", self._name, what)
            raise StoreDown(f"{self._name}.{what}() raised {type(error).__name__}: {error}"[:300]) from error


def guarded(memory: object, principal: Principal) -> Memory:
    """Return a user's memory, or raise if it is not one.
    An object that has only `get_session_id` and `set_session_id` is accepted.
    """
    if isinstance(memory, GuardedMemory):
        return memory
    if keeps_ids_alone(memory) and not isinstance(memory, IdMemory):
        ids = cast("Any", memory)
        return GuardedMemory(IdMemory(ids.get_session_id, ids.set_session_id), principal)
    lacking = [
        name for name in _METHODS if not hasattr(type(memory), name) and name not in getattr(memory, "__dict__", {})
    ]
    if lacking:
        raise ConfigError(
            f"memory= got a {type(memory).__name__}, which lacks {', '.join(lacking)}",
            remedy="give a Memory, or IdMemory(load, save) for two functions that store an id (holdfast.links)",
        )
    return GuardedMemory(cast("Memory", memory), principal)
