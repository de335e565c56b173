"""Sessions that no process holds live: ended from what the store has of them, here and at their servers.

One process ends one session, by a claim. Sessions of clients and those of principals at servers are ended alike.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.handshake import Saved
from holdfast.core.models import Record
from holdfast.core.values import members
from holdfast.errors import Busy, Conflict
from holdfast.events import GatewaySessionEnded, Sink
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.memories import principal_memory
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes
from holdfast.gateway.sessions.record import KIND
from holdfast.links.lifecycle.ending import end_saved
from holdfast.links.memory.store import KIND as LINKS
from holdfast.links.options import Options
from holdfast.observers import deliver, is_observed
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

TOPIC = "gateway"  # where processes announce the sessions that they have ended
CLAIM_SECONDS = 60.0  # to end one session


class StoredSessions:
    """The stored sessions of one gateway."""

    def __init__(
        self, store: Store, owner: str, backends: Mapping[str, Backend], lifetimes: Lifetimes, sink: Sink | None
    ) -> None:
        self._store = store
        self._owner = owner
        self._backends = backends
        self._lifetimes = lifetimes
        self._sink = sink

    async def end(self, record: Record, reason: str) -> bool:
        """End a client's session. False if another process does, or if it has been used again."""
        try:
            claim = await self._store.claim(KIND, record.id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy:
            return False
        try:
            fresh = await self._store.get(KIND, record.id)
            if fresh is None or (reason == "expired" and not self._lifetimes.is_record_over(fresh)):
                return False
            ended = await self._store.end(KIND, record.id, created=record.created, fence=claim.token)
            await self.end_at_servers(record.id, members(members(fresh.data).get("backends")))
            await self._store.publish(TOPIC, {"ended": record.id})
        except Conflict:
            return False
        finally:
            await self._store.release(claim)
        age = self._lifetimes.ages(record)[1]
        if is_observed(self._sink):
            deliver(GatewaySessionEnded(time.time(), record.id, record.principal, reason, age), self._sink)
        return ended

    async def end_of_principal(self, record: Record, backend: Backend, settings: Settings) -> None:
        """End a principal's session at a backend, and keep that its loss has to be reported."""
        try:
            claim = await self._store.claim(LINKS, record.id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy:
            return
        try:
            fresh = await self._store.get(LINKS, record.id)
            if fresh is None or fresh.data is None or self._lifetimes.ages(fresh)[0] <= settings.idle:
                return
            entry = {"saved": fresh.data, "at": members(fresh.data).get("at")}
            await self.end_at_servers(record.id, {backend.name: entry})
            memory = principal_memory(self._store, backend.name, backend.at, record.principal, settings.idle)
            stored = await memory.load()  # another round of this process may have kept the loss meanwhile
            memory.leave_loss(stored.lost or stored.saved is not None)
            await memory.forget()
        finally:
            await self._store.release(claim)

    async def end_at_servers(self, key: str, entries: Mapping[str, Any]) -> None:
        """End what is saved for each backend; what can't be ended is left to expire at its server."""
        results = await asyncio.gather(
            *(self._end_at_server(name, members(entry)) for name, entry in entries.items()), return_exceptions=True
        )
        for name, failed in zip(entries, results, strict=True):
            if isinstance(failed, BaseException):
                log.warning(
                    "session %s at %s is left to expire there: %s", key[:8], name, failed, extra={"session": key}
                )

    async def _end_at_server(self, name: str, entry: Mapping[str, Any]) -> None:
        backend, raw = self._backends.get(name), entry.get("saved")
        if backend is None or raw is None or entry.get("at") not in (None, backend.at):
            return  # there is no session, or its server is no longer configured
        server = backend.entry.server
        await end_saved(server.target, Saved.from_json(raw), Options(limits=server.limits), name)
