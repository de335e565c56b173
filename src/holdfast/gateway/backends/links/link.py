"""One link of the gateway to a backend, with what comes and goes with it: a program's place, and the claim on it.

It owns the order of these on the way up and down. Whose link it is does not matter here: a session's, a principal's or
all clients'.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake
from holdfast.core.models import Principal
from holdfast.errors import HoldfastError
from holdfast.events import BackendClosed, BackendStarted, Event
from holdfast.gateway.backends.call_logs import MESSAGE, CallLog, is_lower
from holdfast.gateway.backends.children import Children
from holdfast.gateway.backends.health import BackendHealth
from holdfast.gateway.backends.links.calls_under_way import CallsUnderWay
from holdfast.gateway.backends.links.memories import BackendMemory, SessionMemory
from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.backends.ownership import Ownership, Programs
from holdfast.gateway.config.file import ServerEntry
from holdfast.gateway.config.settings import Policy
from holdfast.links.calls.handlers import Params
from holdfast.links.link import Link

log = logging.getLogger("holdfast.gateway")

LEVEL_SECONDS = 10.0  # for a server to take a log level


class LinkOwner(Protocol):
    """The backend of a link, as its links see it."""

    @property
    def name(self) -> str: ...
    @property
    def entry(self) -> ServerEntry: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def catalogue(self) -> Catalogue | None: ...
    @property
    def is_child(self) -> bool: ...
    @property
    def children(self) -> Children: ...
    @property
    def programs(self) -> Programs: ...
    @property
    def health(self) -> BackendHealth: ...
    def emit(self, event: Event) -> None: ...
    def note_left_out(self, catalogue: Catalogue, known: Collection[str]) -> None:
        """Report what can't be offered of its lists, but for what was known."""
        ...

    async def link_came_up(self, link: Link, handshake: Handshake) -> None:
        """The first handshake of a link."""
        ...

    def link_failed(self, error: HoldfastError, session: str | None, caller: Principal | None) -> None:
        """A link did not come up."""
        ...

    def link_closed(self, link: Link) -> None:
        """A link is closed, and will not be opened again."""
        ...


class BackendLink:
    """One link to a backend: a session's, a principal's, all clients', or one call's."""

    __slots__ = (
        "_for_first_look",
        "_setting_level",
        "_starting",
        "backend",
        "begun",
        "caller",
        "calls",
        "is_spare",
        "link",
        "memory",
        "owns",
        "passed",
        "session",
        "used",
    )

    def __init__(
        self,
        backend: LinkOwner,
        link: Link,
        session: str | None,
        memory: BackendMemory | None = None,
        program: str | None = None,
        caller: Principal | None = None,
        passed: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.link = link
        self.session = session
        self.memory = memory
        self.caller = caller
        self.is_spare = False
        self._starting = 0
        self._for_first_look = False
        self._setting_level = asyncio.Lock()
        self.owns: Ownership | None = None
        self.passed: Mapping[str, str] = passed or {}
        """Headers of the caller's latest request, for servers that want them on every request."""
        self.calls = CallsUnderWay()
        self.begun = self.used = time.monotonic()
        if program is not None and backend.is_child:
            self._claim(program)

    def _claim(self, program: str) -> None:
        self.owns = self.backend.programs.claim(program, self.backend.name)
        self.owns.serve(self)

    def mark_used(self, passed: Mapping[str, str] | None = None) -> None:
        """A call goes over it now; `passed`: headers of that call."""
        self.used = time.monotonic()
        if passed is not None:
            self.passed = passed

    def pass_next(self, passed: Mapping[str, str] | None) -> None:
        """Headers of a request for which the link comes up, if it is not up: those of an earlier one may have been
        wrong."""
        if passed is not None and not self.is_up:
            self.passed = passed

    async def on_question(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """Answer a question that came on no call's own stream."""
        return await self.calls.on_question(method, params, id, self.server, has_one_caller=self.caller is not None)

    def take_log(self, method: str, params: Params) -> bool:
        """A log message that came on no call's own stream: it goes to the latest call of the link's one caller, or to
        the only call under way."""
        return method == MESSAGE and self.calls.take_log(params, has_one_caller=self.caller is not None)

    async def want_logs(self, wanted: CallLog) -> None:
        """Let a 2025 server send what this call wants: the level of its session is the lowest that a call has named,
        and each call gets its own part."""
        level = wanted.level
        if level is None or self.link.era is not Era.Y2025:
            return
        if not self._setting_level.locked() and not self._is_too_quiet(level):
            return
        async with self._setting_level:  # else a lower level could reach the server before a higher one
            if self._is_too_quiet(level):
                before = self.link.log_level
                try:
                    await self.set_log_level(level)
                except HoldfastError as error:  # the call is made all the same
                    log.info("%s: a log level was not set: %s", self.server, error.what)
                except asyncio.CancelledError:
                    self.link.log_level = before  # the server may not have it
                    raise

    def _is_too_quiet(self, level: str) -> bool:
        return self.link.log_level is None or is_lower(level, self.link.log_level)

    async def set_log_level(self, level: str | None) -> None:
        """The level for this server: now, if the server is there and takes one, else with its next handshake."""
        self.link.log_level = level
        handshake = self.link.handshake
        if handshake is not None and handshake.era is Era.Y2025 and "logging" in handshake.capabilities:
            await self.link.request("logging/setLevel", {"level": level}, timeout=LEVEL_SECONDS)

    # A spare

    def keep_as_spare(self) -> None:
        """It is up, and belongs to no session yet."""
        self.is_spare = True

    def give_to(self, session: str, principal: Principal, memory: SessionMemory) -> None:
        """A spare becomes a session's link."""
        self.session, self.memory, self.caller, self.is_spare = session, memory, principal, False
        self.begun = time.monotonic()
        self.link.saved.keep_in(memory, principal, self.link.lifecycle.generation)
        if self.backend.is_child:
            self._claim(f"{session}/{self.backend.name}")

    # The program

    @property
    def is_up(self) -> bool:
        return self.link.handshake is not None and (self.owns is None or self.owns.held)

    @property
    def server(self) -> str:
        return self.backend.name

    @property
    def is_needed(self) -> bool:
        return self.caller is not None or self.owns is not None or self._for_first_look

    @property
    def in_call(self) -> bool:
        return bool(self._starting or self.link.statistics().in_flight)

    @property
    def can_go(self) -> bool:
        """A program that is idle, and whose record says that it was there."""
        return not self.in_call and self.caller is not None and self.memory is not None

    async def reclaim(self) -> None:
        """Another program needs the place. The link stays: its next use starts the program and reports the loss."""
        await self.link.close(end=False)
        if self.owns is not None:
            await self.owns.release()
        self._closed("another program needed its place")

    async def is_unchanged(self) -> bool:
        return self.memory is None or await self.memory.unchanged()

    async def end_program(self) -> None:
        await self.link.close(end=False)

    # Up and down

    async def start(self, *, for_first_look: bool = False) -> None:
        """Come up now; what this shows of the backend is noted. `for_first_look`: nothing is known of the backend, so
        that it can't be called before: its program needs a place as one for a call does."""
        if self.is_up:
            return
        self._for_first_look = for_first_look
        self._starting += 1
        try:
            await self._start()
        except BaseException:
            if self.link.handshake is None and self._starting == 1:
                self.backend.children.give(self)
                if self.owns is not None:
                    await self.owns.release()
            raise
        finally:
            self._starting -= 1

    async def _start(self) -> None:
        backend = self.backend
        if self.owns is not None:
            await self.owns.take()
        if backend.is_child:
            await backend.children.take(self)
        if self.link.handshake is not None:
            return  # it was a spare
        began = time.monotonic()
        try:
            handshake = await self.link.open()
        except HoldfastError as error:
            backend.link_failed(error, self.session, self.caller)
            raise
        backend.health.note(None, self.session, caller=self.caller)
        await backend.link_came_up(self.link, handshake)
        backend.emit(
            BackendStarted(
                time.time(),
                backend.name,
                self.session,
                time.monotonic() - began,
                handshake.era.value,
                self.link.statistics().adoptions > 0,
            )
        )

    async def close(self, reason: str, *, end: bool, leaves_loss: bool = False) -> None:
        """`end=False` leaves the session at the server for another process. `leaves_loss`: its clients go on without
        it, so that what it kept must be reported as lost."""
        self.link.lifecycle.retire()  # a late use would open it again, for no owner
        try:
            if self.memory is not None:
                self.memory.leave_loss(leaves_loss and (self.link.handshake is None or self.link.losses.holds_state))
            await self.link.close(end=end)
        finally:
            if self.owns is not None:
                await self.owns.release()
            self.backend.children.give(self)
            self.backend.link_closed(self.link)
            self._closed(reason)

    def _closed(self, reason: str) -> None:
        lifetime = time.monotonic() - self.begun
        self.backend.emit(BackendClosed(time.time(), self.backend.name, self.session, reason, lifetime))


async def close_all(whose: str, closing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Close links at once; one that fails is logged and holds up no other."""
    for failed in await asyncio.gather(*closing, return_exceptions=True):
        if isinstance(failed, HoldfastError):
            log.warning("%s: a link was not closed: %s", whose, failed)
        elif isinstance(failed, BaseException):
            log.error("%s: a link was not closed", whose, exc_info=failed)
