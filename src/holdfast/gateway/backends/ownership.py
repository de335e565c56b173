"""Which gateway process runs a program: one at a time on a store, by a claim that is renewed while the program lives.

A program's state is in its process, so two of them would hold two states. This module owns the claims, their renewal,
and the error that callers of another process get. An unavailable store ends no program: the process with the claim goes
on.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.models import Claim
from holdfast.core.values import JSON, members
from holdfast.errors import Busy, Conflict, HoldfastError, RunsElsewhere
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

KIND = "program"  # of the claims
PROCESSES = "gateway"  # the kind of the record by which a process shows that it is alive
CLAIM_SECONDS = 30.0  # after which a dead process's claim ends: a store's failover fits in, an operator's patience too
RENEW_SECONDS = CLAIM_SECONDS / 3


class ProgramUser(Protocol):
    """The link that runs a program under a claim."""

    async def is_unchanged(self) -> bool:
        """The claim had run out and could be had again: has no other process run the program in between?"""
        ...

    async def end_program(self) -> None:
        """Another process has the claim, so the program here must end."""
        ...


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
        """By our clock: until then no other process can have the claim."""
        self._asking = asyncio.Lock()
        self._away = False
        self._renewing: asyncio.Task[None] | None = None
        self._user: ProgramUser | None = None

    def serve(self, user: ProgramUser) -> None:
        """The link that runs the program under this claim."""
        self._user = user

    @property
    def held(self) -> bool:
        """False also where this process was suspended for longer than a claim lasts: another may have it by now."""
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
            raise self._elsewhere("one that has just started it", busy.retry_after) from None

    async def _free(self) -> str | None:
        """Release the claim of a process that has ended; else returns where the process is."""
        holder = await self._store.holder(KIND, self._id)
        if holder is None:
            return None
        record = await self._store.get(PROCESSES, holder.owner, dead=True)
        data = members(record.data) if record is not None else {}
        says_so = record is not None and record.ended is not None and not record.expired
        if says_so or has_ended(data):
            await self._store.release(holder)
            return None
        address = data.get("address")
        return str(address or holder.owner)

    def _elsewhere(self, where: str, wait: float | None) -> RunsElsewhere:
        error = RunsElsewhere(
            f"the program of backend {self._backend!r} runs in another gateway process, {where}",
            server=self._backend,
            phase="start",
            remedy="send these calls there, or end that process: a second program here would have another state",
        )
        error.retry_after = None if wait is None else round(wait, 1)
        return error

    async def _renew(self) -> None:
        while self._claim is not None:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew_now()

    async def _renew_now(self, *, for_use: bool = False) -> None:
        """`for_use`: only if the claim may have run out; an unavailable store raises then, as the claim is unsure."""
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
                if was_sure:  # no other process can take the claim without the store
                    self._sure_until = self._clock.monotonic() + CLAIM_SECONDS
                elif for_use:
                    raise
                return
            self._away, self._sure_until = False, began + CLAIM_SECONDS

    async def _take_again(self) -> bool:
        """The claim ran out while the store was unavailable, or while this process was suspended."""
        try:
            self._claim = await self._store.claim(KIND, self._id, owner=self._owner, ttl=CLAIM_SECONDS)
        except Busy:
            self._claim = None
        if self._claim is not None and (self._user is None or await self._user.is_unchanged()):
            return True
        log.warning("backend %r: another gateway process has taken over its program; ours ends", self._backend)
        if self._renewing is asyncio.current_task():
            self._renewing = None
        await self.release()
        if self._user is not None:
            await self._user.end_program()
        return False

    async def release(self) -> None:
        """Let another process run it. If the store is unavailable, the claim runs out by itself."""
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
    """Where this process is, for its own record."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "place": place()}


def has_ended(data: Mapping[str, Any]) -> bool:
    """Has the process of this record ended, for certain? False for one in another container or on another machine: it
    can't be seen from here, whatever its number, host name and address are."""
    here = place()
    return here is not None and data.get("place") == here and not _is_running(data.get("pid"))


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
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """It has ended, and its parent has not collected its exit status, which in containers often no process does."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False
