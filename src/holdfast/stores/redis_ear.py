"""The connection that listens. It owns PSUBSCRIBE and what happens when that connection is lost: another, and a gap.

It refuses to give up while somebody listens.
"""

import asyncio
from collections.abc import Callable

from holdfast.errors import HoldfastError, StoreDown
from holdfast.stores.notices import Listeners
from holdfast.stores.redis_pool import FAILURES, Connection, RedisPool

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class RedisEar:
    """One task, started by the first listener."""

    def __init__(self, pool: RedisPool, prefix: str, listeners: Listeners, failed: Callable[[str], None]) -> None:
        self._pool = pool
        self._channel = f"{prefix}:n:"
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
        try:
            await connection.send_command("PSUBSCRIBE", f"{self._channel}*")
            while True:
                match await connection.read_response():
                    case [b"psubscribe", *_]:
                        if after_a_loss:
                            self._listeners.gap()
                        self._listening.set()
                    case [b"pmessage", _, bytes(channel), bytes(body)]:
                        self._listeners.deliver(channel.decode()[len(self._channel) :], body)
                    case _:
                        pass  # an answer to nothing we asked
        except FAILURES as error:
            self._failed(f"the listening connection was lost: {error}")
        finally:
            self._listening.clear()
            await self._pool.drop(connection)
