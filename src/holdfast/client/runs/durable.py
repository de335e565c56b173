"""The record of a durable run in a store: who may continue it, until when, and which servers it used.

A run that was ended can't be continued; one of another principal is treated as unknown. The sessions of its servers are
stored under its id.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from holdfast.client.declaration import ServerDeclaration
from holdfast.core.handshake import Saved
from holdfast.core.models import Principal, Record, RunId
from holdfast.core.values import JSON
from holdfast.errors import Conflict, Ended, HoldfastError, NotFound, SessionExpired, StoreDown, UsageError
from holdfast.links.lifecycle.ending import end_saved
from holdfast.links.memory.store import KIND as LINKS
from holdfast.links.memory.store import Memory, MemoryEntry, StoreMemory
from holdfast.links.options import Options
from holdfast.stores.contract import Store

KIND = "run"  # the kind of a durable run's record
IDLE = 7 * 86_400.0  # seconds unused until a run can't be continued: a conversation may pause over a holiday
TRIES = 20  # to add to a list that other processes change as well

log = logging.getLogger("holdfast.client")


class RunRecord:
    """The record of one run."""

    def __init__(
        self, store: Store, id: RunId, principal: Principal, idle: float | None = None, max_age: float | None = None
    ) -> None:
        self.store = store
        self.id = id
        self.principal = principal
        self.idle = IDLE if idle is None else idle
        self.max_age = max_age
        self.servers: frozenset[str] = frozenset()
        """The names of the servers that the run had used before it was opened here."""
        self.continued = False
        self.life = ""
        """Distinguishes a run from an expired one of the same id, which had other sessions."""
        self._written: set[str] = set()
        self._unwritten: set[str] = set()

    async def open(self) -> None:
        """Begin the run, or continue it. An expired run begins again with new sessions."""
        record = await self.store.get(KIND, self.id, dead=True)
        if record is not None and record.expired:
            log.warning("run %s was not continued in time; it begins again, with new sessions", self.id)
            record = None
        self.continued = record is not None
        if record is None:
            data: JSON = {"servers": [], "life": secrets.token_hex(4)}
            fresh = Record(KIND, self.id, self.principal, data, idle=self.idle, max_age=self.max_age)
            try:
                record = await self.store.commit(fresh, expect=0)
            except Conflict:  # another process has just begun it
                record = await self.store.get(KIND, self.id, dead=True)
        if record is not None and record.principal != self.principal:
            raise UsageError(f"this principal has no run {self.id}", id=self.id, kind=KIND)
        if record is None or record.ended is not None:
            remedy = "begin a new one under another id"
            raise Ended(f"run {self.id} was ended", kind=KIND, id=self.id, remedy=remedy)
        self.idle = record.idle if record.idle is not None else self.idle
        self.know(record)
        await self.touch()

    def know(self, record: Record) -> None:
        """Read the record."""
        self.servers = frozenset(_names(record))
        self.life = life_of(record)

    async def touch(self) -> None:
        """Restart its idle time. If it was ended meanwhile, the next write raises that."""
        try:
            await self.store.touch(KIND, self.id)
        except (Ended, NotFound, SessionExpired):
            return

    async def use(self, name: str) -> None:
        """Record that the run uses a server. Two processes with the same run add to the same list."""
        if name in self._written:
            return
        self._unwritten.add(name)
        for _ in range(TRIES):
            record = await self.store.get(KIND, self.id)
            if record is None or life_of(record) != self.life:
                return  # ended or expired meanwhile: it will not be continued
            known = _names(record)
            if name not in known:
                data = dict(record.data) if isinstance(record.data, dict) else {}
                servers: list[JSON] = [*sorted({*known, name})]
                try:
                    await self.store.commit(record.with_data({**data, "servers": servers}), expect=record.rev)
                except Conflict:
                    continue
                except (Ended, NotFound, SessionExpired):
                    return
            else:
                self.servers |= {name}  # another process has used it
            self._written.add(name)
            self._unwritten.discard(name)
            return
        raise Conflict(f"run {self.id}: {TRIES} writes were overtaken by others", kind=KIND, id=self.id)

    async def flush(self) -> None:
        """Retry writes that failed."""
        for name in tuple(self._unwritten):
            await self.use(name)

    def link_id(self, server: str) -> str:
        """The id of the record that stores the session of one server."""
        return f"{self.id}/{server}@{self.life}"

    def memory(self, server: str) -> "RunMemory":
        """The memory for the session of one server."""
        return RunMemory(self, server)

    async def end(self, names: Iterable[str] = ()) -> bool:
        """End the run for every process. Returns True if it was alive."""
        record = await self.store.get(KIND, self.id)
        known = _names(record) if record is not None else set[str]()
        for name in self.servers | known | self._written | self._unwritten | set(names):
            await self.store.end(LINKS, self.link_id(name))
        return await self.store.end(KIND, self.id)


class RunMemory(StoreMemory):
    """The memory of one server's session in a durable run:
    it lives as long as the run, and its use keeps the run alive.
    """

    def __init__(self, run: RunRecord, server: str) -> None:
        super().__init__(run.store, run.link_id(server), principal=run.principal, idle=run.idle)
        self._run = run
        self._server = server

    async def load(self) -> MemoryEntry:
        known = self._server in self._run.servers
        try:
            kept = await super().load()
        except StoreDown as error:
            # The stored session is unknown; a conflict when saving will show it.
            return MemoryEntry(None, 0, lost=known, unreadable=str(error))
        return kept._replace(lost=True) if kept.token == 0 and known else kept

    async def save(self, saved: Saved, token: object) -> object:
        token = await super().save(saved, token)
        # Only after that: a server that the run is recorded to use either has a saved session or has lost it.
        await self._run.use(self._server)
        return token

    async def touch(self) -> None:
        await super().touch()
        await self._run.touch()


class RecordedMemory:
    """The author's memory for a program or object in a durable run.
    The run's record adds what that memory may not store: that there was a session, which ended with its process.
    """

    def __init__(self, inner: Memory, run: RunRecord, server: str) -> None:
        self._inner = inner
        self._run = run
        self._server = server
        self.save = inner.save
        self.forget = inner.forget
        self.touch = inner.touch
        self.claim_stream = inner.claim_stream
        self.release_stream = inner.release_stream
        self.close = inner.close

    async def load(self) -> MemoryEntry:
        try:
            kept = await self._inner.load()
        except StoreDown as error:
            kept = MemoryEntry(None, None, unreadable=str(error))
        return kept._replace(lost=True) if kept.saved is None and self._server in self._run.servers else kept

    @property
    def touch_every(self) -> float | None:
        return self._inner.touch_every


def _names(record: Record) -> set[str]:
    data = record.data if isinstance(record.data, dict) else {}
    servers = data.get("servers")
    return {name for name in servers if isinstance(name, str)} if isinstance(servers, list) else set()


def server_of(link_id: str, run: str, life: str) -> str | None:
    """The server whose session is in a record, if it belongs to this run."""
    head, tail = f"{run}/", f"@{life}"
    return link_id[len(head) : -len(tail)] if link_id.startswith(head) and link_id.endswith(tail) else None


def life_of(record: Record) -> str:
    life = record.data.get("life") if isinstance(record.data, dict) else None
    return life if isinstance(life, str) else ""


async def end_sessions(servers: Sequence[ServerDeclaration], record: RunRecord) -> None:
    """End the sessions that an earlier process left at these servers: they are adopted by id, without a handshake."""

    async def end(server: ServerDeclaration) -> None:
        saved = (await record.memory(server.name).load()).saved
        if saved is not None:
            await end_saved(server.target, saved, Options(limits=server.limits), server.name)

    ended = await asyncio.gather(*(end(server) for server in servers), return_exceptions=True)
    for server, failure in zip(servers, ended, strict=True):
        if isinstance(failure, HoldfastError):
            log.warning("the session of run %s at %s is left to expire there: %s", record.id, server.name, failure)
        elif failure is not None:
            raise failure
