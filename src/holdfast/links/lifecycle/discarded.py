"""Wires that a link no longer uses and that are being closed."""

import asyncio
from contextvars import Context

from holdfast.links.wires.base import Wire


class DiscardedWires:
    """Closes each wire in a task of its own.
    Unlike background tasks, these are not cancelled when the link closes; it waits for them.
    """

    def __init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._closing)

    def add(self, wire: Wire | None) -> None:
        if wire is not None:
            closing = asyncio.get_running_loop().create_task(wire.close(), name="close wire", context=Context())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def abandon(self) -> None:
        """Drop the tasks of a closed event loop."""
        self._closing.clear()

    async def wait(self, seconds: float) -> int:
        """Wait until all are closed. Returns how many did not close in time."""
        if not self._closing:
            return 0
        _, late = await asyncio.wait(self._closing, timeout=seconds)
        return len(late)
