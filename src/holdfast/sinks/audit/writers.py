"""Where audit lines go besides a file: stdout, or a store that several processes share."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.core.models import Principal, Record
from holdfast.stores.contract import MAX_RECORD_BYTES, Store

KIND = "audit"
OWNER = Principal("holdfast audit")  # of the records: they are nobody's session
STORE_SECONDS = 20.0  # for one commit, read back if its answer was lost
_AT_ONCE = MAX_RECORD_BYTES // 2  # bytes of one commit

T = TypeVar("T")


class StdoutWriter:
    """Writes to stdout, for collectors that read what a container prints."""

    def write(self, lines: bytes) -> None:
        view = memoryview(lines)
        while view:
            view = view[os.write(1, view) :]

    def close(self) -> None:
        """Stdout belongs to the program."""


class StoreWriter:
    """Writes to the log of records of a store, each of at most `max_bytes`, of which `keep` old ones are kept.

    The store belongs to an event loop; this is used in another thread.
    """

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, process: str, *, max_bytes: int, keep: int
    ) -> None:
        self._store = store
        self._loop = loop
        self._process = process
        self._max_bytes = max_bytes
        self._keep = keep
        self._number = 0
        self._rev = 0
        self._size = 0

    def write(self, lines: bytes) -> None:
        self._run(self._write(lines.decode().splitlines()))

    def close(self) -> None:
        """The store belongs to the gateway."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, STORE_SECONDS), self._loop).result()

    async def _write(self, lines: list[str]) -> None:
        """One commit, so that all lines are written or none."""
        size = sum(map(len, lines))
        if self._size and self._size + size > self._max_bytes:
            await self._begin_another()
        record = Record(KIND, self._id(self._number), OWNER, {"process": self._process, "bytes": self._size + size})
        try:
            written = await self._store.commit(record, expect=self._rev, entries=lines)
        except BaseException:
            await self._begin_another()  # where this one stands is not known, unless it is read again
            raise
        self._rev, self._size = written.rev, self._size + size

    async def _begin_another(self) -> None:
        self._number += 1
        self._rev = self._size = 0
        if self._number > self._keep:
            await self._store.end(KIND, self._id(self._number - self._keep - 1))

    def _id(self, number: int) -> str:
        return f"{self._process}-{number:06d}"
