"""How a gateway process goes down: it leaves its load balancer, drains, and cuts the calls that take longer.

A call that was cut is answered with an error that says what is known of its outcome.
"""

import asyncio
import contextlib
import logging

from holdfast.core.lifecycle import GATEWAY, GatewayEvent, GatewayState
from holdfast.errors import Unavailable

log = logging.getLogger("holdfast.gateway")

CUT_SECONDS = 2.0  # for calls that were cut to answer so


class GatewayLifecycle:
    """The lifecycle of one gateway process, and the calls that it is answering."""

    def __init__(self) -> None:
        self.state = GATEWAY.initial
        self._moved = asyncio.Event()
        self._calls: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<GatewayLifecycle {self.state.name} calls={len(self._calls)}>"

    # Calls

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._calls)

    def begin_call(self) -> "asyncio.Task[object]":
        """Count the current task as a call under way."""
        if self.state is GatewayState.CUTTING:
            raise Unavailable("the gateway is going down", remedy="try again later")
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        return task

    def end_call(self, task: "asyncio.Task[object]") -> None:
        """The call is over."""
        self._calls.discard(task)
        if not self._calls:
            self._idle.set()

    def was_cut(self) -> bool:
        """Was the current call cancelled by `cut`? Then its task goes on, to answer what is known of the call."""
        task = asyncio.current_task()
        if self.state is not GatewayState.CUTTING or task is None or task.cancelling() != 1:
            return False
        task.uncancel()
        return True

    async def _wait_idle(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._calls:
                    self._idle.clear()
                    await self._idle.wait()

    # The way down

    @property
    def is_ready(self) -> bool:
        """May a load balancer send work here?"""
        return self.state is GatewayState.SERVING

    @property
    def takes_sessions(self) -> bool:
        return self.state in (GatewayState.SERVING, GatewayState.LEAVING)

    def _step(self, event: GatewayEvent) -> None:
        self.state = GATEWAY.next(self.state, event)
        self._moved.set()

    async def drain(self, linger: float, seconds: float) -> None:
        """Serve on for `linger` seconds, so that load balancers notice; then take no new sessions, and give calls their
        time. Calls that need longer are cut."""
        if self.state is GatewayState.CUTTING:
            return
        self._step(GatewayEvent.LEAVE)
        if linger:
            await self._wait_moved(linger)
        self._step(GatewayEvent.DRAIN)
        if self.state is GatewayState.DRAINING:
            await self._wait_idle(seconds)
        if self._calls:
            log.warning("%d calls are cut: they need more than sessions.drain, %g s", len(self._calls), seconds)
        self.cut()
        await self._wait_idle(CUT_SECONDS)

    async def _wait_moved(self, seconds: float) -> None:
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), seconds)

    def cut(self) -> None:
        """Wait for no call any longer: cancel those under way, and let no other begin."""
        if self.state is GatewayState.CUTTING:
            return  # a second cancellation would take the answers of the calls that were cut
        self._step(GatewayEvent.CUT)
        for task in self._calls:
            task.cancel()
