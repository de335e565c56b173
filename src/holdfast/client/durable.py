"""A durable run's record: who may continue it, which servers it used, until when. One row in a store.

It owns begin, continue, use and end of that row, and the sessions kept under it. It refuses a run that was ended or has
expired, and another principal's as if there were none.
"""

from collections.abc import Iterable

from holdfast.core.models import Principal, Record, RunId
from holdfast.core.values import JSON
from holdfast.errors import Conflict, Ended, NotFound, SessionExpired, UsageError
from holdfast.links.memory import KIND as LINKS
from holdfast.links.memory import StoreMemory
from holdfast.stores.base import Store

KIND = "run"  # the kind of a durable run's record
IDLE = 7 * 86_400.0  # seconds after its last use that a run may be continued: a conversation rests over a holiday
TRIES = 20  # to add to a list that other processes add to


class RunRecord:
    """The row of one run."""

    def __init__(
        self, store: Store, id: RunId, principal: Principal, idle: float | None = None, max_age: float | None = None
    ) -> None:
        self.store = store
        self.id = id
        self.principal = principal
        self.idle = IDLE if idle is None else idle
        self.max_age = max_age
        self.servers: set[str] = set()
        """Names of the servers that the run has used, as far as this process knows."""

    async def open(self) -> None:
        """Begin the run, or continue it."""
        record = await self.store.get(KIND, self.id, dead=True)
        if record is None:
            fresh = Record(KIND, self.id, self.principal, {"servers": []}, idle=self.idle, max_age=self.max_age)
            try:
                record = await self.store.commit(fresh, expect=0)
            except Conflict:  # another process began it this moment
                record = await self.store.get(KIND, self.id, dead=True)
        remedy = "begin a new one under another id"
        if record is None or (record.ended is not None and not record.expired):
            raise Ended(f"run {self.id} was ended", kind=KIND, id=self.id, remedy=remedy)
        if record.principal != self.principal:
            raise UsageError(f"there is no run {self.id} of this principal", id=self.id, kind=KIND)
        if record.expired:
            raise SessionExpired(f"run {self.id} was not continued in time", kind=KIND, id=self.id, remedy=remedy)
        self.idle = record.idle if record.idle is not None else self.idle
        self.servers = _names(record)
        await self.touch()

    async def touch(self) -> None:
        """It is in use; whoever ended it meanwhile is told to the next call that writes."""
        try:
            await self.store.touch(KIND, self.id)
        except (Ended, NotFound, SessionExpired):
            return

    async def used(self, names: set[str]) -> None:
        """Write down which servers the run has used; two processes on one run add to each other's lists."""
        for _ in range(TRIES):
            record = await self.store.get(KIND, self.id)
            if record is None:
                return
            known = _names(record)
            if names <= known:
                return
            data = dict(record.data) if isinstance(record.data, dict) else {}
            servers: list[JSON] = [*sorted(known | names)]
            try:
                await self.store.commit(record.with_data({**data, "servers": servers}), expect=record.rev)
                return
            except Conflict:
                continue

    def memory(self, server: str) -> "RunMemory":
        """Where the session of one server is kept."""
        return RunMemory(self, server)

    async def end(self, names: Iterable[str] = ()) -> bool:
        """No call follows, from anywhere. True if it was alive."""
        for name in self.servers | set(names):
            await self.store.end(LINKS, f"{self.id}/{name}")
        return await self.store.end(KIND, self.id)


class RunMemory(StoreMemory):
    """The session of one server in a durable run: it lives as long as the run, and its use keeps the run alive."""

    def __init__(self, run: RunRecord, server: str) -> None:
        super().__init__(run.store, f"{run.id}/{server}", principal=run.principal, idle=run.idle)
        self._run = run

    async def touch(self) -> None:
        await super().touch()
        await self._run.touch()


def _names(record: Record) -> set[str]:
    data = record.data if isinstance(record.data, dict) else {}
    servers = data.get("servers")
    return {name for name in servers if isinstance(name, str)} if isinstance(servers, list) else set()
