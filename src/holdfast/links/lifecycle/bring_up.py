"""The one task that connects a link, from any state: the first time, and after each loss."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from holdfast.core.lifecycle import LinkEvent, LinkState
from holdfast.core.outcome import Outcome, outcome_of_error
from holdfast.core.retry import backoff
from holdfast.core.verdicts import Seen
from holdfast.errors import ConnectFailed, HoldfastError
from holdfast.events import LinkFailed, LinkOpened
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import closed, not_started
from holdfast.links.lifecycle.discarded import DiscardedWires
from holdfast.links.lifecycle.losses import Losses
from holdfast.links.lifecycle.phase import LinkPhase
from holdfast.links.lifecycle.startup import AuthNeeded, StartFailed, Startup
from holdfast.links.lifecycle.succession import Succession
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.trace import Span, add_event, begin_step, current, shortened
from holdfast.links.wires.base import Generation


class BringUp:
    """Connects one link. `began` is called with each generation that is ready."""

    def __init__(
        self,
        options: Options,
        phase: LinkPhase,
        startup: Startup,
        succession: Succession,
        losses: Losses,
        discarded: DiscardedWires,
        background: BackgroundTasks,
        reporter: LinkReporter,
        began: Callable[[Generation], None],
    ) -> None:
        self.task: asyncio.Task[Generation | HoldfastError] | None = None
        """The current attempt, which results in a generation or an error; None if there is none."""
        self.numbers = 0
        """The number of generations so far."""
        self.refused: Seen | None = None
        """The refusal that makes it necessary to renew credentials."""
        self._options = options
        self._limits = options.limits
        self._phase = phase
        self._startup = startup
        self._succession = succession
        self._losses = losses
        self._discarded = discarded
        self._background = background
        self._reporter = reporter
        self._began = began

    def start(self) -> "asyncio.Task[Generation | HoldfastError]":
        """Return the running task, or start one."""
        if self.task is None:
            self.task = self._background.start(self._run(current()), f"rise {self._startup.name}")
        return self.task

    def forget(self) -> None:
        """Drop the task, which has ended or never will."""
        self.task = None

    def renew_credentials(self, refused: Seen | None) -> None:
        """Make the next attempt resolve credentials again, after this refusal."""
        self.refused = refused

    async def _run(self, cause: Any) -> Generation | HoldfastError:
        """Connect, in a span below the current one of the task that began it."""
        span = begin_step("link start", self._startup.attributes, cause)
        if span is None:
            return await self._connect()
        outcome: Generation | BaseException = asyncio.CancelledError()
        try:
            outcome = await self._connect()
            return outcome
        finally:
            _end(span, outcome)

    async def _connect(self) -> Generation | HoldfastError:
        """Connect from the link's current state to READY."""
        old, starts = self._losses.latest, 0
        refusals: tuple[int | None, ...] = ()
        slow = asyncio.get_running_loop().call_later(self._limits.slow_start, self._still_starting)
        try:
            while True:
                if self._phase.is_closing:
                    return closed(self._startup.name, "open", False)
                try:
                    generation = await self._climb(old)
                    break
                except StartFailed as failed:
                    starts += 1
                    failed.error.attempts = starts
                    add_event("start failed", attempt=starts)
                    if starts > self._limits.replays:
                        raise failed.error from None
                    self._phase.step(LinkEvent.TRANSPORT_LOST)
                    self._discarded.add(self._startup.drop())
                    await asyncio.sleep(backoff(starts, random.random(), base=self._limits.backoff))
                except AuthNeeded as needed:
                    if not self._startup.credentials.may_renew(needed.seen, refusals):
                        raise needed.error from None
                    refusals, self.refused = (*refusals, needed.seen.status), needed.seen
                    self._phase.step(LinkEvent.AUTH_NEEDED)
        except HoldfastError as error:
            error = not_started(error)
            return error if self._phase.is_closing else await self._fell(error)
        except Exception as error:
            what = f"{self._startup.name!r} did not come up: {error!r:.300}"
            return await self._fell(ConnectFailed(what, server=self._startup.name, phase=self._phase.state.value))
        finally:
            slow.cancel()
            self.task = None
        if self._phase.is_closing:  # closing ends what was begun
            return closed(self._startup.name, "open", False)
        self._startup.take_begun()
        self._phase.step(LinkEvent.HANDSHAKE_DONE)
        self._began(generation)
        return generation

    def _still_starting(self) -> None:
        """Log that the start is slow."""
        what = f"still starting after {self._limits.slow_start:g} s (phase {self._phase.state.value})"
        if self._startup.is_program and self._phase.state is LinkState.HANDSHAKE:
            what += f"; it has {self._limits.program_handshake:g} s to answer, npx or uvx may be downloading it"
        self._reporter.warn(what)

    async def _fell(self, error: HoldfastError) -> HoldfastError:
        phase = self._phase.state.value
        wire = self._startup.wire
        if wire is not None and wire.owns_server:
            self._discarded.add(self._startup.drop())
        elif wire is not None and self._losses.latest is None:
            # Otherwise the wire's pool may still carry calls of an older generation.
            self._startup.drop()
            await wire.close()
        self._phase.step(LinkEvent.FAILED)
        self._reporter.event(LinkFailed, phase=phase, why=error.what)
        return error

    async def _climb(self, old: Generation | None) -> Generation:
        startup = self._startup
        if self._phase.state is LinkState.RESOLVE:
            await startup.resolve(self.refused)
            self.refused = None
            self._phase.step(LinkEvent.RESOLVED)
        if self._phase.state is LinkState.OPEN:
            if startup.resolved is None:
                await startup.resolve(None)
            if await startup.open():
                self._reporter.counted("opens")
                self._reporter.event(LinkOpened)
                add_event("opened")
            self._phase.step(LinkEvent.OPENED)
        if old is not None and not old.lost and old.wire is startup.wire:
            # Only the credentials were renewed; the session is still valid.
            assert startup.resolved is not None
            old.wire.apply_credentials(old, startup.resolved)
            return old
        kept = old is not None and old.held_state
        lost = self._options.stateful and (kept or self._losses.pending is not None)
        generation = await startup.handshake(self.numbers + 1, old, lost)
        self.numbers += 1
        self._reporter.handshake_done(generation)
        await self._succession.settle_in(old, generation)
        return generation


def _end(span: Span, outcome: Generation | BaseException) -> None:
    if isinstance(outcome, HoldfastError):
        span.end(outcome_of_error(outcome), None, outcome)
    elif isinstance(outcome, BaseException):
        span.end(Outcome.CANCELLED)
    else:
        known = {"mcp.protocol.version": outcome.version, "mcp.session.id": shortened(outcome.session)}
        span.end(Outcome.OK, attributes=known)
