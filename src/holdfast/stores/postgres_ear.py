"""The connection that listens. It owns LISTEN and what happens when that connection is lost: another, and a gap.

It refuses to give up while somebody listens.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError, StoreDown
from holdfast.stores.notices import Listeners
from holdfast.stores.postgres_pool import FAILURES, Connection, PostgresPool

CHANNEL = "holdfast"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def _set(gone: asyncio.Event, connection: Connection) -> None:
    gone.set()


class PostgresEar:
    """One task, started by the first listener."""

    def __init__(self, pool: PostgresPool, listeners: Listeners, failed: Callable[[str], None]) -> None:
        self._pool = pool
        self._listeners = listeners
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    async def ready(self, timeout: float) -> None:
        """Return when what is published from now on will be heard."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(timeout):
                await self._listening.wait()
        except TimeoutError:
            raise StoreDown(f"{self._pool.url} can't be listened to", store=self._pool.url) from None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _listen(self) -> None:
        lost = False
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = await self._pool.connect()
            except HoldfastError as error:
                if not lost:
                    self._failed(str(error))
                lost = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            await self._hold(connection, after_a_loss=lost)
            lost = True

    async def _hold(self, connection: Connection, *, after_a_loss: bool) -> None:
        """Listen on it until it is lost."""
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(partial(_set, gone))
            await connection.add_listener(CHANNEL, self._heard)
            if after_a_loss:
                self._listeners.gap()
            self._listening.set()
            await gone.wait()
            self._failed("the listening connection was lost")
        except FAILURES as error:
            self._failed(str(error))
        finally:
            self._listening.clear()
            connection.terminate()

    def _heard(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        topic, _, body = str(payload).partition("\n")
        self._listeners.deliver(topic, body.encode())
