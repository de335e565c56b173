"""What all clients share: the gateway, the ledger, and whether to go on."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from benchmarks.soak.gateway import Gateway
from benchmarks.soak.ledger import Ledger


class World:
    """What clients and faults share."""

    def __init__(self, gateway: Gateway, ledger: Ledger) -> None:
        self.gateway = gateway
        self.ledger = ledger
        self.running = True
        self.calm = asyncio.Event()
        """Set when the faults are over."""
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.beginning = 0

    @contextlib.asynccontextmanager
    async def begins(self) -> AsyncGenerator[None]:
        """A block that starts something at the backends; it waits while their sessions are counted."""
        await self.may_begin.wait()
        self.beginning += 1
        try:
            yield
        finally:
            self.beginning -= 1

    async def rest(self, seconds: float) -> bool:
        """True when the faults are over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.calm.wait(), seconds)
        return self.calm.is_set()
