"""Calls under way in this process: waited for when the gateway goes down, and cut if they take longer.

A call that was cut is answered with an error that says what is known of its outcome.
"""

import asyncio

from holdfast.errors import Unavailable


class CallsInProgress:
    """The calls that one gateway is answering."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._over = asyncio.Event()
        self._cut = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self) -> "asyncio.Task[object]":
        """Count the current task as a call under way."""
        if self._cut:
            raise Unavailable("the gateway is going down", remedy="try again later")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        return task

    def end(self, task: "asyncio.Task[object]") -> None:
        """The call is over."""
        self._tasks.discard(task)
        if not self._tasks:
            self._over.set()

    async def wait(self, seconds: float) -> None:
        """Wait until no call is under way, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while self._tasks:
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            return

    def cut(self) -> None:
        """Cancel the calls under way, and let no other begin."""
        self._cut = True
        for task in self._tasks:
            task.cancel()

    def was_cut(self) -> bool:
        """Was the current call cancelled by `cut`? Then its task goes on, to answer what is known of the call."""
        task = asyncio.current_task()
        if not self._cut or task is None or task.cancelling() != 1:
            return False
        task.uncancel()
        return True
