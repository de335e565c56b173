"""Reads the admin socket of a gateway process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from holdfast.core.values import members
from holdfast.errors import ConnectFailed, HoldfastError

LINE_BYTES = 8 * 1024 * 1024  # the longest line: a snapshot of many sessions
SECONDS = 5.0  # for an answer


class AdminClient:
    """One connection: `async with AdminClient.connected(path) as client:`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, path: str) -> AsyncGenerator[Self]:
        """`ConnectFailed` if no gateway listens there."""
        try:
            async with asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES)
        except (OSError, ValueError, TimeoutError, AttributeError) as error:  # AttributeError: on Windows
            raise _away(error) from None
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def snapshot(self, sessions: int) -> dict[str, Any]:
        """How the gateway is right now."""
        async with self._answering():
            self._writer.write(_line({"get": "snapshot", "sessions": sessions}))
            async with asyncio.timeout(SECONDS):
                return members(_read(await self._reader.readline()).get("snapshot"))

    async def events(self, wanted: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """`{"following": …}`, `{"event": …}` and `{"lost": n}` as they come. It ends with an error: the gateway went
        away."""
        async with self._answering():
            self._writer.write(_line({"get": "events", **wanted}))
            while True:
                yield _read(await self._reader.readline())

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[None]:
        try:
            yield
        except (OSError, ValueError, TimeoutError) as error:
            raise _away(error) from None


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps({key: value for key, value in request.items() if value is not None}).encode() + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it ended")
    answer = members(json.loads(line))
    if "error" in answer:
        raise ConnectionResetError(str(answer["error"]))
    return answer


def _away(error: BaseException) -> HoldfastError:
    why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
    return ConnectFailed(f"the gateway's admin socket can't be read: {why}".lower(), phase="connect")
