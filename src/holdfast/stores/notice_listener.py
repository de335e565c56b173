"""The task that receives notices from a server, over a connection of its own.

While there are listeners, a lost or silent connection is replaced after a pause, and listeners get a `Gap`.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.models import NoticeOrGap
from holdfast.errors import ConfigError, HoldfastError, StoreDown
from holdfast.stores.notices import Listeners

PROOF_SECONDS = 5.0  # how often a listening connection must prove that it is alive
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class NoticeListener:
    """One task, started by the first listener. A subclass says how to connect, listen and disconnect."""

    def __init__(self, url: str, listeners: Listeners, failed: Callable[[str], None]) -> None:
        self._url = url
        self._listeners = listeners
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_listening = False
        self._lost = False
        self._why: HoldfastError | None = None

    @abstractmethod
    async def _connect(self) -> Any:
        """A connection, or the error that says why not."""

    @abstractmethod
    async def _hold(self, connection: Any) -> None:
        """Listen on it, call `_listening` once the server confirmed it, and raise when it is lost."""

    @abstractmethod
    async def _drop(self, connection: Any) -> None: ...

    @asynccontextmanager
    async def listen(self, topics: tuple[str, ...], timeout: float) -> AsyncGenerator[AsyncIterator[NoticeOrGap], None]:
        with self._listeners.register(topics) as listener:
            await self._ready(timeout)
            yield listener

    async def _ready(self, timeout: float) -> None:
        """Return when what is published from now on will be received."""
        if self._task is None or self._task.done():
            self._why = None
            self._task = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(timeout):
                while not self._is_listening:
                    if isinstance(self._why, ConfigError):
                        raise self._why
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            because = f": {self._why.what}" if self._why else ""
            raise StoreDown(f"{self._url} can't be listened to{because}", store=self._url) from None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _listening(self) -> None:
        if self._lost:
            self._listeners.gap()
        self._is_listening, self._why = True, None
        self._news.set()

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            connection = None
            try:
                connection = await self._connect()
                await self._hold(connection)
            except HoldfastError as error:
                was_listening = self._is_listening
                if was_listening or not self._lost:
                    self._failed(str(error))
                pause = _FIRST_PAUSE if was_listening else min(pause * 2, _LONGEST_PAUSE)
                self._is_listening, self._lost, self._why = False, True, error
                self._news.set()
            finally:
                self._is_listening = False
                if connection is not None:
                    await self._drop(connection)
            await asyncio.sleep(pause)
