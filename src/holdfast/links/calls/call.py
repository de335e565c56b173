"""One logical call, repeated where the verdict allows it. An unsafe call never has two effects.

This is the loop around exchanges; the decisions are in `core/retry.py`.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import INPUT_METHODS
from holdfast.core.lifecycle import CircuitState, LinkEvent
from holdfast.core.retry import AfterReplacement, Circumstances, RetryStep, decide, decide_replacement, wait_for
from holdfast.core.verdicts import Broke, Seen, Verdict, is_transport_fault, judge
from holdfast.errors import CircuitOpen, HoldfastError
from holdfast.events import CallReplayed, CircuitChanged
from holdfast.links.calls.errors import TimeSpent, answered, closed, error_for, replaced
from holdfast.links.calls.exchange import Exchanger
from holdfast.links.calls.handlers import CallHandlers, OnProgress, Params
from holdfast.links.calls.unknown_method import as_unknown, may_be_unknown, still_has_session
from holdfast.links.lifecycle.credentials import Credentials
from holdfast.links.lifecycle.lifecycle import LinkLifecycle
from holdfast.links.lifecycle.peer import Peer
from holdfast.links.memory.saver import Saver
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.settings import CurrentSettings
from holdfast.links.trace import add_event
from holdfast.links.wires.base import Generation, Patience, Reply, Resumption

LISTEN = "subscriptions/listen"  # its answer is a stream that may be silent for days
_NOT_2026 = (None, -32600, -32601, -32000, -32001)
"""Codes by which a server, or a router in front of it, refuses a request of the other era: nothing was executed."""
_TRANSPORT_ENDED = (Broke.CONNECT, Broke.AFTER_SEND, Broke.CHILD_DIED)


def pass_circuit(peer: Peer, reporter: LinkReporter, what: str) -> None:
    """Raise `CircuitOpen`, with the reason, if the server's circuit is open."""
    circuit = peer.circuit
    before = circuit.state
    rest = circuit.refusal(asyncio.get_running_loop().time())
    if circuit.state is not before:
        reporter.event(CircuitChanged, state=circuit.state.value)
    if rest is None:
        return
    last = peer.last_failure
    why = f"; the last time: {last.what}" if last is not None else ""
    error = CircuitOpen(
        f"{what}: {reporter.server!r} failed {circuit.failures} times in a row ({circuit.threshold} open its circuit) "
        f"and is not called for another {rest:.1f} s{why}",
        server=reporter.server,
        phase="call",
        retry_after=rest,
        remedy=f"nothing was executed; call again in {rest:.1f} s, when one trial call is allowed",
    )
    if last is not None:
        error.exit_code, error.stderr_tail = last.exit_code, last.stderr_tail
    raise error


class CallContext:
    """What all calls of a link share."""

    def __init__(
        self,
        name: str,
        options: Options,
        lifecycle: LinkLifecycle,
        saver: Saver,
        exchanger: Exchanger,
        peer: Peer,
        reporter: LinkReporter,
        credentials: Credentials,
        settings: CurrentSettings,
    ) -> None:
        self.name = name
        self.options = options
        self.lifecycle = lifecycle
        self.saver = saver
        self.exchanger = exchanger
        self.peer = peer
        self.reporter = reporter
        self.credentials = credentials
        self.settings = settings


class Call:
    """One call of a link."""

    __slots__ = (
        "_answers",
        "_attempts",
        "_began",
        "_closings",
        "_context",
        "_credentials_version",
        "_handlers",
        "_headers",
        "_id",
        "_method",
        "_on_progress",
        "_params",
        "_renewed_for",
        "_replaced",
        "_resumption",
        "_safe",
        "_sharer",
        "_silence",
        "_started",
        "_until",
        "sent_as",
    )

    def __init__(
        self,
        context: CallContext,
        method: str,
        params: Params,
        safe: bool,
        headers: Mapping[str, str],
        until: float | None,
        on_progress: OnProgress | None,
        id: str | int | None,
        handlers: CallHandlers | None = None,
        silence: float | None = None,
        sharer: object | None = None,
        resumption: Resumption | None = None,
    ) -> None:
        self._context = context
        self._resumption = resumption
        self._sharer = sharer
        self._silence = context.options.limits.silence if silence is None else silence
        self._handlers = handlers
        self._method = method
        self._params = params
        self._safe = safe
        self._headers = headers
        self._until = until
        self._on_progress = on_progress
        self._id = id
        self.sent_as = id
        """The id of the request that was sent last."""
        self._answers = 0
        self._attempts = 0
        self._began = asyncio.get_running_loop().time()
        self._replaced = False
        self._renewed_for: tuple[int | None, ...] = ()
        self._closings = context.lifecycle.phase.closings
        self._started = 0.0
        self._credentials_version = 0

    @property
    def attempts(self) -> int:
        """How often it was sent."""
        return self._attempts

    async def run(self) -> tuple[dict[str, Any], Generation]:
        """Return the result and the generation that produced it, or raise an error that says what may be done next."""
        lifecycle = self._context.lifecycle
        while True:
            if lifecycle.phase.closings != self._closings and self._attempts:
                raise closed(self._context.name, self._method, False)  # it was closed while we waited to try again
            self._closings = lifecycle.phase.closings
            generation = lifecycle.generation
            if generation is None or self._context.peer.circuit.state is not CircuitState.CLOSED:
                generation = await self._come_up()
            own = None if self._safe else lifecycle.losses.sharers.loss_of(self._sharer)
            if not self._safe and (generation.unsaved or lifecycle.losses.pending is not None or own is not None):
                if generation.unsaved:
                    await self._context.saver.settle(generation)
                    if lifecycle.generation is not generation:
                        continue  # another link's session is used, and ours was given up
                if (loss := await lifecycle.losses.find(generation) or own) is not None:
                    lifecycle.losses.raised()
                    lifecycle.losses.sharers.reported(self._sharer)
                    raise replaced(self._context.name, self._method, loss, generation, self._attempts)
            if (
                lifecycle.stream.opening is generation
                and self._method in INPUT_METHODS
                and (lifecycle.stream.has_listener or self._context.settings.now.ours.capabilities)
            ):
                await lifecycle.stream.before_questions(generation, self._until)
                if lifecycle.phase.closings != self._closings:
                    raise closed(self._context.name, self._method, False)
                if lifecycle.generation is not generation:
                    continue
            self._attempts += 1
            reply = await self._try(generation)
            if reply.seen is None:
                if not self._safe:
                    generation.unsafe_answered()
                self._succeeded()
                assert reply.message is not None
                return reply.message["result"], generation
            await self._after(generation, reply, reply.seen)

    async def _come_up(self) -> Generation:
        circuit = self._context.peer.circuit
        self._pass_circuit()
        try:
            return await self._context.lifecycle.ready(self._method, self._until)
        except BaseException:
            circuit.gave_up()  # a trial without a result must not block the next
            raise

    def _succeeded(self) -> None:
        circuit = self._context.peer.circuit
        before = circuit.state
        circuit.succeeded()
        if circuit.state is not before:
            self._context.reporter.event(CircuitChanged, state=circuit.state.value)

    async def _try(self, generation: Generation) -> Reply:
        context = self._context
        self._started = asyncio.get_running_loop().time()
        self._answers = context.peer.circuit.answers
        self._credentials_version = generation.credentials_version
        self.sent_as = context.exchanger.new_id() if self._id is None else self._id
        try:
            return await context.exchanger.exchange(
                generation,
                self._method,
                self._params,
                self._headers,
                Patience(self._until, None if self._method == LISTEN else self._silence),
                self._on_progress,
                self.sent_as,
                self._handlers,
                self._resumption,
            )
        except asyncio.CancelledError:
            context.peer.circuit.gave_up()
            if not self._safe:
                generation.unsafe_answered()  # as far as we know
            raise

    def _pass_circuit(self) -> None:
        pass_circuit(self._context.peer, self._context.reporter, self._method)

    async def _after(self, generation: Generation, reply: Reply, seen: Seen) -> None:
        """Raise an error, or return when the call may be tried again."""
        context = self._context
        verdict = judge(seen, context.options.verdict_rules)
        refused = verdict in (Verdict.ANSWER, Verdict.REJECTED) and 400 <= (seen.status or 0) < 500
        if generation.assumed and refused and seen.code in _NOT_2026:
            verdict = Verdict.SESSION_LOST  # the server may be of 2025 after all: a handshake decides
        elif (
            verdict is Verdict.SESSION_LOST
            and may_be_unknown(self._method, seen)
            # A session that began for this call is not what is unknown, and needs no ping.
            and (self._replaced or await still_has_session(context.exchanger, generation, self._until))
        ):
            verdict, seen = Verdict.ANSWER, as_unknown(seen)
        self._account(verdict, seen, generation)
        if context.lifecycle.phase.closings != self._closings:
            raise closed(context.name, self._method, verdict is not Verdict.NOT_SENT)
        step = decide(verdict, self._circumstances(seen))
        if generation.wire.owns_server and seen.broke in _TRANSPORT_ENDED:
            context.lifecycle.lose(generation, LinkEvent.TRANSPORT_LOST)
            if verdict is Verdict.NOT_SENT:
                step = RetryStep.REPLACE  # not executed, and the session that it relied on was lost with the wire
        if step is RetryStep.RETURN:
            raise answered(context.name, self._method, seen, self._fields(seen), reply)
        if step is RetryStep.RAISE:
            raise self._named(self._error(verdict, reply), generation)
        if step is RetryStep.RENEW:
            if (
                generation.credentials_version == self._credentials_version
            ):  # else another call has had them renewed meanwhile
                self._renewed_for += (seen.status,)
                context.lifecycle.lose(generation, LinkEvent.AUTH_NEEDED, seen)
        elif step is RetryStep.REPLACE:
            await self._replace(generation)
        else:
            await self._pause(verdict, seen, reply, generation)
        context.reporter.counted("replays")
        context.reporter.event(CallReplayed, method=self._method, attempt=self._attempts, why=verdict.value)
        add_event("replayed", attempt=self._attempts, verdict=verdict.value)

    def _error(self, verdict: Verdict, reply: Reply) -> HoldfastError:
        spent = TimeSpent(
            asyncio.get_running_loop().time() - self._began,
            self._context.options.limits.replays,
            self._silence,
            None if self._until is None else self._until - self._began,
        )
        return error_for(self._context.name, self._method, "call", verdict, reply, self._attempts, spent)

    def _fields(self, seen: Seen) -> Any:
        return {"server": self._context.name, "phase": "call", "attempts": self._attempts} | (
            {"status": seen.status} if seen.status is not None else {}
        )

    def _named(self, error: HoldfastError, generation: Generation) -> HoldfastError:
        error.session = generation.session
        if generation.successor is not None:
            error.new_session = generation.successor.session
        return error

    def _account(self, verdict: Verdict, seen: Seen, generation: Generation) -> None:
        circuit, loop = self._context.peer.circuit, asyncio.get_running_loop()
        silent = seen.broke is Broke.NO_ANSWER_IN_TIME
        if generation.wire.owns_server and (silent or seen.broke in _TRANSPORT_ENDED):
            circuit.gave_up()  # unlike a failed start, it says nothing about other links' processes
        elif verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN) and is_transport_fault(
            seen, circuit.answers > self._answers
        ):
            if circuit.failed(self._started, loop.time()):
                self._context.reporter.event(CircuitChanged, state=circuit.state.value)
        elif silent:
            circuit.gave_up()
        else:
            self._succeeded()
        if verdict is Verdict.UNKNOWN:
            self._context.reporter.counted("unknown_outcomes")
        executed = verdict in (Verdict.UNKNOWN, Verdict.ANSWER) or seen.broke is Broke.TOO_LARGE
        if executed and not self._safe:
            generation.unsafe_answered()

    def _circumstances(self, seen: Seen) -> Circumstances:
        left = None if self._until is None else self._until - asyncio.get_running_loop().time()
        return Circumstances(
            self._safe,
            self._attempts,
            self._context.options.limits.replays,
            not self._context.credentials.may_renew(seen, self._renewed_for),
            self._context.credentials.renewable,
            seen.retry_after,
            left,
        )

    async def _replace(self, generation: Generation) -> None:
        """The session is lost: begin a new one in any case, then decide whether this call may run in it."""
        context = self._context
        context.lifecycle.lose(generation, LinkEvent.SESSION_LOST)
        new = await context.lifecycle.ready(self._method, self._until)
        self._replaced = True
        decision = decide_replacement(
            safe=self._safe,
            kept_state=generation.held_state,
            stateful=context.options.stateful,
            reseeded=generation.reseeded or generation.reported_elsewhere,
            tries_left=self._attempts <= context.options.limits.replays,
        )
        if decision is AfterReplacement.RAISE:
            if not self._safe:
                loss, own = context.lifecycle.losses.pending, context.lifecycle.losses.sharers.loss_of(self._sharer)
                if loss is not None and loss.generation == generation.number:
                    context.lifecycle.losses.raised()
                if own is not None and own.generation == generation.number:
                    context.lifecycle.losses.sharers.reported(self._sharer)
            raise replaced(context.name, self._method, generation, new, self._attempts)

    async def _pause(self, verdict: Verdict, seen: Seen, reply: Reply, generation: Generation) -> None:
        wait = wait_for(
            verdict, seen.retry_after, self._attempts, random.random(), base=self._context.options.limits.backoff
        )
        left = None if self._until is None else self._until - asyncio.get_running_loop().time()
        if left is not None and wait >= left:
            raise self._named(self._error(verdict, reply), generation)
        await asyncio.sleep(wait)
