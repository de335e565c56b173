"""The life of a link: coming up, healing, going down. Runs on `core/lifecycle.py` LINK.

It owns the state, the one current generation, the one task on its way up and the one that closes. It refuses to cut a
call in flight on an older generation, and to hear late news of one.
"""

import asyncio
import random
from contextvars import Context
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.events import (
    LinkClosed,
    LinkFailed,
    LinkOpened,
    SessionWasReplaced,
    StreamDropped,
)
from holdfast.core.lifecycle import LINK, LinkEvent, LinkState
from holdfast.core.models import Principal
from holdfast.core.outcome import Seen, Verdict
from holdfast.core.retry import backoff
from holdfast.errors import ConnectFailed, HoldfastError, LeaseClosed, StartTimeout, UsageError
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import closed, not_started
from holdfast.links.calls.exchange import Exchanger
from holdfast.links.calls.inbound import Inbound, Params
from holdfast.links.lifecycle.reseed import Reseeding
from holdfast.links.lifecycle.startup import AuthNeeded, StartFailed, Startup, Wants
from holdfast.links.memory.store import Memory
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.sharers import Sharers
from holdfast.links.wires.base import Generation, Loss, Wire

SUPERSEDED_SECONDS = 30.0  # that calls of a session that was given up have to end before it is ended at the server
CLAIM_SECONDS = 30.0  # a dead process's claim on the server's stream ends after that


class LinkLifecycle:
    """One link's state."""

    def __init__(
        self,
        options: Options,
        startup: Startup,
        exchanger: Exchanger,
        inbound: Inbound,
        background: BackgroundTasks,
        reporter: LinkReporter,
        wants: Wants,
    ) -> None:
        self.state: LinkState = LINK.initial
        self.generation: Generation | None = None
        self.numbers = 0
        self.epoch = 0
        self.retired = False
        """Closed for good by whoever lent it: a call that comes later must not open it again."""
        self.loss: Loss | None = None
        """A lost session that kept something, whose loss has still to be reported to an unsafe call."""
        self.sharers = Sharers()
        self.changed = asyncio.Event()
        """Set, and replaced by a new one, whenever a generation begins or ends."""
        self._options = options
        self._wants_stream = options.stream
        self._limits = options.limits
        self._startup = startup
        startup.saver.superseded = self._superseded
        self._exchanger = exchanger
        self._inbound = inbound
        self._background = background
        self._reporter = reporter
        self._wants = wants
        self._last: Generation | None = None
        self._refused: Seen | None = None
        self._rising: asyncio.Task[Generation | HoldfastError] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._discarded: set[asyncio.Task[None]] = set()
        self.handshake = False

    @property
    def closing(self) -> bool:
        return self._closing is not None

    def abandon(self) -> None:
        """Its event loop is closed, so nothing of it can run any more: start over."""
        self.state, self.generation, self._last = LINK.initial, None, None
        self._rising = self._closing = self._stream = None
        self._exchanger.closing = False
        self._background.abandon()
        self._discarded.clear()
        self._startup.saver.abandon()
        self._startup.drop()

    # Up

    async def ready(self, what: str, until: float | None) -> Generation:
        """The current generation, or the next. Fifty callers wait for one way up; each keeps its own deadline."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        limit, authorizing = began + self._limits.start, self._startup.credentials.authorizing
        spent = authorizing()

        def left() -> float:
            stop = limit + authorizing() - spent  # a person who signs in takes their time
            return (stop if until is None else min(until, stop)) - loop.time()

        if self._rising is not None and asyncio.current_task() is self._rising:
            raise UsageError(
                f"{what}: the reseed hook of {self._startup.name!r} used the link that waits for it",
                server=self._startup.name,
                remedy="use the request() of what the hook is given",
            )
        while self.generation is None:
            if self.retired:
                raise LeaseClosed(
                    f"{what}: the link to {self._startup.name!r} was closed when the run that had it ended",
                    server=self._startup.name,
                    remedy="call inside `async with holdfast.run():`",
                )
            if self._closing is not None:
                if not (await asyncio.wait((self._closing,), timeout=max(0.0, left())))[0]:
                    raise self._late(what, began, until)
                continue
            if self.state is LinkState.CLOSED:
                self._step(LinkEvent.USE)
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
            f"{what}: {self._startup.name!r} did not come up within {span} (phase {self.state.value})",
            server=self._startup.name,
            phase=self.state.value,
            remedy=f"nothing was executed; try again, or raise {'timeout=' if own else 'Limits(start=…)'}",
        )

    async def _rise(self) -> Generation | HoldfastError:
        """Go up from the state that we are in to READY. The only task that does so."""
        old, renewed, starts = self._last, False, 0
        try:
            while True:
                if self._closing is not None:
                    return closed(self._startup.name, "open", False)
                try:
                    generation = await self._climb(old)
                    break
                except StartFailed as failed:
                    starts += 1
                    failed.error.attempts = starts
                    if starts > self._limits.replays:
                        raise failed.error from None
                    self._step(LinkEvent.TRANSPORT_LOST)
                    self._discard(self._startup.drop())
                    await asyncio.sleep(backoff(starts, random.random(), base=self._limits.backoff))
                except AuthNeeded as needed:
                    if renewed or not self._startup.credentials.renewable:
                        raise needed.error from None
                    renewed, self._refused = True, needed.seen
                    self._step(LinkEvent.AUTH_NEEDED)
        except HoldfastError as error:
            told = not_started(error)
            return told if self._closing is not None else await self._fell(told)
        except Exception as error:
            what = f"{self._startup.name!r} did not come up: {error!r:.300}"
            return await self._fell(ConnectFailed(what, server=self._startup.name, phase=self.state.value))
        finally:
            self._rising = None
        if self._closing is not None:  # it ends what we began
            return closed(self._startup.name, "open", False)
        self._startup.begun = None
        self._step(LinkEvent.HANDSHAKE_DONE)
        if old is not None and old is not generation:
            old.successor = generation
            if self._stream is not None:
                self._stream.cancel()
                self._stream = None
        self.generation = self._last = generation
        self._tell_change()
        self._start_stream(generation)
        return generation

    async def _fell(self, error: HoldfastError) -> HoldfastError:
        phase = self.state.value
        wire = self._startup.wire
        if wire is not None and wire.owns_server:
            self._discard(self._startup.drop())
        elif wire is not None and self._last is None:  # else the pool may still carry calls of an older generation
            self._startup.drop()
            await wire.close()
        self._step(LinkEvent.FAILED)
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
        if self.state is LinkState.RESOLVE:
            await startup.resolve(self._refused)
            self._refused = None
            self._step(LinkEvent.RESOLVED)
        if self.state is LinkState.OPEN:
            if startup.resolved is None:
                await startup.resolve(None)
            if await startup.open():
                self._reporter.count["opens"] += 1
                self._reporter.event(LinkOpened)
            self._step(LinkEvent.OPENED)
        if old is not None and not old.lost and old.wire is startup.wire:
            # Only the credentials were renewed: the session stands.
            assert startup.resolved is not None
            old.wire.apply_credentials(old, startup.resolved)
            return old
        kept = old is not None and old.keeps_state and old.answered_unsafe
        lost = self._options.stateful and (kept or self.loss is not None)
        generation = await startup.handshake(self.numbers + 1, old, self._wants, self._inbound, lost)
        self.numbers += 1
        self._reporter.handshake_done(generation)
        self._expect_session(generation)
        await self._settle_in(old, generation)
        return generation

    def _expect_session(self, generation: Generation) -> None:
        """Say once a server that it keeps no state, to somebody who did not say that none is expected."""
        expected = self._options.pinned is None and self._options.prefer is None and self._options.stateful
        offers = self._startup.peer.offers
        if expected and generation.era is Era.Y2026 and self._startup.prefers is Era.Y2025 and not offers.told:
            offers.told = True
            self._reporter.no_session(generation.why)

    async def _settle_in(self, old: Generation | None, new: Generation) -> None:
        """Before anybody's call: restore what the lost session had been told, then let the hook put back more."""
        await self._restore(new)
        elsewhere = new.adopted and self._options.confirm_losses
        if old is not None and old.keeps_state and not old.unsaved and elsewhere:
            self._replaced_elsewhere(old, new)
        elif (old is not None and old.keeps_state) or (new.unreported_loss and not new.adopted):
            await self._replaced(old, new)
        elif new.unreported_loss:  # an earlier life, or another process, has logged it
            self._lost(self.loss or Loss())
        if not self._options.stateful:
            self._restored()
        if new.unreported_loss is (self.loss is None):
            new.unreported_loss = self.loss is not None
            self._startup.saver.soon(new)

    def _replaced_elsewhere(self, old: Generation, new: Generation) -> None:
        """Another link has replaced the lost session for all who share it, and knew whether it kept something: what it
        saved says whether that has still to be reported."""
        self._reporter.count["replacements"] += 1
        self._reporter.warn(
            f"session {_shown(old.session)} was replaced by {_shown(new.session)}, which another process began"
        )
        self._reporter.event(
            SessionWasReplaced,
            old=old.session,
            new=new.session,
            generation=new.number,
            kept_state=new.unreported_loss,
            reseeded=False,
        )
        old.reported_elsewhere = not new.unreported_loss
        if new.unreported_loss:
            self._lost(Loss(old.session, old.number))
        else:
            self.loss = None

    def _lost(self, loss: Loss) -> None:
        self.loss = loss
        self.sharers.lost(loss)

    def _restored(self) -> None:
        self.loss = None
        self.sharers.restored()

    async def _replaced(self, old: Generation | None, new: Generation) -> None:
        """A session that kept something, here or in an earlier life, is over. Ask the hook, tell everybody."""
        name = self._startup.name
        before, kept = (None, True) if old is None else (old.session, old.answered_unsafe)
        reseeded = False
        if self._options.reseed is not None:

            async def send(method: str, params: Params, timeout: float | None) -> dict[str, Any]:
                return await self._exchanger.send(new, method, params, timeout, "reseed")

            hook = Reseeding(name, before, new.session, new.number, kept, send)
            try:
                reseeded = bool(await self._options.reseed(hook))
            except Exception as error:
                self._reporter.strayed(f"the reseed hook raised {error!r:.300}")
        if old is not None:
            old.reseeded = reseeded
        gone = kept and not reseeded
        self._reporter.count["replacements"] += 1
        self._reporter.warn(
            f"session {_shown(before)} was replaced by {_shown(new.session)}{'; what it kept is gone' if gone else ''}"
        )
        self._reporter.event(
            SessionWasReplaced,
            old=before,
            new=new.session,
            generation=new.number,
            kept_state=kept,
            reseeded=reseeded,
        )
        if reseeded:
            self._restored()
        elif kept:
            self._lost(Loss(before, 0 if old is None else old.number))
        elif new.unreported_loss:
            self._lost(self.loss or Loss())

    async def _restore(self, generation: Generation) -> None:
        if generation.era is Era.Y2026:
            return  # the log level rides on each request, and a watch listens anew by itself
        reporters = generation.to_restore
        if not generation.adopted:
            if self._wants.log_level is not None and "logging" in generation.handshake.capabilities:
                reporters.append(("logging/setLevel", {"level": self._wants.log_level}))
            reporters.extend(("resources/subscribe", {"uri": uri}) for uri in self._wants.subscriptions)
        for method, params in reporters:
            try:
                await self._exchanger.send(generation, method, params, self._limits.handshake, "handshake")
            except HoldfastError as error:
                self._reporter.strayed(f"not restored in the new session: {error.what}")

    @property
    def holds_state(self) -> bool:
        """Has an unsafe call left something in the session, or is a loss before it still to be reported?"""
        generation = self.generation or self._last
        return self.loss is not None or (
            generation is not None and generation.keeps_state and generation.answered_unsafe
        )

    async def find_loss(self, generation: Generation) -> Loss | None:
        """A loss that an unsafe call must be told of. Where links share a session, one report is for all of them."""
        loss = self.loss
        if loss is None or not self._options.confirm_losses or not await self._startup.loss_was_reported(generation):
            return self.loss
        if self.loss is loss:
            self.loss, generation.unreported_loss, generation.saved_loss = None, False, False
        return self.loss

    def loss_raised(self) -> None:
        """An unsafe call is being told of the loss."""
        if not self._options.confirm_losses and self.loss is not None:
            self.loss_reported(self.loss)

    def loss_reported(self, loss: Loss) -> None:
        """A caller knows of it: that is part of the saved session, too."""
        if self.loss is not loss:
            return
        self.loss = None
        generation = self.generation or self._last
        if generation is not None and generation.unreported_loss:
            generation.unreported_loss = False
            self._startup.saver.soon(generation)

    def keep_in(self, memory: Memory, principal: Principal) -> None:
        self._startup.keep_in(memory, principal)
        if self.generation is not None:
            self.generation.unsaved = True
            self._startup.saver.soon(self.generation)

    async def settle(self, generation: Generation) -> None:
        """Have a session saved before an unsafe call relies on it, as far as the memory lets us."""
        await self._startup.saver.settle(generation)

    def _superseded(self, generation: Generation) -> None:
        """The memory came back and has another link's session: that one stands, and ours ends after its calls."""
        self._reporter.warn(
            f"session {_shown(generation.session)} could not be saved, and another was: that one is used"
        )
        self.lose(generation, LinkEvent.SESSION_LOST)
        self._background.start(self._end_superseded(generation), "end superseded")

    async def _end_superseded(self, generation: Generation) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SUPERSEDED_SECONDS
        while self._reporter.count["in_flight"] and loop.time() < until:
            await asyncio.sleep(SUPERSEDED_SECONDS / 100)
        await generation.wire.end(generation, self._limits.close)

    def lose(self, generation: Generation, event: LinkEvent, refused: Seen | None = None) -> None:
        """Somebody learned that a generation is over, or its credentials are. Of an old one that is no news."""
        if self.generation is not generation:
            return
        self.generation = None
        self._refused = refused
        self._step(event)
        if event is LinkEvent.AUTH_NEEDED:
            return
        generation.lost = True
        self._startup.saver.lost(generation.session)
        self._tell_change()
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        if event is LinkEvent.TRANSPORT_LOST:
            self._discard(self._startup.drop())

    def heal(self, generation: Generation, seen: Seen, verdict: Verdict) -> bool:
        """Something other than a call met a verdict: False if that heals nothing, and it is an error."""
        if verdict is Verdict.SESSION_LOST:
            self.lose(generation, LinkEvent.SESSION_LOST)
            return True
        if verdict is Verdict.AUTH_NEEDED and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            return True
        return False

    def _renew(self, generation: Generation, seen: Seen) -> None:
        """An idle link's stream met a 401: nobody's call will ask for other credentials, so we do."""
        if self.generation is generation and self._startup.credentials.renewable:
            self.lose(generation, LinkEvent.AUTH_NEEDED, seen)
            self._rising = self._background.start(self._rise(), f"rise {self._startup.name}")

    def _tell_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _step(self, event: LinkEvent) -> None:
        self.state = LINK.next(self.state, event)

    # The server's own stream

    def listen(self) -> None:
        self._wants_stream = True
        if self.generation is not None:
            self._start_stream(self.generation)

    def _start_stream(self, generation: Generation) -> None:
        if self._stream is not None and not self._stream.done():
            return  # credentials were renewed, the stream goes on
        if generation.wire.owns_server or (
            generation.era is Era.Y2025 and generation.session is not None and self._wants_stream
        ):
            self._stream = self._background.start(self._listen(generation), "stream")

    async def wait_listening(self, seconds: float) -> None:
        """Until the server's own stream is open, or refused, or the time is up."""
        generation, stream = self.generation, self._stream
        if generation is None or stream is None or generation.wire.owns_server:
            return
        opened = asyncio.ensure_future(generation.listening.wait())
        try:
            await asyncio.wait((opened, stream), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()

    async def _listen(self, generation: Generation) -> None:
        def lost(seen: Seen, verdict: Verdict) -> bool:
            if verdict is Verdict.AUTH_NEEDED:
                self._renew(generation, seen)
                return False
            self.lose(generation, LinkEvent.TRANSPORT_LOST if generation.wire.owns_server else LinkEvent.SESSION_LOST)
            return True

        def dropped(why: str, resumable: bool) -> None:
            self._reporter.event(StreamDropped, why=why, resumable=resumable)

        async def read() -> None:
            await generation.wire.listen(generation, self._inbound.of(generation), lost, dropped)

        memory = self._startup.memory
        if memory is None or generation.wire.owns_server:
            await read()
            return
        # Several links may share the session: only the holder of the claim reads the stream.
        while True:
            reading: asyncio.Task[None] | None = None
            try:
                while await memory.claim_stream(CLAIM_SECONDS):
                    if reading is None:
                        reading = self._background.start(read(), "claimed stream")
                    await asyncio.wait((reading,), timeout=CLAIM_SECONDS / 3)
                    if reading.done():
                        return
            except HoldfastError as error:
                self._reporter.forgetting(str(error))
            finally:
                if reading is not None:
                    reading.cancel()
            await asyncio.sleep(CLAIM_SECONDS / 3)

    # Down

    async def close(self, end: bool) -> None:
        """Once, however many ask for it; whoever asks may be cancelled, the closing goes on."""
        idle = self._startup.wire is None and not self._discarded and not len(self._background)
        if self.state is LinkState.CLOSED and self._closing is None and idle:
            return
        if self._closing is None:
            before = self.state
            self._step(LinkEvent.CLOSE)
            self._exchanger.closing = True
            self.epoch += 1
            generation, self.generation = self.generation or self._last, None
            self.handshake = before is LinkState.HANDSHAKE
            # Not the owner's task: closing ends those.
            closing = self._shut(generation, end)
            self._closing = asyncio.get_running_loop().create_task(closing, name=f"close {self._startup.name}")
        await asyncio.shield(self._closing)

    async def _shut(self, generation: Generation | None, end: bool) -> None:
        failures, ended, holds_state = 0, False, self.holds_state
        try:
            await self._startup.saver.flush(self._limits.close)
            if self._rising is not None and self.handshake:
                # The server may be making a session right now: wait for its name, so that it can be ended.
                await asyncio.wait((self._rising,), timeout=self._limits.close / 2)
            failures += await self._background.close(self._limits.close)
            self._rising = self._stream = None
            for live in (generation, self._startup.begun):
                if live is None or live.lost or live.session is None or not (end or live.unsaved):
                    continue  # what could not be saved is ended as well: nobody could find it
                reply = await live.wire.end(live, self._limits.close)
                # 404: gone already. 405: the server ends its sessions itself.
                ended = reply.seen is None or reply.seen.status in (404, 405)
                failures += not ended
            unused = (
                generation is not None and generation.wire.owns_server and not generation.unsaved and not holds_state
            )
            if end or unused:  # a program that was not used leaves nothing to miss
                await self._startup.forget()
        except Exception as error:  # a memory of somebody else's; closing goes on
            self._reporter.strayed(f"closing met {error!r:.200}")
            failures += 1
        finally:
            failures += await self._let_go()
            self._reporter.count["close_failures"] += failures
            self._restored()
            self._last = self._startup.begun = self.generation = None
            if self.state is not LinkState.CLOSED:
                self._step(LinkEvent.CLOSED)
            self._exchanger.closing = False
            self._closing = None
        session = generation.session if generation is not None else None
        self._reporter.event(LinkClosed, session=session, ended=ended, failures=failures)

    async def _let_go(self) -> int:
        failures = 0
        memory = self._startup.memory
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


def _shown(session: str | None) -> str:
    """A session in a log: enough to tell two apart, not enough to use it."""
    return "without an id" if session is None else f"{session[:4]}…"
