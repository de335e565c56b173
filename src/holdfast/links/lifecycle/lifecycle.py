"""The life of a link: coming up, healing, going down. Runs on `core/lifecycle.py` LINK.

It owns the one current generation, the one task on its way up and the one that closes. A call in flight on an older
generation goes on there, and late news of one changes nothing.
"""

import asyncio
import random
from contextvars import Context

from holdfast.core.lifecycle import LinkEvent, LinkState
from holdfast.core.outcome import Seen, Verdict
from holdfast.core.retry import backoff
from holdfast.errors import ConnectFailed, HoldfastError, LeaseClosed, StartTimeout, UsageError
from holdfast.events import LinkClosed, LinkFailed, LinkOpened
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import closed, not_started
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.losses import Losses
from holdfast.links.lifecycle.phase import LinkPhase
from holdfast.links.lifecycle.startup import AuthNeeded, StartFailed, Startup
from holdfast.links.lifecycle.stream import ServerStream
from holdfast.links.lifecycle.succession import Succession
from holdfast.links.memory.session import SavedSession
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter, shown_session
from holdfast.links.wires.base import Generation, Loss, Wire

SUPERSEDED_SECONDS = 30.0  # that calls of a session that was given up have to end before it is ended at the server


class LinkLifecycle:
    """One link's life."""

    def __init__(
        self,
        options: Options,
        phase: LinkPhase,
        startup: Startup,
        saved: SavedSession,
        succession: Succession,
        losses: Losses,
        inbound: Inbound,
        background: BackgroundTasks,
        reporter: LinkReporter,
    ) -> None:
        self.phase = phase
        self.losses = losses
        self.generation: Generation | None = None
        self.numbers = 0
        """How many generations there were."""
        self.changed = asyncio.Event()
        """Set, and replaced by a new one, whenever a generation begins or ends."""
        self._options = options
        self._limits = options.limits
        self._startup = startup
        self._saved = saved
        saved.saver.on_superseded(self._superseded)
        self._succession = succession
        self._background = background
        self._reporter = reporter
        self.stream = ServerStream(options.stream, inbound, background, reporter, lambda: saved.memory, self._news)
        self._last: Generation | None = None
        self._refused: Seen | None = None
        self._rising: asyncio.Task[Generation | HoldfastError] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._discarded: set[asyncio.Task[None]] = set()

    def abandon(self) -> None:
        """Its event loop is closed, so nothing of it can run any more: start over."""
        self.phase.step(LinkEvent.ABANDONED)
        self.generation = self._last = self._rising = self._closing = None
        self.stream.forget()
        self._background.abandon()
        self._discarded.clear()
        self._saved.saver.abandon()
        self._startup.drop()

    def retire(self) -> None:
        """Close for good: a use that comes later must not open the link again."""
        self.phase.step(LinkEvent.RETIRE)

    # Up

    async def ready(self, what: str, until: float | None, since: float | None = None) -> Generation:
        """The current generation, or the next. All callers wait for one way up; each has its own deadline, counted from
        `since` for one that tries again and again."""
        loop = asyncio.get_running_loop()
        began = loop.time() if since is None else since
        limit, authorizing = began + self._limits.start, self._startup.credentials.authorizing
        spent = authorizing()

        def left() -> float:
            stop = limit + authorizing() - spent  # the time that a person takes to sign in does not count
            return (stop if until is None else min(until, stop)) - loop.time()

        if self._rising is not None and asyncio.current_task() is self._rising:
            raise UsageError(
                f"{what}: the reseed hook of {self._startup.name!r} used the link that waits for it",
                server=self._startup.name,
                remedy="use the request() of what the hook is given",
            )
        while self.generation is None:
            if self.phase.is_retired:
                raise LeaseClosed(
                    f"{what}: the link to {self._startup.name!r} was closed when the run that had it ended",
                    server=self._startup.name,
                    remedy="call inside `async with holdfast.run():`",
                )
            if self._closing is not None:
                if not (await asyncio.wait((self._closing,), timeout=max(0.0, left())))[0]:
                    raise self._late(what, began, until)
                continue
            if self.phase.state is LinkState.CLOSED:
                self.phase.step(LinkEvent.USE)
            if self._rising is None:
                self._rising = self._background.start(self._rise(), f"rise {self._startup.name}")
            rising = self._rising
            while not (await asyncio.wait((rising,), timeout=max(0.0, left())))[0]:
                if left() <= 0:
                    raise self._late(what, began, until)
            if rising.cancelled():
                raise closed(self._startup.name, what, False)
            outcome = rising.result()
            if isinstance(outcome, HoldfastError):
                raise outcome.copied()
            return outcome
        return self.generation

    def _late(self, what: str, began: float, until: float | None) -> StartTimeout:
        now = asyncio.get_running_loop().time()
        own = until is not None and now >= until
        span = f"the {now - began:.3g} s left of its timeout" if own else f"{self._limits.start:g} s"
        return StartTimeout(
            f"{what}: {self._startup.name!r} did not come up within {span} (phase {self.phase.state.value})",
            server=self._startup.name,
            phase=self.phase.state.value,
            remedy="nothing was executed; try again, or "
            + ("raise timeout=" if own else "in Python raise Limits(start=…)"),
        )

    async def _rise(self) -> Generation | HoldfastError:
        """Go up from the state that we are in to READY. The only task that does so."""
        old, starts = self._last, 0
        refusals: tuple[int | None, ...] = ()
        slow = asyncio.get_running_loop().call_later(self._limits.slow_start, self._still_starting)
        try:
            while True:
                if self.phase.is_closing:
                    return closed(self._startup.name, "open", False)
                try:
                    generation = await self._climb(old)
                    break
                except StartFailed as failed:
                    starts += 1
                    failed.error.attempts = starts
                    if starts > self._limits.replays:
                        raise failed.error from None
                    self.phase.step(LinkEvent.TRANSPORT_LOST)
                    self._discard(self._startup.drop())
                    await asyncio.sleep(backoff(starts, random.random(), base=self._limits.backoff))
                except AuthNeeded as needed:
                    if not self._startup.credentials.may_renew(needed.seen, refusals):
                        raise needed.error from None
                    refusals, self._refused = (*refusals, needed.seen.status), needed.seen
                    self.phase.step(LinkEvent.AUTH_NEEDED)
        except HoldfastError as error:
            error = not_started(error)
            return error if self.phase.is_closing else await self._fell(error)
        except Exception as error:
            what = f"{self._startup.name!r} did not come up: {error!r:.300}"
            return await self._fell(ConnectFailed(what, server=self._startup.name, phase=self.phase.state.value))
        finally:
            slow.cancel()
            self._rising = None
        if self.phase.is_closing:  # closing ends what we began
            return closed(self._startup.name, "open", False)
        self._startup.take_begun()
        self.phase.step(LinkEvent.HANDSHAKE_DONE)
        if old is not None and old is not generation:
            old.replaced_by(generation)
            self.stream.stop()
        self.generation = self._last = generation
        self._notify_change()
        self.stream.start(generation)
        return generation

    def _still_starting(self) -> None:
        """The start is slow: say so in the log, where an operator looks."""
        what = f"still starting after {self._limits.slow_start:g} s (phase {self.phase.state.value})"
        if self._startup.is_program and self.phase.state is LinkState.HANDSHAKE:
            what += f"; it has {self._limits.program_handshake:g} s to answer, npx or uvx may be downloading it"
        self._reporter.warn(what)

    async def _fell(self, error: HoldfastError) -> HoldfastError:
        phase = self.phase.state.value
        wire = self._startup.wire
        if wire is not None and wire.owns_server:
            self._discard(self._startup.drop())
        elif wire is not None and self._last is None:  # else the pool may still carry calls of an older generation
            self._startup.drop()
            await wire.close()
        self.phase.step(LinkEvent.FAILED)
        self._reporter.event(LinkFailed, phase=phase, why=error.what)
        return error

    def _discard(self, wire: Wire | None) -> None:
        """Close a wire aside. Not the owner's task: closing the link must wait for it, not cut it short."""
        if wire is not None:
            closing = asyncio.get_running_loop().create_task(wire.close(), name="close wire", context=Context())
            self._discarded.add(closing)
            closing.add_done_callback(self._discarded.discard)

    async def _climb(self, old: Generation | None) -> Generation:
        startup = self._startup
        if self.phase.state is LinkState.RESOLVE:
            await startup.resolve(self._refused)
            self._refused = None
            self.phase.step(LinkEvent.RESOLVED)
        if self.phase.state is LinkState.OPEN:
            if startup.resolved is None:
                await startup.resolve(None)
            if await startup.open():
                self._reporter.counted("opens")
                self._reporter.event(LinkOpened)
            self.phase.step(LinkEvent.OPENED)
        if old is not None and not old.lost and old.wire is startup.wire:
            # Only the credentials were renewed: the session stands.
            assert startup.resolved is not None
            old.wire.apply_credentials(old, startup.resolved)
            return old
        kept = old is not None and old.held_state
        lost = self._options.stateful and (kept or self.losses.pending is not None)
        generation = await startup.handshake(self.numbers + 1, old, lost)
        self.numbers += 1
        self._reporter.handshake_done(generation)
        await self._succession.settle_in(old, generation)
        return generation

    # Losses

    @property
    def holds_state(self) -> bool:
        """Has an unsafe call left something in the session, or is a loss before it still to be reported?"""
        generation = self.generation or self._last
        return self.losses.pending is not None or (generation is not None and generation.held_state)

    async def find_loss(self, generation: Generation) -> Loss | None:
        """A loss to report to an unsafe call. Where links share a session, one report is for all of them."""
        loss = self.losses.pending
        confirm = self._options.confirm_losses
        if loss is None or not confirm or not await self._saved.loss_was_reported(generation):
            return self.losses.pending
        if self.losses.pending is loss:
            self.losses.reported()
            generation.loss_settled()
        return self.losses.pending

    def loss_raised(self) -> None:
        """An unsafe call raises the loss."""
        if not self._options.confirm_losses and self.losses.pending is not None:
            self.loss_reported(self.losses.pending)

    def loss_reported(self, loss: Loss) -> None:
        """A caller knows of it: that is part of the saved session, too."""
        if self.losses.pending is not loss:
            return
        self.losses.reported()
        generation = self.generation or self._last
        if generation is not None and generation.unreported_loss:
            generation.loss_pending(False)
            self._saved.saver.soon(generation)

    # Healing

    def _superseded(self, generation: Generation) -> None:
        """The memory came back and has another link's session: that one stands, and ours ends after its calls."""
        self._reporter.warn(
            f"{shown_session(generation.session)} could not be saved, and another was: that one is used"
        )
        self.lose(generation, LinkEvent.SESSION_LOST)
        self._background.start(self._end_superseded(generation), "end superseded")

    async def _end_superseded(self, generation: Generation) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SUPERSEDED_SECONDS
        while self._reporter.in_flight and loop.time() < until:
            await asyncio.sleep(SUPERSEDED_SECONDS / 100)
        await generation.wire.end(generation, self._limits.close)

    def lose(self, generation: Generation, event: LinkEvent, refused: Seen | None = None) -> None:
        """A generation is over, or its credentials are. Without effect for an old one."""
        if self.generation is not generation:
            return
        self.generation = None
        self._refused = refused
        self.phase.step(event)
        if event is LinkEvent.AUTH_NEEDED:
            return
        generation.mark_lost()
        self._saved.saver.lost(generation.session)
        self._notify_change()
        self.stream.stop()
        if event is LinkEvent.TRANSPORT_LOST:
            self._discard(self._startup.drop())

    def heal(self, generation: Generation, seen: Seen, verdict: Verdict) -> bool:
        """A verdict outside of a call: True if the link is healed by it, False if it is an error."""
        if verdict is Verdict.SESSION_LOST:
            self.lose(generation, LinkEvent.SESSION_LOST)
            return True
        if verdict is Verdict.AUTH_NEEDED and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            return True
        return False

    def _renew(self, generation: Generation, seen: Seen) -> None:
        """An idle link's stream met a 401: no call is there to renew the credentials, so it is done here."""
        if self.generation is generation and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            self._rising = self._background.start(self._rise(), f"rise {self._startup.name}")

    def _news(self, generation: Generation, seen: Seen, verdict: Verdict) -> bool:
        """From the server's own stream: its session or credentials are gone. True if the stream is over with that."""
        if verdict is Verdict.AUTH_NEEDED:
            self._renew(generation, seen)
            return False
        self.lose(generation, LinkEvent.TRANSPORT_LOST if generation.wire.owns_server else LinkEvent.SESSION_LOST)
        return True

    def _notify_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # Down

    async def close(self, end: bool) -> None:
        """Close once for all callers; cancelling one of them does not stop the closing."""
        idle = self._startup.wire is None and not self._discarded and not len(self._background)
        if self.phase.is_closed and idle:
            return
        if self._closing is None:
            self.phase.step(LinkEvent.CLOSE)
            generation, self.generation = self.generation or self._last, None
            # Not one of the background tasks: closing ends those.
            closing = self._shut(generation, end)
            self._closing = asyncio.get_running_loop().create_task(closing, name=f"close {self._startup.name}")
        await asyncio.shield(self._closing)

    async def _shut(self, generation: Generation | None, end: bool) -> None:
        failures, ended, holds_state = 0, False, self.holds_state
        try:
            await self._saved.saver.flush(self._limits.close)
            if self._rising is not None and self._startup.handshaking:
                # The server may be making a session right now: wait for its name, so that it can be ended.
                await asyncio.wait((self._rising,), timeout=self._limits.close / 2)
            failures += await self._background.close(self._limits.close)
            self._rising = None
            self.stream.forget()
            for live in (generation, self._startup.take_begun()):
                if live is None or live.lost or live.session is None or not (end or live.unsaved):
                    continue  # what could not be saved is ended as well: it can't be found again
                reply = await live.wire.end(live, self._limits.close)
                # 404: gone already. 405: the server ends its sessions itself.
                ended = reply.seen is None or reply.seen.status in (404, 405)
                failures += not ended
            unused = (
                generation is not None and generation.wire.owns_server and not generation.unsaved and not holds_state
            )
            if end or unused:  # a program that was not used leaves nothing to miss
                await self._saved.forget()
        except Exception as error:  # of a user's memory; closing goes on
            self._reporter.strayed(f"closing met {error!r:.200}")
            failures += 1
        finally:
            failures += await self._let_go()
            self._reporter.counted("close_failures", failures)
            self.losses.restored()
            self._last = self.generation = None
            self.phase.step(LinkEvent.CLOSED)
            self._closing = None
        session = generation.session if generation is not None else None
        self._reporter.event(LinkClosed, session=session, ended=ended, failures=failures)

    async def _let_go(self) -> int:
        failures = 0
        memory = self._saved.memory
        self._discard(self._startup.drop())
        if self._discarded:
            # A child has three times `exit` to end, and its descendants some more.
            _, late = await asyncio.wait(self._discarded, timeout=self._limits.close + 5 * self._limits.exit)
            failures += len(late)
        try:
            async with asyncio.timeout(self._limits.close):
                if memory is not None:
                    await memory.close()
        except Exception as error:
            self._reporter.forgetting(str(error) or "not closed in time")
            failures += 1
        return failures + await self._background.close(self._limits.close)
