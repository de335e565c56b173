"""The record by which a gateway process shows that it is alive, and how its backends are.

It owns this process's record, and ends those of processes that have ended here without doing so.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from holdfast.core.exact import plain
from holdfast.core.models import ANONYMOUS, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, Ended, HoldfastError, NotFound, SessionExpired
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.ownership import PROCESSES, has_ended
from holdfast.gateway.failure_log import FailureLog
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

SPACING = 0.5  # seconds between two writes of the record, however much changes
WRITE_SECONDS = 10.0  # between two writes, if nothing changes
IDLE_SECONDS = 45.0  # without a write, after which a process counts as gone


def described(backend: Backend, left_out_for_callers: Collection[str]) -> Mapping[str, Any]:
    """How a backend is, as `holdfast backends` shows it."""
    known = backend.catalogue
    return {
        "state": backend.health.state,
        "since": backend.health.since,
        "why": plain(backend.health.why),
        "era": backend.era.value if backend.era is not None else None,
        "tools": len(known.tools) if known is not None else None,
        "keeps_sessions": backend.keeps_sessions,
        "left_out": list(known.left_out) if known is not None else sorted(left_out_for_callers),
    }


class ProcessRecord:
    """The record of one gateway process. `describe` returns its content."""

    def __init__(
        self, store: Store, owner: str, failures: FailureLog, describe: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._store = store
        self._owner = owner
        self._failures = failures
        self._describe = describe
        self._record: Record | None = None

    async def end_dead(self) -> None:
        """End the records of processes that ran here and have ended; those of other machines expire."""
        after: str | None = None
        while True:
            page = await self._store.scan(kind=PROCESSES, after=after)
            for record in page.records:
                if has_ended(members(record.data)):
                    await self._store.end(PROCESSES, record.id)
            if page.next is None:
                return
            after = page.next

    async def write(self) -> None:
        """Write the record, and remove those that have expired."""
        data = cast("JSON", self._describe())
        record = Record(PROCESSES, self._owner, ANONYMOUS, data, idle=IDLE_SECONDS)
        try:
            self._record = await self._store.commit(record, expect=0 if self._record is None else self._record.rev)
        except (Conflict, Ended, NotFound, SessionExpired):
            self._record = None
        self._failures.clear()  # the store answers
        await self._store.reap(kind=PROCESSES)

    async def keep_writing(self, changed: asyncio.Event) -> None:
        """Write the record from time to time, and soon after a change."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), WRITE_SECONDS)
            changed.clear()
            try:
                await self.write()
            except HoldfastError as error:
                self._failures.add(error)
            except Exception:
                log.exception("the record of this process could not be written")
            await asyncio.sleep(SPACING)

    async def end(self) -> None:
        """This process ends."""
        try:
            await self._store.end(PROCESSES, self._owner)
        except HoldfastError as error:
            log.warning("the record of this process is left to expire: %s", error.what)
