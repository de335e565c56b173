"""PSUBSCRIBE on Redis, over one connection beside the pool, which `PING` checks now and then."""

import asyncio
from collections.abc import Callable

from holdfast.stores.notice_listener import PROOF_SECONDS, NoticeListener
from holdfast.stores.notices import Listeners
from holdfast.stores.redis.pool import FAILURES, Connection, RedisPool


class RedisNoticeListener(NoticeListener):
    def __init__(self, pool: RedisPool, prefix: str, listeners: Listeners, failed: Callable[[str], None]) -> None:
        super().__init__(pool.url, listeners, failed)
        self._pool = pool
        self._channel = f"{prefix}:n:"

    async def _connect(self) -> Connection:
        return await self._pool.connect()

    async def _hold(self, connection: Connection) -> None:
        try:
            await connection.send_command("PSUBSCRIBE", f"{self._channel}*")
            asked = False
            while True:
                try:
                    async with asyncio.timeout(PROOF_SECONDS):
                        message = await connection.read_response(disconnect_on_error=False)
                except TimeoutError:
                    if asked:
                        raise
                    await connection.send_command("PING")
                    asked = True
                    continue
                asked = False
                match message:
                    case [b"psubscribe", *_]:
                        self._listening()
                    case [b"pmessage", _, bytes(channel), bytes(body)]:
                        self._listeners.deliver(channel.decode(errors="replace")[len(self._channel) :], body)
                    case _:
                        pass  # the answer to PING
        except FAILURES as error:
            raise self._pool.translate(error, connection) from error

    async def _drop(self, connection: Connection) -> None:
        await self._pool.drop(connection)
