"""One live, self-healing connection to one MCP server. Any task may use it, or close it; a closed one starts over.

It owns the public face: `request`, `notify`, `watch`, `close`. It carries JSON-RPC and refuses to know tools. How
messages travel is a wire's, how it comes up and heals is `lifecycle.py`, what a call does about a fault is `call.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, includes
from holdfast.core.lifecycle import LinkState
from holdfast.core.models import Principal
from holdfast.core.outcome import judge
from holdfast.core.retry import is_safe
from holdfast.errors import Busy, UsageError
from holdfast.links.background import BackgroundTasks, cancelling
from holdfast.links.calls.call import Call, CallContext, pass_circuit
from holdfast.links.calls.errors import closed, error_for
from holdfast.links.calls.exchange import NO_HEADERS, Exchanger
from holdfast.links.calls.inbound import CallHandlers, Inbound, OnNotification, OnProgress, OnRequest
from holdfast.links.calls.watch import Watch
from holdfast.links.lifecycle.lifecycle import LinkLifecycle
from holdfast.links.lifecycle.peer import peer_of
from holdfast.links.lifecycle.startup import Startup
from holdfast.links.memory.store import Memory
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.sharers import Sharers
from holdfast.links.target import Target, check_headers, target_of
from holdfast.links.wires.base import Generation, Loss, Message


class Link:
    """`Link("https://example.com/mcp")`, or to a server object. Opens on first use; `close()` ends the session."""

    def __init__(
        self, target: Target | str | object, options: Options | None = None, *, name: str | None = None
    ) -> None:
        options = options or Options()
        where = target_of(target)
        self.name = name or where.name
        self.ours = Ours(options.client_info, options.capabilities)
        self.log_level = options.log_level
        self.subscriptions: dict[str, None] = {}
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = 0
        self._memory = options.memory
        self._touch_every = None if options.memory is None else options.memory.touch_every
        self._touched = float("-inf")
        self._reporter = LinkReporter(self.name, options.on_event, options.clock)
        self._background = BackgroundTasks(self._reporter.task_failed)
        self._inbound = Inbound(self._background, self._tell)
        self._inbound.stray, self._inbound.failed = self._reporter.strayed, self._reporter.handler_failed
        self.handle(options.on_request, options.on_notification)
        peer = peer_of(where)
        peer.circuit.threshold = options.limits.circuit
        self._startup = Startup(
            self.name,
            where,
            options.limits,
            self._background,
            peer,
            era=options.pinned,
            prefers=options.prefers,
            principal=options.principal,
            memory=options.memory,
            reporter=self._reporter,
            verdict_rules=options.verdict_rules,
            pool=options.pool,
            known_json=options.known_json,
        )
        self._exchanger = Exchanger(self.name, self, self._inbound, self._background, options.limits)
        self._lifecycle = LinkLifecycle(
            options, self._startup, self._exchanger, self._inbound, self._background, self._reporter, self
        )
        self._calls = CallContext(
            self.name,
            options,
            self._lifecycle,
            self._exchanger,
            peer,
            self._reporter,
            self._startup.credentials.renewable,
        )

    # What it is

    @property
    def principal(self) -> Principal:
        """For whom it calls."""
        return self._options.principal

    @property
    def phase(self) -> LinkState:
        return self._lifecycle.state

    @property
    def era(self) -> Era | None:
        generation = self._lifecycle.generation
        return generation.era if generation is not None else None

    @property
    def session_id(self) -> str | None:
        generation = self._lifecycle.generation
        return generation.session if generation is not None else None

    @property
    def generation(self) -> int:
        """How many handshakes there were, adopted ones included."""
        return self._lifecycle.numbers

    @property
    def handshake(self) -> Handshake | None:
        generation = self._lifecycle.generation
        return generation.handshake if generation is not None else None

    @property
    def keeps_state(self) -> bool:
        """Can the server remember something for this link alone? It gave a session id, or is a 2025 program of ours."""
        generation = self._lifecycle.generation
        if generation is None or generation.era is Era.Y2026:
            return False
        return generation.session is not None or generation.wire.owns_server

    @property
    def keeps_child(self) -> bool:
        """Is the server a program, or object, that ends with this link?"""
        generation = self._lifecycle.generation
        return generation is not None and generation.wire.owns_server

    @property
    def background(self) -> BackgroundTasks:
        """Holds the tasks of whoever wraps this link; they end when it closes."""
        return self._background

    def statistics(self) -> LinkStatistics:
        return self._reporter.statistics()

    def __repr__(self) -> str:
        session = self.session_id
        shown = f" session={session[:4]}…" if session else ""
        inflight = self._reporter.count["in_flight"]
        return f"<Link {self.name} {self.phase.name} gen={self.generation}{shown} inflight={inflight}>"

    # What it does

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, *, timeout: float | None = None) -> Handshake:
        """Come up now instead of at the first call."""
        self._enter_loop()
        if self._lifecycle.generation is None:
            pass_circuit(self._calls.peer, self._reporter, "open")
        try:
            return (await self._lifecycle.ready("open", self._until(timeout))).handshake
        except BaseException:
            self._calls.peer.circuit.gave_up()
            raise

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        safe: bool | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        silence: float | None = None,
        on_progress: OnProgress | None = None,
        id: str | int | None = None,
        handlers: CallHandlers | None = None,
        sharer: object | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result. `safe`: it may be repeated (else the method decides; a tool call may
        not). `timeout` is a total, replays included; `silence` is the longest span without a sign of life, by default
        `Limits.silence`. `handlers` take what the server says on this call's own stream. `sharer`: for which of the
        link's `sharers` it is."""
        self._enter_loop()
        _check(method, params, headers, self.name)
        count, limit = self._reporter.count, self._options.limits.in_flight
        if count["in_flight"] >= limit:
            raise Busy(
                f"{method}: {count['in_flight']} of {limit} calls to {self.name!r} are in flight",
                server=self.name,
                phase="call",
                remedy="wait for some to end, or raise Limits(in_flight=…)",
            )
        count["in_flight"] += 1
        count["calls"] += 1
        try:
            call = Call(
                self._calls,
                method,
                params,
                is_safe(method, safe),
                headers or NO_HEADERS,
                self._until(timeout),
                on_progress,
                id,
                handlers,
                silence,
                sharer,
            )
            result, generation = await call.run()
        finally:
            count["in_flight"] -= 1
        if method in _REMEMBERED and params is not None:
            self._remember(method, params, generation)
        if self._touch_every is not None:
            self._touch()
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; it arrives at most once. In 2026, HTTP has none from clients: there nothing is sent."""
        self._enter_loop()
        _check(method, params, None, self.name)
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params:
            message["params"] = dict(params)
        healed = False
        while True:
            generation = self._lifecycle.generation or await self._lifecycle.ready(method, None)
            if generation.era is Era.Y2026 and not generation.wire.owns_server:
                return
            reply = await self._exchanger.tell(generation, message)
            if reply.seen is None:
                return
            # It was turned away, so telling it again in the healed session tells it once.
            verdict = judge(reply.seen, self._options.verdict_rules)
            if healed or not self._lifecycle.heal(generation, reply.seen, verdict):
                raise error_for(self.name, method, "notify", verdict, reply, 1)
            healed = True

    async def watch(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
        partial: bool = False,
    ) -> Watch:
        """Hear of changes, through `on_notification`, whatever era the server speaks and however often it comes back.
        Returns once the server has agreed. A 2025 server tells list changes unasked; URIs are subscribed to there.
        `partial`: some URIs may be refused, as long as one is not; `Watch.agreed` names the others."""
        self._enter_loop()
        kinds = [
            name
            for name, wanted in (
                ("toolsListChanged", tools),
                ("promptsListChanged", prompts),
                ("resourcesListChanged", resources),
            )
            if wanted
        ]
        self._watches += 1
        watch = Watch(
            self._lifecycle,
            self._exchanger,
            self._inbound,
            self._reporter,
            self._options.limits,
            kinds,
            uris,
            f"watch-{self._watches}",
            partial,
        )
        watch.task = self._background.start(watch.run(), "watch")
        try:
            await asyncio.shield(watch.started)
        except asyncio.CancelledError:
            watch.close()
            if watch.started.cancelled() and not cancelling():
                raise closed(self.name, "watch", False) from None
            raise
        return watch

    def listen(self) -> None:
        """Read the server's own stream from now on, where `Options(stream=False)` had left it alone. 2025 only."""
        self._lifecycle.listen()

    async def wait_listening(self, seconds: float) -> None:
        """Until the server's own stream is open, where it has one and we want it; at most so long."""
        await self._lifecycle.wait_listening(seconds)

    def handle(self, on_request: OnRequest | None, on_notification: OnNotification | None) -> None:
        """Who answers the server's requests and takes its notifications from now on."""
        self._inbound.on_request = on_request
        self._inbound.on_notification = on_notification

    def introduce(self, info: Mapping[str, Any], capabilities: Mapping[str, Any]) -> None:
        """Say who we are, before the handshake; after it, a 2025 server hears no more about us."""
        if self.era is Era.Y2025 and not includes(self.ours.capabilities, capabilities):
            missing = sorted(set(capabilities) - set(self.ours.capabilities))
            raise UsageError(
                f"the handshake with {self.name!r} was made without {missing}",
                server=self.name,
                remedy="give capabilities= to the link's Options, or introduce before its first use",
            )
        self.ours = Ours(info, {**self.ours.capabilities, **capabilities})

    def keep_in(self, memory: Memory, principal: Principal) -> None:
        """Keep the session in this memory from now on: the link came up before anybody knew whose it would be."""
        self._memory, self._touch_every = memory, memory.touch_every
        self._lifecycle.keep_in(memory, principal)

    @property
    def sharers(self) -> Sharers:
        """Who shares the link, and has to be told of a loss each for themselves."""
        return self._lifecycle.sharers

    @property
    def unreported_loss(self) -> Loss | None:
        """What the next unsafe call will be told: that a session was replaced."""
        return self._lifecycle.loss

    @property
    def holds_state(self) -> bool:
        """Has an unsafe call left something in the session, or is a loss before it still to be reported?"""
        return self._lifecycle.holds_state

    def loss_reported(self, loss: Loss) -> None:
        """A caller has read of it; see `Options.confirm_losses`."""
        self._lifecycle.loss_reported(loss)

    def prefer(self, era: Era) -> None:
        """Which era to take where the server offers both, said before the first handshake: later it is no news."""
        if not self._lifecycle.numbers:
            self._startup.prefers = era

    def retire(self) -> None:
        """Whoever lent it takes it back and closes it: from then on its use raises `LeaseClosed`."""
        self._lifecycle.retired = True

    async def close(self, *, end: bool | None = None) -> None:
        """Let go of everything, in bounded time. `end=False` leaves the server's session alive for whoever adopts it;
        the default ends it, unless a memory keeps it."""
        self._enter_loop()
        await self._lifecycle.close(self._memory is None if end is None else end)

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if self.phase is not LinkState.CLOSED and not self._loop.is_closed():
                raise UsageError(
                    f"the link to {self.name!r} belongs to another event loop",
                    server=self.name,
                    remedy="use one link per event loop, or close it first",
                )
            self._lifecycle.abandon()
        self._loop = loop

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def _tell(self, generation: Generation, message: Message) -> Any:
        return await self._exchanger.tell(generation, message)

    async def touch(self) -> None:
        """The memory's session is in use, although nobody calls."""
        await self._startup.touch()

    def _touch(self) -> None:
        now, memory = asyncio.get_running_loop().time(), self._memory
        if memory is not None and self._touch_every is not None and now - self._touched >= self._touch_every:
            self._touched = now
            self._background.start(self._startup.touch(), "touch")

    def _remember(self, method: str, params: Mapping[str, Any], generation: Generation) -> None:
        """What the session was told, so that a new one can be told the same."""
        uri = params.get("uri")
        if method == "logging/setLevel":
            self.log_level = params.get("level")
        elif method == "resources/subscribe" and isinstance(uri, str):
            self.subscriptions[uri] = None
        elif method == "resources/unsubscribe" and isinstance(uri, str):
            self.subscriptions.pop(uri, None)
        self._startup.saver.soon(generation)


def _check(method: object, params: object, headers: Mapping[str, str] | None, server: str) -> None:
    """A caller's mistake, told before anything is sent."""
    what = None
    if not isinstance(method, str) or not method:
        what = f"method={method!r:.80} is not a method's name"
    elif params is not None:
        if not isinstance(params, Mapping):
            what = f"the parameters of {method!r:.80} are a {type(params).__name__}, not a mapping"
        else:
            meta = cast("Mapping[str, Any]", params).get("_meta")
            if meta is not None and not isinstance(meta, Mapping):
                what = f"_meta in the parameters of {method!r:.80} is a {type(meta).__name__}, not a mapping"
    if what is not None:
        raise UsageError(what, server=server, phase="call", remedy="see docs/links.md")
    if headers:
        check_headers(headers)


_REMEMBERED = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
