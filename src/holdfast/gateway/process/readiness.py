"""Whether a load balancer should send work here: the store answers, a backend is up, and the gateway stays.

`/readyz` is readable without a token, so it names no store, backend or address.
"""

import asyncio
import time

from holdfast.errors import HoldfastError, Rejected
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.gateway import Gateway

PROBE_SECONDS = 2.0  # for the store's answer: a probe that waits longer has its own deadline by then
FRESH_SECONDS = 1.0  # for which a store's answer counts: probes are many, and come without a token


class Readiness:
    """The readiness of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._asked = float("-inf")
        self._store_answers = False
        self._asking: asyncio.Task[None] | None = None

    async def why_not(self) -> str | None:
        """Why it is not ready; None if it is."""
        gateway = self._gateway
        if not gateway.lifecycle.is_ready:
            return "draining"
        states = [backend.health.state for backend in gateway.backends.values()]
        if states and "up" not in states:
            if not gateway.checks.done:
                return "the servers have not been checked yet"
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
        except Rejected:  # the store answers: this process has no record there yet
            self._store_answers = True
        except HoldfastError as error:
            self._store_answers = False
            self._gateway.report(error)
        self._asked = time.monotonic()

    async def close(self) -> None:
        """Stop the question to the store, if one is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,), timeout=PROBE_SECONDS)
