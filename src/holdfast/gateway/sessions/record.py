"""The record of one client's session: what lasts of it beyond this process.

It owns the form of the record and every write to it. Other processes and other links of the session write to it too, so
a change is applied again to what they have written.
"""

import asyncio
import copy
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.core.eras import Era
from holdfast.core.handshake import Ours
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, NotFound
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes
from holdfast.stores.contract import Store

KIND = "session"
TASKS = 200  # that `tasks/list` can show; older ones are found by their ids
TASKS_LENGTH = 32 * 1024  # characters of their ids: they are in the session's record
TRIES = 20  # to write a record that other links of the session write to


def new_id() -> FrontSessionId:
    """256 bits, in characters that any header takes."""
    return FrontSessionId(secrets.token_urlsafe(32))


def record_id(id: str) -> str:
    """The name of a session's record. Not the id: a reader of the store must not be able to use the session."""
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Client:
    """A client, as its handshake describes it."""

    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: str = "2025-11-25"

    @property
    def ours(self) -> Ours:
        """The same, as a link introduces it to a server."""
        return Ours(self.info, self.capabilities)

    def to_json(self) -> JSON:
        return cast("JSON", {"info": self.info, "capabilities": self.capabilities, "version": self.version})

    @classmethod
    def from_json(cls, value: JSON) -> "Client":
        known = members(value)
        version = known.get("version")
        return cls(
            members(known.get("info")),
            members(known.get("capabilities")),
            version if isinstance(version, str) else "2025-11-25",
        )


def era_of(record: Record) -> Era:
    """The era of the session's client."""
    return Era.Y2026 if members(record.data).get("era") == Era.Y2026.value else Era.Y2025


class SessionRecord:
    """The record of one session. Before it is committed for the first time, its data."""

    __slots__ = (
        "_changes", "_client", "_era", "_lifetimes", "_loaded", "_principal", "_record", "_writing",
        "data", "key", "owner", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        owner: str,
        lifetimes: Lifetimes,
        id: FrontSessionId,
        principal: Principal,
        client: Client,
        era: Era,
    ) -> None:
        self.store = store
        self.owner = owner
        self.key = record_id(id)
        self.data: dict[str, JSON] = {}
        self._principal = principal
        self._client = client
        self._era = era
        self._lifetimes = lifetimes
        self._record: Record | None = None
        self._loaded: set[str] = set()
        """Backends whose entry has been read for a handshake."""
        self._changes = 0
        self._writing: asyncio.Lock | None = None

    @property
    def backends(self) -> dict[str, Any]:
        """What is kept for each backend."""
        return cast("dict[str, Any]", self.data.setdefault("backends", {}))

    @property
    def log_level(self) -> str | None:
        level = self.data.get("log_level")
        return level if isinstance(level, str) else None

    @property
    def subscriptions(self) -> dict[str, Any]:
        """Resources that the client subscribed to, and the backends that have them."""
        return members(self.data.get("subscriptions"))

    @property
    def tasks(self) -> set[tuple[str, str]]:
        """The latest tasks that the client's requests made: server and id there."""
        return {(str(each[0]), str(each[1])) for each in self._tasks}

    @property
    def _tasks(self) -> list[list[str]]:
        known = self.data.get("tasks")
        return cast("list[list[str]]", known) if isinstance(known, list) else []

    async def add_task(self, server: str, id: str) -> None:
        """A request of the client has made a task."""

        def change(data: dict[str, JSON]) -> None:
            kept = [*self._tasks, [server, id]][-TASKS:]
            while len(kept) > 1 and sum(len(each[1]) for each in kept) > TASKS_LENGTH:
                del kept[0]
            data["tasks"] = cast("JSON", kept)

        await self.write(change)

    def _to_record(self) -> Record:
        self.data |= {"client": self._client.to_json(), "era": self._era.value}
        idle, max_age = self._lifetimes.spans
        return Record(KIND, self.key, self._principal, cast("JSON", self.data), idle=idle, max_age=max_age)

    def take(self, record: Record) -> None:
        """The record as the store has it."""
        self._record = record
        self.data = cast("dict[str, JSON]", record.data) if isinstance(record.data, dict) else {}

    async def read(self) -> None:
        record = await self.store.get(KIND, self.key)
        if record is None:
            raise NotFound(f"session {self.key[:8]} is over", kind=KIND, id=self.key)
        self.take(record)

    async def read_for(self, backend: str) -> None:
        """Read it again for a later handshake with a backend: another process may have begun a newer session there."""
        if backend in self._loaded and self._record is not None:
            await self.read()
        self._loaded.add(backend)

    async def commit_first(self) -> None:
        """Write the record for the first time; a backend may come up, and change it, meanwhile."""
        before = self._changes
        self._record = await self.store.commit(self._to_record(), expect=0)
        self._lifetimes.learn(self._record)
        if self._changes != before:
            await self.write(lambda _: None)

    async def write(self, change: Callable[[dict[str, JSON]], None]) -> None:
        """Change the record, and again if another process or link has written to it meanwhile."""
        self._changes += 1
        if self._record is None:
            change(self.data)
            return
        if self._writing is None:
            self._writing = asyncio.Lock()
        async with self._writing:
            for _ in range(TRIES):
                fresh = copy.deepcopy(self.data)
                change(fresh)
                before, self.data = self.data, fresh
                try:
                    self._record = await self.store.commit(self._to_record(), expect=self._record.rev)
                    return
                except Conflict:
                    self.data = before
                except BaseException:
                    self.data = before  # what is not in the store must not look as if it were
                    raise
                await self.read()
            raise Conflict(
                f"session {self.key[:8]} could not be written in {TRIES} tries: other writers came first each time",
                expect=0,
                actual=self._record.rev,
            )

    async def set_log_level(self, level: str) -> None:
        await self.write(lambda data: data.update(log_level=level))

    async def set_subscription(self, uri: str, backend: str | None) -> None:
        """The client subscribes to a resource of a backend; None: it unsubscribes."""

        def change(data: dict[str, JSON]) -> None:
            known = dict(members(data.get("subscriptions")))
            known.pop(uri, None)
            data["subscriptions"] = known if backend is None else {**known, uri: backend}

        await self.write(change)
