"""The way up: resolve, open, handshake. It owns the wire, what was resolved, and the memory of sessions.

Each phase can be done again without the ones before it. It refuses to know calls: it makes generations, and the link
decides when and why.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from holdfast.core.eras import Era, Why
from holdfast.core.events import CircuitChanged
from holdfast.core.handshake import Ours, Saved
from holdfast.core.models import Principal
from holdfast.core.outcome import Broke, Seen, Verdict, VerdictRule, judge
from holdfast.core.retry import Circumstances, RetryStep, decide, wait_for
from holdfast.errors import Conflict, ConnectFailed, HoldfastError, StartTimeout
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import error_for
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.credentials import Credentials
from holdfast.links.lifecycle.handshake import HandshakeFailed, Handshaker
from holdfast.links.lifecycle.peer import Peer
from holdfast.links.limits import Limits
from holdfast.links.memory.saver import Saver
from holdfast.links.memory.store import Memory, MemoryEntry
from holdfast.links.reporter import LinkReporter
from holdfast.links.target import CommandTarget, HttpTarget, ObjectTarget, Target
from holdfast.links.wires.base import Generation, Resolved, Wire
from holdfast.links.wires.duplex import DuplexWire

if TYPE_CHECKING:
    from holdfast.links.wires.http.pool import SharedPool


class Wants(Protocol):
    """What a new session must be told, and a saved one already knows."""

    ours: Ours
    log_level: str | None
    subscriptions: dict[str, None]


class StartFailed(Exception):
    """A child ended, or said nothing, before the handshake; another may do better."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(error.what)
        self.error = error


class AuthNeeded(Exception):
    """The handshake met a 401; credentials must be resolved anew."""

    def __init__(self, seen: Seen, error: HoldfastError) -> None:
        super().__init__(error.what)
        self.seen = seen
        self.error = error


class Startup:
    """One link's way up."""

    def __init__(
        self,
        name: str,
        target: Target,
        limits: Limits,
        background: BackgroundTasks,
        peer: Peer,
        *,
        era: Era | None,
        prefers: Era,
        principal: Principal,
        memory: Memory | None,
        reporter: LinkReporter,
        verdict_rules: Sequence[VerdictRule] = (),
        pool: "SharedPool | None" = None,
        known_json: bool = False,
    ) -> None:
        self._pool = pool
        self._known_json = known_json
        self.name = name
        self.target = target
        self.limits = limits
        self.peer = peer
        self.credentials = Credentials(name, target, limits)
        self.resolved: Resolved | None = None
        self.wire: Wire | None = None
        self.saver = Saver(background, reporter, self._saved, self._fits)
        self.saver.memory = memory
        self._wants: Wants | None = None
        self._background = background
        self._era = era
        self.prefers = prefers
        """Which era to take where the server offers both."""
        self._principal = principal
        self._reporter = reporter
        self._verdict_rules = verdict_rules
        self._forgetting = reporter.forgetting
        self._opened_url: str | None = None
        self._ends_at: Era | None = None
        """The era at whose first message a program ended the last time."""
        self.begun: Generation | None = None
        """A session that the server has given us and no call knows yet."""

    @property
    def memory(self) -> Memory | None:
        return self.saver.memory

    def keep_in(self, memory: Memory, principal: Principal) -> None:
        self.saver.memory, self._principal = memory, principal

    async def resolve(self, refused: Seen | None) -> None:
        """URL and credentials."""
        self.resolved = await self.credentials.resolve(refused)

    async def open(self) -> bool:
        """A wire to where it was resolved; an open one is kept. True if one was opened."""
        assert self.resolved is not None
        if self.wire is not None and self._opened_url == self.resolved.url:
            return False
        old, self.wire = self.wire, None
        if old is not None:
            await old.close()
        wire = self._make()
        try:
            async with asyncio.timeout(self.limits.start):
                await wire.open(self.resolved)
        except TimeoutError as error:
            await wire.close()
            raise StartTimeout(
                f"{self.name!r} did not open within {self.limits.start:g} s", server=self.name, phase="open"
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
                    self.limits,
                    self._background,
                    self._verdict_rules,
                    self._pool,
                    self._known_json,
                )
            case ObjectTarget():
                from holdfast.links.wires.local import LocalChannel  # brings the SDK's server side with it

                channel = LocalChannel(self.name, self.target, self._background, self.limits.close)
                return DuplexWire(channel, self._background)
            case CommandTarget():
                from holdfast.links.wires.stdio.channel import StdioChannel  # loads what starts programs

                program = StdioChannel(self.name, self.target, self.limits, self._reporter, self._known_json)
                return DuplexWire(program, self._background, Broke.CHILD_DIED)

    def drop(self) -> Wire | None:
        """Give the wire away, to be closed."""
        wire, self.wire = self.wire, None
        if wire is not None and wire.owns_server:
            self.resolved = None  # a program's environment is found out whenever it is started
        return wire

    async def handshake(
        self, number: int, old: Generation | None, wants: Wants, inbound: Inbound, lost: bool
    ) -> Generation:
        """A generation: the saved session, if there is one that is not the lost one, else a new handshake. `lost` says
        that `old` kept something, or that a loss before it is still to be reported; the next session keeps that."""
        assert self.wire is not None
        self._wants = wants
        adopted, kept = await self._take_up(number, old, wants)
        if adopted is not None:
            return adopted
        if old is not None and self._was_shared(kept, old):
            old.answered_unsafe = lost = True
        if kept is not None and kept.saved is not None and kept.saved.principal == self._principal:
            # What links that share the session had told it is theirs to find again in the new one.
            wants.log_level = wants.log_level or kept.saved.log_level
            wants.subscriptions.update(dict.fromkeys(kept.saved.subscriptions))
        generation = await self._handshake(number, wants, inbound)
        generation.unreported_loss = lost or (kept is not None and self._is_lost(kept, old))
        if self.memory is None or (self.wire.owns_server and not generation.keeps_state):
            return generation
        generation.unsaved = True
        try:
            if kept is not None:
                saved = self._saved(generation)
                await self.memory.save(saved, kept.token)
                self.saver.saved(generation, saved)
        except Conflict:
            # Another link was faster. One session is enough: take theirs, and end the one that nobody knows yet.
            adopted, _ = await self._take_up(number, old, wants)
            if adopted is not None:
                self.begun = None
                self._background.start(self._end(generation), f"end {self.name}")
                return adopted
        except HoldfastError as error:
            self._forgetting(str(error))
        if generation.unsaved:
            self.saver.soon(generation)
        return generation

    async def _take_up(
        self, number: int, old: Generation | None, wants: Wants
    ) -> tuple[Generation | None, MemoryEntry | None]:
        """The saved session, if it can be used, and what is saved."""
        while True:
            kept = await self._load()
            adopted = self._adopt(kept, number, old, wants)
            if kept is None or adopted is None:
                return None, kept
            try:
                await self._share(adopted, kept)
            except Conflict:
                continue  # another link has saved in this moment
            return adopted, kept

    async def _share(self, adopted: Generation, kept: MemoryEntry) -> None:
        """Let the link that began the session know, should it lose it, that others have used it."""
        if adopted.shared or adopted.session is None or self.memory is None or kept.saved is None:
            return
        if kept.token is None:
            return  # a memory without compare-and-swap: a newer session could be overwritten
        adopted.shared = True
        try:
            await self.memory.save(replace(kept.saved, shared=True), kept.token)
        except Conflict:
            raise
        except HoldfastError as error:
            self._forgetting(str(error))
            self.saver.soon(adopted)

    def _was_shared(self, kept: MemoryEntry | None, old: Generation) -> bool:
        """May another link have left something in the lost session? If nobody can say, it may."""
        if old.session is None or old.unsaved or self.memory is None:
            return False
        saved = None if kept is None else kept.saved
        return kept is None or (saved is not None and saved.session == old.session and saved.shared)

    def _is_lost(self, kept: MemoryEntry, old: Generation | None) -> bool:
        """Was there something that this new session does not have, which `old` does not know of?"""
        assert self.wire is not None
        saved = kept.saved
        if saved is None or saved.principal != self._principal:
            return kept.lost
        if kept.lost or saved.unreported_loss:
            return True
        if old is not None and old.session == saved.session:
            return False
        return saved.session is not None or (self.wire.owns_server and saved.handshake.era is Era.Y2025)

    async def _end(self, generation: Generation) -> None:
        await generation.wire.end(generation, self.limits.close)

    async def loss_was_reported(self, generation: Generation) -> bool:
        """Does the memory say that a loss before this session, which is saved, was reported by another link?"""
        if self.memory is None or generation.unsaved or self.saver.is_busy:
            return False
        kept = await self._load()
        return kept is not None and kept.saved is not None and not kept.lost and not kept.saved.unreported_loss

    def _begins(self, generation: Generation) -> None:
        self.begun = generation

    def _fits(self, saved: Saved) -> bool:
        assert self._wants is not None
        return saved.fits(self._wants.ours, self._principal, self._era)

    def _saved(self, generation: Generation) -> Saved:
        wants = self._wants
        assert wants is not None
        return Saved(
            generation.session,
            generation.handshake,
            wants.ours,
            self._principal,
            wants.log_level,
            tuple(wants.subscriptions),
            generation.unreported_loss,
            generation.era is not self.prefers,
            generation.shared,
        )

    async def touch(self) -> None:
        if self.memory is not None:
            try:
                await self.memory.touch()
            except HoldfastError as error:
                self._forgetting(str(error))

    async def forget(self) -> None:
        if self.memory is not None:
            try:
                await self.memory.forget()
            except HoldfastError as error:
                self._forgetting(str(error))

    async def _load(self) -> MemoryEntry | None:
        if self.memory is None:
            return None
        try:
            kept = await self.memory.load()
        except HoldfastError as error:
            self._forgetting(str(error))
            return None
        if kept.unreadable is not None:
            self._forgetting(kept.unreadable)
        return kept

    def _adopt(self, kept: MemoryEntry | None, number: int, old: Generation | None, wants: Wants) -> Generation | None:
        saved = None if kept is None else kept.saved
        assert self.wire is not None
        assert self.resolved is not None
        if saved is None or self.wire.owns_server or not saved.fits(wants.ours, self._principal, self._era):
            return None
        if (
            saved.session is None
            and self._era is None
            and not saved.second_choice
            and saved.handshake.era is not self.prefers
        ):
            return None  # nothing is held there, and the server may offer the era that we would rather have
        if old is not None and saved.session == old.session and saved.handshake.era is old.era:
            return None
        handshake = saved.handshake
        generation = Generation(number, handshake.era, handshake.version, handshake, self.wire, saved.session)
        generation.adopted, generation.why = True, Why.SAVED
        generation.unreported_loss = generation.saved_loss = saved.unreported_loss
        generation.shared = saved.shared
        generation.keeps_state = generation.answered_unsafe = saved.session is not None
        # What we had told the lost session, and whoever began this one did not know.
        if wants.log_level not in (None, saved.log_level):
            generation.to_restore.append(("logging/setLevel", {"level": wants.log_level}))
        for uri in wants.subscriptions:
            if uri not in saved.subscriptions:
                generation.to_restore.append(("resources/subscribe", {"uri": uri}))
        wants.log_level = wants.log_level or saved.log_level
        wants.subscriptions.update(dict.fromkeys(saved.subscriptions))
        self.wire.apply_credentials(generation, self.resolved)
        return generation

    async def _handshake(self, number: int, wants: Wants, inbound: Inbound) -> Generation:
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
                wants.ours,
                self.limits,
                inbound.unexpected,
                number,
                self._begins,
            )
            inbound.early = handshaker.tell
            try:
                generation = await handshaker.handshake(self._era, self._first(), self.peer.offers)
            except HandshakeFailed as failure:
                verdict = judge(failure.seen)
                if verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN) and self.peer.circuit.failed(
                    started, asyncio.get_running_loop().time()
                ):
                    self._reporter.event(CircuitChanged, state=self.peer.circuit.state.value)
                error = error_for(self.name, "handshake", "handshake", verdict, failure.reply, attempts)
                if failure.seen.broke is Broke.AFTER_SEND and (self.resolved.url or "").startswith("http://"):
                    error.what += "; a server that expects TLS does the same: its URL begins with https://"
                if verdict is Verdict.AUTH_NEEDED:
                    raise AuthNeeded(failure.seen, error) from None
                if self.wire.owns_server:
                    raise self._not_started(failure, error) from None
                at = Circumstances(True, attempts, self.limits.replays, retry_after=failure.seen.retry_after)
                if decide(verdict, at) is not RetryStep.REPLAY:
                    raise error from None
                await asyncio.sleep(
                    wait_for(verdict, failure.seen.retry_after, attempts, random.random(), base=self.limits.backoff)
                )
                continue
            self.peer.circuit.succeeded()
            return generation

    def _first(self) -> Era:
        """The era to prefer now: a program that ended at the one's first message may like the other's."""
        if self._ends_at is None:
            return self.prefers
        return Era.Y2026 if self._ends_at is Era.Y2025 else Era.Y2025

    def _not_started(self, failure: HandshakeFailed, error: HoldfastError) -> Exception:
        """Nothing was executed yet, whatever the child did: it could not be started."""
        reply, seen = failure.reply, failure.seen
        if seen.broke is Broke.NO_ANSWER_IN_TIME:
            # Not a verdict on its era. Some programs say nothing to what they don't know, and a person can tell.
            late = StartTimeout(
                f"{self.name!r} did not answer the handshake within {self.limits.handshake:g} s",
                server=self.name,
                phase="handshake",
                remedy="see its stderr; pin era= if it speaks only '2025' or '2026', or raise Limits(handshake=…)",
            )
            late.stderr_tail = reply.stderr_tail
            return late
        if seen.broke not in (Broke.CHILD_DIED, Broke.AFTER_SEND, Broke.CONNECT):
            return error
        if self._era is None:
            # Some programs end at what they don't know. That is no verdict either, but the other era comes first next.
            tried = self.peer.offers.first(self._first(), time.monotonic())
            self._ends_at = tried if self._ends_at is None else None
            self.peer.offers.passed.clear()
        started = ConnectFailed(
            f"{self.name!r} did not start: {reply.what}", server=self.name, phase="handshake", remedy="see its stderr"
        )
        started.exit_code, started.stderr_tail = reply.exit_code, reply.stderr_tail
        self.peer.last_failure = started
        return StartFailed(started)
