"""The background tasks of a link, each in an empty context; all of them end in bounded time.

Shared resources are opened and closed in these tasks, never in a caller's, so that a caller's cancellation does not
affect others. A task that fails is reported to `on_failure`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

FINISH_SECONDS = 1.0  # at most, for messages that should still reach a server before its link closes


class CancelReason(str):
    """The message of a `task.cancel()` for the server of the call that it ends: other messages are not for servers."""


def cancelling() -> bool:
    """Whether the current task is being cancelled. If not, a CancelledError came from something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class BackgroundTasks:
    """A set of tasks with one owner."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._to_finish: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, T], name: str, *, finish: bool = False) -> asyncio.Task[T]:
        """Run a coroutine in a task with an empty context, so that it keeps no caller's context variables.
        With `finish`, closing waits a moment for the task instead of cancelling it.
        """
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=Context())
        self._tasks.add(task)
        if finish:
            self._to_finish.add(task)
            task.add_done_callback(self._to_finish.discard)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)

    def abandon(self) -> None:
        """Drop the tasks without waiting: their event loop is closed."""
        self._tasks.clear()
        self._to_finish.clear()

    async def close(self, seconds: float, keep: asyncio.Task[Any] | None = None) -> int:
        """Cancel all tasks and wait for them. Returns how many did not end in time."""
        if self._to_finish:
            await asyncio.wait(tuple(self._to_finish), timeout=min(FINISH_SECONDS, seconds))
        tasks = [task for task in self._tasks if task is not keep and task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, late = await asyncio.wait(tasks, timeout=seconds)
        return len(late)
