"""The lifecycle of a link: use, loss and closing. Its states are those of the table LINK in `core/lifecycle.py`.

It owns the one current generation and the one task that closes; `bring_up.py` owns the task that connects. A call in
flight on an older generation continues there, and late reports about that generation have no effect.
"""

import asyncio

from holdfast.core.lifecycle import LinkEvent, LinkState
from holdfast.core.verdicts import Seen, Verdict
from holdfast.errors import HoldfastError, LeaseClosed, StartTimeout, UsageError
from holdfast.events import LinkClosed
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import closed
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.bring_up import BringUp
from holdfast.links.lifecycle.discarded import DiscardedWires
from holdfast.links.lifecycle.losses import Losses
from holdfast.links.lifecycle.phase import LinkPhase
from holdfast.links.lifecycle.startup import Startup
from holdfast.links.lifecycle.stream import ServerStream
from holdfast.links.lifecycle.succession import Succession
from holdfast.links.memory.session import SavedSession
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter, shown_session
from holdfast.links.wires.base import Generation

SUPERSEDED_SECONDS = 30.0  # that calls in a session that was given up have to finish before it is ended at the server


class LinkLifecycle:
    """The lifecycle of one link."""

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
        self.changed = asyncio.Event()
        """Set, and replaced by a new event, whenever a generation begins or ends."""
        self._options = options
        self._limits = options.limits
        self._startup = startup
        self._saved = saved
        saved.saver.on_superseded(self._superseded)
        self._background = background
        self._reporter = reporter
        self.stream = ServerStream(
            options.stream, inbound, background, reporter, saved, lambda: self.generation, self._news
        )
        self._closing: asyncio.Task[None] | None = None
        self._discarded = DiscardedWires()
        self.bring_up = BringUp(
            options, phase, startup, succession, losses, self._discarded, background, reporter, self._began
        )

    def abandon(self) -> None:
        """Start over because the event loop is closed and none of its tasks can run any more."""
        self.phase.step(LinkEvent.ABANDONED)
        self.generation = self._closing = None
        self.losses.follow(None)
        self.bring_up.forget()
        self.stream.forget()
        self._background.abandon()
        self._discarded.abandon()
        self._saved.saver.abandon()
        self._startup.drop()

    def retire(self) -> None:
        """Close permanently: a later use must not open the link again."""
        self.phase.step(LinkEvent.RETIRE)

    # Up

    async def ready(self, what: str, until: float | None, since: float | None = None) -> Generation:
        """The current generation, or the next one.
        All callers wait for the same attempt; each has its own deadline, counted from `since` for a caller that tries
        repeatedly.
        """
        loop = asyncio.get_running_loop()
        began = loop.time() if since is None else since
        limit, authorizing = began + self._limits.start, self._startup.credentials.authorizing
        spent = authorizing()

        def left() -> float:
            stop = limit + authorizing() - spent  # the time in which a person signs in does not count
            return (stop if until is None else min(until, stop)) - loop.time()

        if self.bring_up.task is not None and asyncio.current_task() is self.bring_up.task:
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
            rising = self.bring_up.start()
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

    def _began(self, generation: Generation) -> None:
        """Record that a generation is ready for calls."""
        old = self.losses.latest
        if old is not None and old is not generation:
            old.replaced_by(generation)
            self.stream.stop()
        self.generation = generation
        self.losses.follow(generation)
        self._notify_change()
        self.stream.start(generation)

    # Losses

    def _superseded(self, generation: Generation) -> None:
        """The memory is available again and has another link's session:
        that one is used, and ours ends after its calls.
        """
        self._reporter.warn(
            f"{shown_session(generation.session)} could not be saved, and another session was: that one is used"
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
        """Record that a generation, or its credentials, are no longer valid. Without effect for an old generation."""
        if self.generation is not generation:
            return
        self.generation = None
        self.bring_up.renew_credentials(refused)
        self.phase.step(event)
        if event is LinkEvent.AUTH_NEEDED:
            return
        generation.mark_lost()
        self._saved.saver.lost(generation.session)
        self._notify_change()
        self.stream.stop()
        if event is LinkEvent.TRANSPORT_LOST:
            self._discarded.add(self._startup.drop())

    def recover_from(self, generation: Generation, seen: Seen, verdict: Verdict) -> bool:
        """Handle a verdict outside of a call.
        Returns True if a new session or new credentials follow, False if it is an error.
        """
        if verdict is Verdict.SESSION_LOST:
            self.lose(generation, LinkEvent.SESSION_LOST)
            return True
        if verdict is Verdict.AUTH_NEEDED and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            return True
        return False

    def _renew(self, generation: Generation, seen: Seen) -> None:
        """The stream of an idle link got a 401: no call is there to renew the credentials, so that is done here."""
        if self.generation is generation and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            self.bring_up.start()

    def _news(self, generation: Generation, seen: Seen, verdict: Verdict) -> bool:
        """The server's own stream reports that its session or credentials are gone.
        Returns True if the stream must end.
        """
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
        """Close once for all callers; cancelling one of them does not interrupt closing."""
        idle = self._startup.wire is None and not len(self._discarded) and not len(self._background)
        if self.phase.is_closed and idle:
            return
        if self._closing is None:
            self.phase.step(LinkEvent.CLOSE)
            generation, self.generation = self.generation or self.losses.latest, None
            # Not one of the background tasks: closing ends those.
            closing = self._shut(generation, end)
            self._closing = asyncio.get_running_loop().create_task(closing, name=f"close {self._startup.name}")
        await asyncio.shield(self._closing)

    async def _shut(self, generation: Generation | None, end: bool) -> None:
        failures, ended, holds_state = 0, False, self.losses.holds_state
        try:
            await self._saved.saver.flush(self._limits.close)
            if self.bring_up.task is not None and self._startup.handshaking:
                # The server may be creating a session right now: wait for its id, so that it can be ended.
                await asyncio.wait((self.bring_up.task,), timeout=self._limits.close / 2)
            failures += await self._background.close(self._limits.close)
            self.bring_up.forget()
            self.stream.forget()
            for live in (generation, self._startup.take_begun()):
                if live is None or live.lost or live.session is None or not (end or live.unsaved):
                    continue  # a session that could not be saved is ended too, because it can't be found again
                reply = await live.wire.end(live, self._limits.close)
                # 404: already gone. 405: the server ends its sessions itself.
                ended = reply.seen is None or reply.seen.status in (404, 405)
                failures += not ended
            unused = (
                generation is not None and generation.wire.owns_server and not generation.unsaved and not holds_state
            )
            if end or unused:  # a program that was not used has lost nothing
                await self._saved.forget()
        except Exception as error:  # of a user's memory; closing continues
            self._reporter.strayed(f"an error while closing: {error!r:.200}")
            failures += 1
        finally:
            failures += await self._let_go()
            self._reporter.counted("close_failures", failures)
            self.losses.restored()
            self.generation = None
            self.losses.follow(None)
            self.phase.step(LinkEvent.CLOSED)
            self._closing = None
        session = generation.session if generation is not None else None
        self._reporter.event(LinkClosed, session=session, ended=ended, failures=failures)

    async def _let_go(self) -> int:
        failures = 0
        memory = self._saved.memory
        self._discarded.add(self._startup.drop())
        # A child may take three times `exit` to end, and its descendants some more.
        failures += await self._discarded.wait(self._limits.close + 5 * self._limits.exit)
        try:
            async with asyncio.timeout(self._limits.close):
                if memory is not None:
                    await memory.close()
        except Exception as error:
            self._reporter.forgetting(str(error) or "not closed in time")
            failures += 1
        return failures + await self._background.close(self._limits.close)
