"""LISTEN on PostgreSQL, over one connection beside the pool, which `SELECT 1` checks now and then."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.errors import StoreDown
from holdfast.stores.notice_listener import PROOF_SECONDS, NoticeListener
from holdfast.stores.notices import Listeners
from holdfast.stores.postgres.pool import FAILURES, Connection, PostgresPool
from holdfast.stores.postgres.statements import CHANNEL


class PostgresNoticeListener(NoticeListener):
    def __init__(self, pool: PostgresPool, listeners: Listeners, failed: Callable[[str], None]) -> None:
        super().__init__(pool.url, listeners, failed)
        self._pool = pool

    async def _connect(self) -> Connection:
        return await self._pool.connect()

    async def _hold(self, connection: Connection) -> None:
        gone = asyncio.Event()
        connection.add_termination_listener(partial(_set, gone))
        try:
            await connection.add_listener(CHANNEL, self._deliver)
            self._listening()
            while not gone.is_set():
                try:
                    async with asyncio.timeout(PROOF_SECONDS):
                        await gone.wait()
                except TimeoutError:
                    async with asyncio.timeout(PROOF_SECONDS):
                        await connection.fetchval("SELECT 1")
        except FAILURES as error:
            raise self._pool.translate(error) from error
        raise StoreDown(f"the listening connection to {self._url} was lost", store=self._url)

    async def _drop(self, connection: Connection) -> None:
        connection.terminate()

    def _deliver(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        topic, _, body = str(payload).partition("\n")
        self._listeners.deliver(topic, body.encode())


def _set(gone: asyncio.Event, connection: Connection) -> None:
    gone.set()
