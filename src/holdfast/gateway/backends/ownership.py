"""Which gateway process runs a program: one at a time, store-wide, by a claim that is renewed while the program lives.

A program's state is in its process, so a second one beside it would be a second truth. It owns claims, their renewal
and what callers of another process are told. It ends no program because the store is away: who had the claim goes on.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.models import Claim
from holdfast.core.values import JSON, members
from holdfast.errors import Busy, Conflict, HoldfastError, RunsElsewhere
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

KIND = "program"  # of the claims
PROCESSES = "gateway"  # the kind of the record by which a process shows that it lives
CLAIM_SECONDS = 30.0  # after which a dead process's claim ends: a store's failover fits in, an operator's patience too
RENEW_SECONDS = CLAIM_SECONDS / 3


class Programs:
    """The programs of one gateway process."""

    def __init__(self, store: Store, clock: Clock = SYSTEM) -> None:
        self.store = store
        self.clock = clock
        self.owner = f"gateway-{secrets.token_hex(8)}"

    def claim(self, id: str, backend: str) -> "Ownership":
        return Ownership(self, id, backend)


class Ownership:
    """The right of this process to run the one program that `id` names."""

    def __init__(self, programs: Programs, id: str, backend: str) -> None:
        self._store = programs.store
        self._clock = programs.clock
        self._owner = programs.owner
        self._id = id
        self._backend = backend
        self._claim: Claim | None = None
        self._sure_until = 0.0
        """By our clock: until then nobody else can have the claim."""
        self._asking = asyncio.Lock()
        self._away = False
        self._renewing: asyncio.Task[None] | None = None
        self.still_ours: Callable[[], Awaitable[bool]] | None = None
        """Asked when the claim had run out and could be had again: has nobody run the program in between?"""
        self.lost: Callable[[], Awaitable[None]] | None = None
        """Called when another process has the claim: our program must end."""

    @property
    def held(self) -> bool:
        """False also where this process stood still for longer than a claim lasts: another may have it by now."""
        return self._claim is not None and self._clock.monotonic() < self._sure_until

    async def take(self) -> None:
        """`RunsElsewhere` if another process has it."""
        if self._claim is not None and not self.held:
            await self._renew_now(for_use=True)
        if self._claim is None:
            began = self._clock.monotonic()
            self._claim = await self._take()
            self._sure_until = began + CLAIM_SECONDS
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name=f"own {self._backend}")

    async def _take(self) -> Claim:
        try:
            return await self._store.claim(KIND, self._id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy as busy:
            where = await self._free()
            if where is not None:
                raise self._elsewhere(where, busy.retry_after) from None
        try:
            return await self._store.claim(KIND, self._id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy as busy:
            raise self._elsewhere("one that began it this moment", busy.retry_after) from None

    async def _free(self) -> str | None:
        """Give up the claim for a process that has ended; else where the process is."""
        holder = await self._store.holder(KIND, self._id)
        if holder is None:
            return None
        record = await self._store.get(PROCESSES, holder.owner, dead=True)
        data = members(record.data) if record is not None else {}
        said = record is not None and record.ended is not None and not record.expired
        if said or has_ended(data):
            await self._store.release(holder)
            return None
        address = data.get("address")
        return str(address or holder.owner)

    def _elsewhere(self, where: str, wait: float | None) -> RunsElsewhere:
        error = RunsElsewhere(
            f"the program of backend {self._backend!r} runs in another gateway process, {where}",
            server=self._backend,
            phase="start",
            remedy="send these calls there, or end that process: its state would be a second truth here",
        )
        error.retry_after = None if wait is None else round(wait, 1)
        return error

    async def _renew(self) -> None:
        while self._claim is not None:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew_now()

    async def _renew_now(self, *, for_use: bool = False) -> None:
        """`for_use`: only if the claim may have run out; then a store that is away raises, for nobody can say."""
        async with self._asking:
            claim, began = self._claim, self._clock.monotonic()
            was_sure = self.held
            if claim is None or (for_use and was_sure):
                return
            try:
                try:
                    renewed = await self._store.renew(claim, ttl=CLAIM_SECONDS)
                    if self._claim is claim:  # else it was released meanwhile
                        self._claim = renewed
                except Conflict:
                    if not await self._take_again():
                        return
            except HoldfastError as error:
                if not self._away:
                    log.warning("backend %r: the claim on its program is not renewed: %s", self._backend, error)
                self._away = True
                if was_sure:  # who can't reach the store now can't take it either
                    self._sure_until = self._clock.monotonic() + CLAIM_SECONDS
                elif for_use:
                    raise
                return
            self._away, self._sure_until = False, began + CLAIM_SECONDS

    async def _take_again(self) -> bool:
        """It ran out while the store, or this process, was away."""
        try:
            self._claim = await self._store.claim(KIND, self._id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy:
            self._claim = None
        if self._claim is not None and (self.still_ours is None or await self.still_ours()):
            return True
        log.warning("backend %r: another gateway process has taken over its program; ours ends", self._backend)
        if self._renewing is asyncio.current_task():
            self._renewing = None
        await self.release()
        if self.lost is not None:
            await self.lost()
        return False

    async def release(self) -> None:
        """Let another process run it. A store that is away lets the claim run out."""
        claim, self._claim = self._claim, None
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait((renewing,))
        if claim is not None:
            try:
                await self._store.release(claim)
            except HoldfastError as error:
                log.warning("backend %r: the claim on its program is left to run out: %s", self._backend, error)


def whereabouts() -> dict[str, JSON]:
    """What a sign of life says of where its process is."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "place": place()}


def has_ended(sign: Mapping[str, Any]) -> bool:
    """Has the process of this sign of life ended, for certain? Never of one in another container or on another machine:
    it can't be seen from here, whatever its number, its host name and its address are."""
    here = place()
    return here is not None and sign.get("place") == here and not _is_running(sign.get("pid"))


def place() -> str | None:
    """Where a process number means the same process: this run of the kernel, this PID namespace. None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
