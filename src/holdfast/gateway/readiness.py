"""Whether a load balancer should send work here: the store answers, a backend is up, and nobody is going home.

It owns the words of `/readyz`, which anybody may read: they name no store, backend or address.
"""

import asyncio
import time

from holdfast.errors import HoldfastError, Rejected
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.parts import GatewayParts

PROBE_SECONDS = 2.0  # for the store's answer: a probe that waits longer has its own deadline by then
FRESH_SECONDS = 1.0  # for which a store's answer holds: probes are many, and come without a token


class Readiness:
    """Of one gateway."""

    def __init__(self, gateway: GatewayParts) -> None:
        self._gateway = gateway
        self._asked = float("-inf")
        self._store_answers = False
        self._asking: asyncio.Task[None] | None = None

    async def why_not(self) -> str | None:
        """None if it is ready."""
        gateway = self._gateway
        if gateway.leaving or gateway.draining:
            return "draining"
        states = [backend.health.state for backend in gateway.backends.values()]
        if states and "up" not in states:
            if not gateway.checks.done:
                return "the servers have not been looked at yet"
            if all(state == "down" for state in states):
                return "no server is up"
        return None if await self._store_is_up() else "the store does not answer"

    async def _store_is_up(self) -> bool:
        if time.monotonic() - self._asked >= FRESH_SECONDS:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._ask(), name="probe the store")
                self._asking.add_done_callback(lambda _: setattr(self, "_asking", None))
            if not (await asyncio.wait((self._asking,), timeout=PROBE_SECONDS))[0]:
                return False
        return self._store_answers

    async def _ask(self) -> None:
        try:
            await self._gateway.store.touch(PROCESSES, self._gateway.sessions.owner)  # a store must take writes, too
            self._store_answers = True
        except Rejected:  # our own sign of life is not there: the store says so
            self._store_answers = True
        except HoldfastError as error:
            self._store_answers = False
            self._gateway.report(error)
        self._asked = time.monotonic()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,), timeout=PROBE_SECONDS)
