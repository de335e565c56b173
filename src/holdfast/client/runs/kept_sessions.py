"""What of a run lasts beyond its process: the sessions of its servers, in memories, and the run's record in a store."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from holdfast.client.declaration import MemoryFactory, ServerDeclaration
from holdfast.client.runs.durable import RecordedMemory, RunRecord, end_sessions
from holdfast.client.runs.link_factory import make_memory
from holdfast.core.clock import SYSTEM
from holdfast.core.models import Principal, RunId
from holdfast.errors import HoldfastError
from holdfast.events import Event, MemoryFailed
from holdfast.links.memory.guarded import guarded
from holdfast.links.memory.store import Memory
from holdfast.links.target import HttpTarget
from holdfast.stores.contract import Store

STORE_SECONDS = 15.0  # for the last writes to a durable run's store, as long as a memory may take for one operation

log = logging.getLogger("holdfast.client")


class KeptSessions:
    """The sessions of one run's servers, where they are kept. `own_store` is opened and closed with the run."""

    def __init__(
        self,
        id: RunId,
        principal: Principal,
        record: RunRecord | None,
        factory: MemoryFactory | None,
        own_store: Store | None,
        on_event: Callable[[ServerDeclaration, Event], None],
    ) -> None:
        self.factory = factory
        self._id = id
        self._principal = principal
        self._record = record
        self._own_store = own_store
        self._on_event = on_event

    @property
    def is_durable(self) -> bool:
        """Does anything of the run last?"""
        return self._record is not None or self.factory is not None

    @property
    def continued(self) -> bool:
        """Whether the run was begun before and had not ended or expired."""
        return self._record is not None and self._record.continued

    def memory(self, server: ServerDeclaration, *, shared: bool) -> Memory | None:
        """The memory for the session of a server. `shared`: of a link that several runs share."""
        record = self._record
        if server.memory is None and self.factory is None:
            # A program or an object ends with its process; its saved session records that there was one.
            return None if record is None else record.memory(server.name)
        # A link that several runs share belongs to none of them.
        id = None if shared else self._id
        sink = partial(self._on_event, server)
        given = make_memory(server, self.factory, id, self._principal, sink, recorded=record is not None)
        if record is None or isinstance(server.target, HttpTarget):
            return given
        if given is None:
            return record.memory(server.name)
        return RecordedMemory(guarded(given, self._principal), record, server.name)

    async def note_use(self, server: ServerDeclaration) -> None:
        """Record, before its first call, that the run uses a program or an object:
        not every one has a saved session, and the process that continues the run must know that there was one.
        """
        if self._record is None or isinstance(server.target, HttpTarget):
            return
        try:
            await self._record.use(server.name)
        except HoldfastError as error:
            log.warning("run %s: that it uses %r could not be written: %s", self._id, server.name, error)
            self._on_event(server, MemoryFailed(SYSTEM.now(), server.name, str(error)))

    async def open(self) -> None:
        """Begin or continue a durable run."""
        try:
            if self._own_store is not None:
                await self._own_store.__aenter__()
            if self._record is not None:
                await self._record.open()
        except BaseException:
            await self._close_store()
            raise

    async def flush(self) -> None:
        """Write what is not written yet. A store that fails does not prevent the release of links."""
        if self._record is None:
            return
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._record.flush()
                await self._record.touch()
        except Exception as error:
            log.warning("run %s could not be recorded: %s", self._id, _text_of(error))

    async def end(self, leased: Collection[str], others: Sequence[ServerDeclaration]) -> None:
        """End the run's record, with the sessions of servers that this process leased, and of others."""
        if self._record is None:
            return
        left = [server.plain for server in others if server.name not in leased]
        await end_sessions([server for server in left if isinstance(server.target, HttpTarget)], self._record)
        await self._record.end(leased)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._close_store()
        except Exception as error:
            log.warning("run %s: its store did not close: %s", self._id, _text_of(error))

    async def _close_store(self) -> None:
        store, self._own_store = self._own_store, None
        if store is not None:
            await store.__aexit__(None, None, None)


def _text_of(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"its store did not answer within {STORE_SECONDS:g} s"
    return repr(error)[:200]
