"""The steps of connecting: resolve, open, handshake. It owns the wire and the resolved credentials.

Each step can be repeated without the earlier ones. It creates generations; the link decides when.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.retry import Circumstances, RetryStep, decide, wait_for
from holdfast.core.verdicts import Broke, Seen, Verdict, is_transport_fault, judge
from holdfast.errors import ConnectFailed, HoldfastError, StartTimeout
from holdfast.events import CircuitChanged
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import error_for
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.credentials import Credentials
from holdfast.links.lifecycle.handshake import HandshakeFailed, Handshaker
from holdfast.links.lifecycle.peer import Peer
from holdfast.links.memory.session import SavedSession
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.settings import CurrentSettings
from holdfast.links.target import CommandTarget, HttpTarget, ObjectTarget, Target
from holdfast.links.wires.base import Generation, Resolved, Wire
from holdfast.links.wires.duplex import DuplexWire


class StartFailed(Exception):
    """A program ended before the handshake was done; another start may succeed."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(error.what)
        self.error = error


class AuthNeeded(Exception):
    """The handshake got a 401; credentials must be resolved again."""

    def __init__(self, seen: Seen, error: HoldfastError) -> None:
        super().__init__(error.what)
        self.seen = seen
        self.error = error


class Startup:
    """The connecting of one link."""

    def __init__(
        self,
        name: str,
        target: Target,
        options: Options,
        background: BackgroundTasks,
        peer: Peer,
        settings: CurrentSettings,
        saved: SavedSession,
        inbound: Inbound,
        reporter: LinkReporter,
        attributes: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.attributes = attributes
        """Of the spans of its requests."""
        self.target = target
        self.peer = peer
        self.credentials = Credentials(name, target, options.limits)
        self.resolved: Resolved | None = None
        self.wire: Wire | None = None
        self.begun: Generation | None = None
        """A session that the server has begun and no call uses yet."""
        self._options = options
        self._limits = options.limits
        self._background = background
        self._settings = settings
        self._saved = saved
        self._inbound = inbound
        self._reporter = reporter
        self.handshaking = False
        """Whether the server may be creating a session right now."""
        self.is_program = isinstance(target, CommandTarget)
        self._handshake_limit = "program_handshake" if self.is_program else "handshake"
        self._handshake_seconds = options.limits.program_handshake if self.is_program else options.limits.handshake
        self._opened_url: str | None = None
        self._ends_at: Era | None = None
        """The era at whose first message the program ended the last time."""

    async def resolve(self, refused: Seen | None) -> None:
        """Resolve URL and credentials."""
        self.resolved = await self.credentials.resolve(refused)

    async def open(self) -> bool:
        """Open a wire to the resolved target unless one is open. Returns True if one was opened."""
        assert self.resolved is not None
        if self.wire is not None and self._opened_url == self.resolved.url:
            return False
        old, self.wire = self.wire, None
        if old is not None:
            await old.close()
        wire = self._make()
        try:
            async with asyncio.timeout(self._limits.start):
                await wire.open(self.resolved)
        except TimeoutError as error:
            await wire.close()
            raise StartTimeout(
                f"{self.name!r} did not open within {self._limits.start:g} s", server=self.name, phase="open"
            ) from error
        except BaseException:
            await wire.close()
            raise
        self.wire, self._opened_url = wire, self.resolved.url
        return True

    def _make(self) -> Wire:
        match self.target:
            case HttpTarget():
                from holdfast.links.wires.http.wire import HttpWire  # loads the HTTP client

                return HttpWire(
                    self.name,
                    self.target,
                    self._limits,
                    self._background,
                    self._options.verdict_rules,
                    self._options.pool,
                    self._options.known_json,
                )
            case ObjectTarget():
                from holdfast.links.wires.local import LocalChannel  # brings the SDK's server side with it

                channel = LocalChannel(self.name, self.target, self._background, self._limits.close)
                return DuplexWire(channel, self._background)
            case CommandTarget():
                from holdfast.links.wires.stdio.channel import StdioChannel  # loads what starts programs

                program = StdioChannel(self.name, self.target, self._limits, self._reporter, self._options.known_json)
                return DuplexWire(program, self._background, Broke.CHILD_DIED)

    def drop(self) -> Wire | None:
        """Release the wire to the caller, to be closed."""
        wire, self.wire = self.wire, None
        if wire is not None and wire.owns_server:
            self.resolved = None  # a program's environment is resolved at every start
        return wire

    async def handshake(self, number: int, old: Generation | None, lost: bool) -> Generation:
        """Create a generation: from the saved session, if there is one that is not the lost one, else by a new
        handshake. `lost` says that `old` held state, or that an earlier loss is still to be reported; the next session
        records that."""
        assert self.wire is not None
        assert self.resolved is not None
        adopted, kept = await self._saved.take_up(number, old, self.wire, self.resolved)
        if adopted is not None:
            return adopted
        if old is not None and self._saved.was_shared(kept, old):
            old.unsafe_answered()
            lost = True
        self._saved.join(kept)
        self.handshaking = True
        try:
            generation = await self._handshake(number)
        finally:
            self.handshaking = False
        generation.loss_pending(lost or self._saved.lost_by_others(kept, old, self.wire.owns_server))
        if not await self._saved.save_new(generation, kept):
            # Another link saved its session first: use that one, and end ours, which no call uses yet.
            adopted, _ = await self._saved.take_up(number, old, self.wire, self.resolved)
            if adopted is not None:
                self.begun = None
                self._background.start(generation.wire.end(generation, self._limits.close), f"end {self.name}")
                return adopted
        if generation.unsaved:
            self._saved.saver.soon(generation)
        return generation

    def take_begun(self) -> Generation | None:
        """Hand over the session that no call uses yet; the caller must use or end it."""
        begun, self.begun = self.begun, None
        return begun

    def _begins(self, generation: Generation) -> None:
        self.begun = generation

    async def _handshake(self, number: int) -> Generation:
        assert self.wire is not None
        assert self.resolved is not None
        attempts = 0
        while True:
            attempts += 1
            started = asyncio.get_running_loop().time()
            handshaker = Handshaker(
                self.name,
                self.wire,
                self.resolved,
                self._settings.now.ours,
                self._handshake_seconds,
                self._limits.deliver,
                self._inbound,
                number,
                self._begins,
                self.attributes,
            )
            assumed = self._settings.now.assumed
            if assumed is not None and number == 1 and self._saved.memory is None and not self.wire.owns_server:
                return handshaker.assume(assumed)
            try:
                settings = self._settings.now
                generation = await handshaker.handshake(
                    settings.pinned, self._first(), self.peer.offers, asked=settings.asked
                )
            except HandshakeFailed as failure:
                verdict = judge(failure.seen)
                fault = verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN) and is_transport_fault(failure.seen, False)
                if fault and self.peer.circuit.failed(started, asyncio.get_running_loop().time()):
                    self._reporter.event(CircuitChanged, state=self.peer.circuit.state.value)
                error = error_for(self.name, "handshake", "handshake", verdict, failure.reply, attempts)
                if failure.seen.broke is Broke.AFTER_SEND and (self.resolved.url or "").startswith("http://"):
                    error.what += "; a server that expects TLS also does this: use a URL that begins with https://"
                if verdict is Verdict.AUTH_NEEDED:
                    raise AuthNeeded(failure.seen, error) from None
                if self.wire.owns_server:
                    raise self._not_started(failure, error) from None
                at = Circumstances(True, attempts, self._limits.replays, retry_after=failure.seen.retry_after)
                if decide(verdict, at) is not RetryStep.REPLAY:
                    raise error from None
                await asyncio.sleep(
                    wait_for(verdict, failure.seen.retry_after, attempts, random.random(), base=self._limits.backoff)
                )
                continue
            self.peer.circuit.succeeded()
            return generation

    def _first(self) -> Era:
        """The era to try first: a program that ended at the first message of one era may speak the other."""
        if self._ends_at is None:
            return self._settings.now.prefers
        return Era.Y2026 if self._ends_at is Era.Y2025 else Era.Y2025

    def _not_started(self, failure: HandshakeFailed, error: HoldfastError) -> Exception:
        """The error of a program that could not be started: nothing was executed yet."""
        reply, seen = failure.reply, failure.seen
        if seen.broke is Broke.NO_ANSWER_IN_TIME:
            # This does not show its era: some programs do not answer unknown requests. So the remedy names era=.
            late = StartTimeout(
                f"{self.name!r} did not answer the handshake within {self._handshake_seconds:g} s",
                server=self.name,
                phase="handshake",
                remedy="nothing was executed; see its stderr; pin era= if it speaks only '2025' or '2026', or "
                f"in Python raise Limits({self._handshake_limit}=…)",
            )
            late.stderr_tail = reply.stderr_tail
            return late
        if seen.broke not in (Broke.CHILD_DIED, Broke.AFTER_SEND, Broke.CONNECT):
            return error
        if self._settings.now.pinned is None:
            # Some programs end at an unknown request. That does not show the era either, but the other
            # one is tried first next.
            tried = self.peer.offers.first(self._first(), time.monotonic())
            self._ends_at = tried if self._ends_at is None else None
            self.peer.offers.passed.clear()
        started = ConnectFailed(
            f"{self.name!r} did not start: {reply.what}",
            server=self.name,
            phase="handshake",
            remedy="nothing was executed; see its stderr",
        )
        started.exit_code, started.stderr_tail = reply.exit_code, reply.stderr_tail
        self.peer.not_started(started)
        return StartFailed(started)
