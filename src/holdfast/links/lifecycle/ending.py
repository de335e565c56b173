"""Ends a session that another process left: adopts what was saved of it, then ends it at its server.

No handshake is made, so no session is begun just to end one.
"""

from dataclasses import replace

from holdfast.core.handshake import Saved
from holdfast.links.link import Link
from holdfast.links.memory.store import MemoryEntry
from holdfast.links.options import Options
from holdfast.links.target import Target


class _Once:
    """A memory that returns one saved session and stores nothing."""

    touch_every: float | None = None

    def __init__(self, saved: Saved) -> None:
        self._saved: Saved | None = saved

    async def load(self) -> MemoryEntry:
        return MemoryEntry(self._saved, 0)

    async def save(self, saved: Saved, token: object) -> object:
        return 0

    async def forget(self) -> None:
        self._saved = None

    async def touch(self) -> None:
        return

    async def claim_stream(self, seconds: float) -> bool:
        return False

    async def release_stream(self) -> None:
        return

    async def close(self) -> None:
        return


async def end_saved(target: Target, saved: Saved, options: Options, name: str) -> bool:
    """End it. Returns True if the server ended it or no longer knew it; raises if the server can't be reached."""
    if saved.session is None:
        return True  # there is no session at the server
    link = Link(
        target,
        replace(
            options,
            era="auto",
            stream=False,
            memory=_Once(saved),
            principal=saved.principal,
            capabilities=saved.ours.capabilities,
        ),
        name=name,
    )
    try:
        await link.open()
    finally:
        await link.close(end=True)
    return link.statistics().close_failures == 0
