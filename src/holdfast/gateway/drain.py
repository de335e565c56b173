"""Calls under way in this process: counted, waited for when the gateway goes down, and cut if they last longer.

It owns the question whether a cancelled call was cut by us. A call that was cut is answered with an error that says
what is known of it, never with a connection that just ends.
"""

import asyncio

from holdfast.errors import Unavailable


class CallsInProgress:
    """The calls of one gateway."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._over = asyncio.Event()
        self._cut = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self) -> "asyncio.Task[object]":
        """The task that asks now has a call under way."""
        if self._cut:
            raise Unavailable("the gateway is going down", remedy="try again in a while")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        return task

    def end(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._over.set()

    async def wait(self, seconds: float) -> None:
        """Until no call is under way, they were cut, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while self._tasks:
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            return

    def cut(self) -> None:
        """Stop what is still under way; nothing begins any more."""
        self._cut = True
        for task in self._tasks:
            task.cancel()

    def was_cut(self) -> bool:
        """Was it us who cancelled the current call? Then it goes on, to answer what is known of it."""
        task = asyncio.current_task()
        if not self._cut or task is None or task.cancelling() != 1:
            return False
        task.uncancel()
        return True
