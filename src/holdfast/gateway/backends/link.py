"""One link of the gateway to a backend, and what comes and goes with it: a program's place, and the claim on it.

It owns the order of these on the way up and down. It refuses to know whose it is: a session, a principal, or everybody.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.eras import METHOD_NOT_FOUND, Era
from holdfast.core.events import BackendClosed, BackendStarted
from holdfast.core.models import Principal
from holdfast.errors import ErrorAnswer, HoldfastError, QuestionRefused
from holdfast.gateway.backends.ownership import Ownership
from holdfast.gateway.sessions.memories import BackendMemory, SessionMemory
from holdfast.links.calls.inbound import Params
from holdfast.links.link import Link

LEVEL_SECONDS = 10.0  # for a server to take a log level

if TYPE_CHECKING:
    from holdfast.gateway.backends.backend import Backend


class BackendLink:
    """One link to a backend: a session's, a principal's, everybody's, or one call's."""

    __slots__ = (
        "_child",
        "backend",
        "begun",
        "caller",
        "is_spare",
        "link",
        "memory",
        "owns",
        "passed",
        "refused",
        "session",
        "starting",
        "used",
    )

    def __init__(
        self,
        backend: "Backend",
        link: Link,
        session: str | None,
        child: bool,
        memory: BackendMemory | None = None,
        owns: Ownership | None = None,
        caller: Principal | None = None,
    ) -> None:
        self.backend = backend
        self._child = child
        self.link = link
        self.session = session
        self.memory = memory
        self.caller = caller
        self.is_spare = False
        self.starting = 0
        self.owns: Ownership | None = None
        self.passed: Mapping[str, str] = {}
        """Headers of the caller's latest request, for servers that want them on every request."""
        self.refused: str | None = None
        """What the server asked of a client that can't be asked, until the call that failed of it is told."""
        self.begun = self.used = time.monotonic()
        if owns is not None:
            self._own(owns)

    async def refuse(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """The answer to a question for a client that can't be asked: an error at once, or the server would wait."""
        self.refused = method
        raise ErrorAnswer(
            f"{method}: nobody can be asked", message="this client can't be asked during a call", code=METHOD_NOT_FOUND
        )

    def mark_used(self, passed: Mapping[str, str] | None = None) -> None:
        """A call goes over it now; `passed`: headers of that call."""
        self.used = time.monotonic()
        if passed is not None:
            self.passed = passed

    async def set_log_level(self, level: str | None) -> None:
        """The level for this server: now, if the server is there and takes one, else with its next handshake."""
        self.link.log_level = level
        handshake = self.link.handshake
        if handshake is not None and handshake.era is Era.Y2025 and "logging" in handshake.capabilities:
            await self.link.request("logging/setLevel", {"level": level}, timeout=LEVEL_SECONDS)

    def took_refusal(self) -> QuestionRefused | None:
        """Why the call that has just failed did so, if a question was refused meanwhile."""
        method, self.refused = self.refused, None
        if method is None:
            return None
        return QuestionRefused(
            f"{method} from {self.backend.name!r} was refused: 2026 clients can't be asked by a 2025 server",
            server=self.backend.name,
            phase="call",
        )

    def _own(self, owns: Ownership) -> None:
        self.owns = owns
        owns.still_ours = None if self.memory is None else self.memory.unchanged
        owns.lost = lambda: self.link.close(end=False)

    def given_to(self, session: str, principal: Principal, memory: SessionMemory) -> None:
        """A spare has found its session."""
        self.session, self.memory, self.caller, self.is_spare = session, memory, principal, False
        self.link.keep_in(memory, principal)
        if self._child:
            self._own(self.backend.programs.claim(f"{session}/{self.backend.name}", self.backend.name))

    @property
    def is_up(self) -> bool:
        return self.link.handshake is not None and (self.owns is None or self.owns.held)

    @property
    def server(self) -> str:
        return self.backend.name

    @property
    def is_needed(self) -> bool:
        return self.caller is not None or self.owns is not None

    @property
    def can_go(self) -> bool:
        """A program that is idle, and whose record says that it was there."""
        quiet = not self.starting and not self.link.statistics().in_flight
        return quiet and self.caller is not None and self.memory is not None

    async def reclaim(self) -> None:
        """Another program needs the place. The link stays: its next use starts the program anew, and tells it."""
        await self.link.close(end=False)
        if self.owns is not None:
            await self.owns.release()
        self._closed("another program needed its place")

    async def start(self) -> None:
        """Come up now; what is found out about the backend is noted."""
        if self.is_up:
            return
        self.starting += 1
        try:
            await self._start()
        except BaseException:
            if self.link.handshake is None and self.starting == 1:
                self.backend.children.give(self)
                if self.owns is not None:
                    await self.owns.release()
            raise
        finally:
            self.starting -= 1

    async def _start(self) -> None:
        if self.owns is not None:
            await self.owns.take()
        if self._child:
            await self.backend.children.take(self)
        if self.link.handshake is not None:
            return  # it was a spare
        began = time.monotonic()
        try:
            handshake = await self.link.open()
        except HoldfastError as error:
            self.backend.noted(error, self.session)
            raise
        self.backend.noted(None, self.session)
        await self.backend.met(self.link, handshake)
        self.backend.tell(
            BackendStarted(
                time.time(),
                self.backend.name,
                self.session,
                time.monotonic() - began,
                handshake.era.value,
                self.link.statistics().adoptions > 0,
            )
        )

    async def close(self, reason: str, *, end: bool, leaves_loss: bool = False) -> None:
        """`end=False` leaves the session at the server for another process. `leaves_loss`: its clients go on without
        it, so that what it kept must be reported as lost."""
        self.link.retire()  # a late use would open it again, for no owner
        try:
            if self.memory is not None:
                self.memory.leaves_loss = leaves_loss and (self.link.handshake is None or self.link.holds_state)
            await self.link.close(end=end)
        finally:
            if self.owns is not None:
                await self.owns.release()
            self.backend.children.give(self)
            self._closed(reason)

    def _closed(self, reason: str) -> None:
        lifetime = time.monotonic() - self.begun
        self.backend.tell(BackendClosed(time.time(), self.backend.name, self.session, reason, lifetime))
