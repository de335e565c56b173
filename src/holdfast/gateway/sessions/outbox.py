"""Notifications of one client on their way to servers: in order for each, without holding up the client."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.gateway")

WAITING_BYTES = 1024 * 1024  # of one client's notifications, in memory; more are dropped, as at a server that is away
SEND_SECONDS = 30.0  # for a server to come up and take one
Send: TypeAlias = Callable[[], Awaitable[None]]


class Outbox:
    """The notifications of one session that wait. `start` runs a task of the session."""

    __slots__ = ("_size", "_start", "_waiting")

    def __init__(self, start: Callable[[Coroutine[Any, Any, Any], str], object]) -> None:
        self._start = start
        self._waiting: dict[str, deque[tuple[Send, int]]] = {}
        self._size = 0

    def put(self, server: str, send: Send, size: int) -> None:
        """Send it after those that wait for the same server. `size`: the bytes that it takes meanwhile."""
        if self._size + size > WAITING_BYTES:
            log.warning("%s: a notification of a client was dropped: too many wait", server)
            return
        self._size += size
        waiting = self._waiting.get(server)
        if waiting is not None:
            waiting.append((send, size))
            return
        self._waiting[server] = deque([(send, size)])
        self._start(self._drain(server), f"notify {server}")

    async def _drain(self, server: str) -> None:
        waiting = self._waiting[server]
        try:
            while waiting:
                send, size = waiting[0]
                try:
                    async with asyncio.timeout(SEND_SECONDS):
                        await send()
                except (HoldfastError, TimeoutError) as error:
                    log.info("%s: a notification of a client was not delivered: %r", server, error)
                waiting.popleft()
                self._size -= size
        finally:
            del self._waiting[server]
            self._size -= sum(size for _, size in waiting)
