"""Sessions that a configured header names: the same value, from the same caller, is the same session.

It owns the way from a value to a session, also after that session has ended and another one begins for the same value.
The store is read to find or begin a session, not for the calls of a live one.
The value itself is not kept: a digest names it, and the session's id stays the gateway's own.
"""

import asyncio
import hashlib
from dataclasses import dataclass

from holdfast.core.eras import Era
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.core.values import members
from holdfast.errors import Busy, HoldfastError
from holdfast.gateway.backends.links.memories import GRACE
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.registry import Sessions
from holdfast.gateway.sessions.session import GatewaySession

KIND = "key"  # the kind of the record that counts the lives of a key's session
CLAIM = 60.0  # seconds to begin a session
WAIT = 5.0  # seconds beyond the start deadline for another process to begin it
LOOK_AGAIN = 0.02  # seconds
KNOWN = 100  # keys beyond twice the live sessions: then those of sessions that are no longer live are forgotten


@dataclass(slots=True)
class _Finding:
    """The search for a key's session, or its beginning, for all requests that wait for it."""

    task: "asyncio.Task[GatewaySession]"
    waiting: int = 0


class Keys:
    """The header keys of one gateway."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._owner = f"{sessions.owner}-keys"
        self._known: dict[str, FrontSessionId] = {}
        """The live sessions of keys, by digest."""
        self._finding: dict[str, _Finding] = {}

    async def session(self, principal: Principal, value: str, client: Client) -> GatewaySession:
        """The key's session, begun if there is none or if the last one has ended. One request begins it for all."""
        digest = hashlib.sha256(f"{principal}\0{value}".encode()).hexdigest()
        known = self._known.get(digest)
        if known is not None and known in self._sessions.live:
            session = await self._sessions.find(known, principal)
            if session is not None:
                return session
        while (finding := self._finding.get(digest)) is not None and finding.task.cancelling():
            await asyncio.wait((finding.task,))  # it was cancelled, because no request waited for it any more
        if finding is None:
            work = self._find_or_begin(principal, digest, client)
            finding = self._finding[digest] = _Finding(asyncio.get_running_loop().create_task(work, name="find key"))
            finding.task.add_done_callback(lambda task: self._found(digest, task))
        finding.waiting += 1
        try:
            return await asyncio.shield(finding.task)
        except HoldfastError as error:
            raise error.copied() from error.__cause__
        finally:
            finding.waiting -= 1
            if not finding.waiting:
                finding.task.cancel()

    def _found(self, digest: str, task: "asyncio.Task[GatewaySession]") -> None:
        del self._finding[digest]
        if task.cancelled() or task.exception() is not None:
            self._known.pop(digest, None)
            return
        live = self._sessions.live
        if len(self._known) > 2 * len(live) + KNOWN:
            self._known = {each: id for each, id in self._known.items() if id in live}
        self._known[digest] = task.result().id

    async def _find_or_begin(self, principal: Principal, digest: str, client: Client) -> GatewaySession:
        until = asyncio.get_running_loop().time() + self._sessions.settings.start + WAIT
        while True:
            life, rev = await self._life(digest)
            session = await self._sessions.find(_id(digest, life), principal) if life else None
            if session is not None:
                return session
            try:
                claim = await self._sessions.store.claim(KIND, digest, owner=self._owner, ttl=CLAIM)
            except Busy:  # another process is beginning it
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(LOOK_AGAIN)
                continue
            try:
                if await self._life(digest) != (life, rev):
                    continue  # another process was faster
                return await self._begin(principal, client, digest, life, rev)
            finally:
                await self._sessions.store.release(claim)

    async def _life(self, digest: str) -> tuple[int, int]:
        record = await self._sessions.store.get(KIND, digest)
        life = members(record.data).get("life") if record is not None else None
        return (life if isinstance(life, int) else 0), (record.rev if record is not None else 0)

    async def _begin(self, principal: Principal, client: Client, digest: str, life: int, rev: int) -> GatewaySession:
        """Begin the session, then write the record that names it: a request that sees the record finds the session."""
        session = await self._sessions.begin(principal, client, Era.Y2026, _id(digest, life + 1))
        idle, max_age = self._sessions.settings.idle, self._sessions.settings.max_age
        record = Record(KIND, digest, principal, {"life": life + 1}, idle=max(idle, max_age) + GRACE)
        await self._sessions.store.commit(record, expect=rev)
        return session


def _id(digest: str, life: int) -> FrontSessionId:
    return FrontSessionId(f"key-{digest}-{life}")
