"""One connection to one MCP server that recovers automatically.
Any task may use or close it; a closed link can be used again.

For users: `open`, `request`, `notify`, `watch`, `close`. It carries JSON-RPC and knows nothing of tools. Code that
wraps a link finds its parts as attributes: `inbound` (what answers the server), `stream` (the server's own stream),
`losses`, `introduction`, `saved`, `lifecycle`, `background`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from holdfast.core.eras import NAMED_BY, Era
from holdfast.core.handshake import Handshake, Ours
from holdfast.core.lifecycle import CircuitState, LinkState
from holdfast.core.retry import is_safe
from holdfast.core.verdicts import judge
from holdfast.errors import Busy, ErrorAnswer, UsageError
from holdfast.links.background import BackgroundTasks, cancelling
from holdfast.links.calls.call import Call, CallContext, pass_circuit
from holdfast.links.calls.errors import closed, error_for
from holdfast.links.calls.exchange import NO_HEADERS, Exchanger
from holdfast.links.calls.handlers import CallHandlers, OnProgress, OnResumeToken
from holdfast.links.calls.inbound import Inbound
from holdfast.links.calls.observed import RequestObserver
from holdfast.links.calls.watch import Watch
from holdfast.links.introduction import Introduction
from holdfast.links.lifecycle.lifecycle import LinkLifecycle
from holdfast.links.lifecycle.losses import Losses
from holdfast.links.lifecycle.peer import peer_of
from holdfast.links.lifecycle.phase import LinkPhase
from holdfast.links.lifecycle.startup import Startup
from holdfast.links.lifecycle.succession import Succession
from holdfast.links.memory.session import SavedSession
from holdfast.links.options import LinkStatistics, Options
from holdfast.links.reporter import LinkReporter
from holdfast.links.settings import REMEMBERED, CurrentSettings, SessionSettings
from holdfast.links.target import Target, check_headers, check_resume_token, target_of
from holdfast.links.wires.base import Message, Resumption


class Link:
    """`Link("https://example.com/mcp")`, or to a server object. Opens on first use; `close()` ends the session."""

    def __init__(
        self, target: Target | str | object, options: Options | None = None, *, name: str | None = None
    ) -> None:
        options = options or Options()
        where = target_of(target)
        self.name = name or where.name
        self.principal = options.principal
        """The principal on whose behalf it calls."""
        self.clock = options.clock
        self._options = options
        self._settings = CurrentSettings(
            SessionSettings(
                Ours(options.client_info, options.capabilities),
                options.principal,
                options.pinned,
                options.prefers,
                options.log_level,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = 0
        reporter = self._reporter = LinkReporter(self.name, options.on_event, options.clock, options.wants_requests)
        observer = self._observer = RequestObserver(reporter, where)
        background = self.background = BackgroundTasks(reporter.task_failed)
        """For tasks of code that wraps this link; they end when it closes."""
        phase = LinkPhase()
        self.inbound = Inbound(background, reporter, options.limits.deliver)
        self.inbound.handle(options.on_request, options.on_notification)
        self._exchanger = Exchanger(self.name, self._settings, phase, self.inbound, background, options.limits)
        peer = peer_of(where, options.limits.circuit, options.principal if options.own_circuit else None)
        self.saved = SavedSession(options.memory, self._settings, background, reporter)
        startup = Startup(
            self.name,
            where,
            options,
            background,
            peer,
            self._settings,
            self.saved,
            self.inbound,
            reporter,
            observer.attributes,
        )
        losses = self.losses = Losses(self.saved, options.confirm_losses)
        succession = Succession(options, startup, self.saved, self._exchanger, reporter, self._settings, losses)
        self.lifecycle = LinkLifecycle(
            options, phase, startup, self.saved, succession, losses, self.inbound, background, reporter
        )
        self.stream = self.lifecycle.stream
        self.introduction = Introduction(self.name, self._settings, self.lifecycle)
        self._calls = CallContext(
            self.name,
            options,
            self.lifecycle,
            self.saved.saver,
            self._exchanger,
            peer,
            reporter,
            startup.credentials,
            self._settings,
        )

    # What it is

    @property
    def log_level(self) -> str | None:
        """The minimum level of log messages requested from the server; can be set before the first use."""
        return self._settings.now.log_level

    @log_level.setter
    def log_level(self, level: str | None) -> None:
        self._settings.change(replace(self._settings.now, log_level=level))

    @property
    def phase(self) -> LinkState:
        """The state of the link, from closed to ready."""
        return self.lifecycle.phase.state

    @property
    def era(self) -> Era | None:
        """The era that was agreed on; None before the first handshake."""
        generation = self.lifecycle.generation
        return generation.era if generation is not None else None

    @property
    def session_id(self) -> str | None:
        """The server's session id; None where there is none."""
        generation = self.lifecycle.generation
        return generation.session if generation is not None else None

    @property
    def generation(self) -> int:
        """The number of handshakes so far, including adopted sessions."""
        return self.lifecycle.bring_up.numbers

    @property
    def handshake(self) -> Handshake | None:
        """What both sides declared at the latest handshake; None before the first."""
        generation = self.lifecycle.generation
        return generation.handshake if generation is not None else None

    @property
    def keeps_state(self) -> bool:
        """Whether the server can keep state for this link alone:
        it gave a session id, or is a 2025 program of this link.
        """
        generation = self.lifecycle.generation
        if generation is None or generation.era is Era.Y2026:
            return False
        return generation.session is not None or generation.wire.owns_server

    @property
    def keeps_child(self) -> bool:
        """Whether the server is a program or object that ends with this link."""
        generation = self.lifecycle.generation
        return generation is not None and generation.wire.owns_server

    @property
    def circuit(self) -> CircuitState:
        """The state of its server's circuit, which all links to that server share."""
        return self._calls.peer.circuit.state

    def statistics(self) -> LinkStatistics:
        """Counts since the link was made."""
        return self._reporter.statistics()

    def __repr__(self) -> str:
        session = self.session_id
        shown = f" session={session[:4]}…" if session else ""
        in_flight = self._reporter.in_flight
        return f"<Link {self.name} {self.phase.name} gen={self.generation}{shown} inflight={in_flight}>"

    # What it does

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, *, timeout: float | None = None) -> Handshake:
        """Connect now instead of with the first call."""
        self._enter_loop()
        if self.lifecycle.generation is None:
            pass_circuit(self._calls.peer, self._reporter, "open")
        until = _until(timeout)
        try:
            generation = await self.lifecycle.ready("open", until)
        except BaseException:
            self._calls.peer.circuit.gave_up()
            raise
        if generation.assumed:
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            try:
                await self.request("server/discover", timeout=left)
            except ErrorAnswer:
                if self.era is not Era.Y2025:  # else it was assumed wrongly, and the handshake of 2025 stands
                    raise
            generation = self.lifecycle.generation or generation
        return generation.handshake

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
        resume: str | None = None,
        on_resume_token: OnResumeToken | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result.
        `safe` says whether it may be repeated (by default the method decides; a tool call may not). `timeout` is the
        total in seconds, including replays; `silence` is the longest time without a sign of life, by default
        `Limits.silence`. `handlers` handle messages on this call's own stream. `sharer` is the one of the link's
        `sharers` that calls. `on_resume_token` is called with the ids of events of the answer's stream; the call can
        then be abandoned without being cancelled at the server, and `resume`, given the last id, gets the rest of the
        answer without another execution. Both have an effect only in 2025 over HTTP.
        """
        self._enter_loop()
        _check(method, params, headers, self.name)
        if resume is not None:
            check_resume_token(resume, self.name)
        in_flight, limit = self._reporter.in_flight, self._options.limits.in_flight
        if in_flight >= limit:
            raise Busy(
                f"{method}: {in_flight} of {limit} calls to {self.name!r} are in flight",
                server=self.name,
                phase="call",
                remedy="wait for some of them to finish, or in Python raise Limits(in_flight=…)",
            )
        self._reporter.call_began()
        observed = self._observer.begin(method, params)
        call: Call | None = None
        try:
            call = Call(
                self._calls,
                method,
                params,
                is_safe(method, safe),
                headers or NO_HEADERS,
                _until(timeout),
                on_progress,
                id,
                handlers,
                silence,
                sharer,
                _resumption(resume, on_resume_token, self._reporter),
            )
            result, generation = await call.run()
            if observed is not None:
                observed.answered(result, call.attempts, call.sent_as, generation)
        except BaseException as error:
            if observed is not None:
                attempts, sent_as = (call.attempts, call.sent_as) if call is not None else (0, id)
                observed.failed(error, attempts, sent_as, self.lifecycle.generation)
            raise
        finally:
            self._reporter.call_ended()
        if method == "server/discover" and generation.era is Era.Y2026:
            generation.discovered(result)  # the server may have been deployed again
        if method in REMEMBERED and params is not None:
            self._settings.change(self._settings.now.after(method, params))
            self.saved.saver.soon(generation)
        self.saved.touch_soon()
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; it arrives at most once.
        In 2026 over HTTP clients send no notifications: nothing is sent.
        """
        self._enter_loop()
        _check(method, params, None, self.name)
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params:
            message["params"] = dict(params)
        recovered = False
        while True:
            generation = self.lifecycle.generation or await self.lifecycle.ready(method, None)
            if generation.era is Era.Y2026 and not generation.wire.owns_server:
                return
            reply = await self._exchanger.deliver(generation, message)
            if reply.seen is None:
                return
            # It was refused, so sending it again in the new session delivers it only once.
            verdict = judge(reply.seen, self._options.verdict_rules)
            if recovered or not self.lifecycle.recover_from(generation, reply.seen, verdict):
                raise error_for(self.name, method, "notify", verdict, reply, 1)
            recovered = True

    async def watch(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
        partial: bool = False,
    ) -> Watch:
        """Receive change notifications through `on_notification`, in either era and after every reconnect.
        Returns once the server has agreed. A 2025 server reports list changes without a subscription; URIs are
        subscribed to. With `partial`, some of the URIs may be refused, but not all; `Watch.agreed` has the accepted
        ones.
        """
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
            self.lifecycle,
            self._exchanger,
            self.inbound,
            self._reporter,
            self._options.limits,
            kinds,
            uris,
            f"watch-{self._watches}",
            partial,
        )
        watch.start(self.background)
        try:
            await asyncio.shield(watch.started)
        except asyncio.CancelledError:
            watch.close()
            if watch.started.cancelled() and not cancelling():
                raise closed(self.name, "watch", False) from None
            raise
        return watch

    async def close(self, *, end: bool | None = None) -> None:
        """Close in bounded time.
        `end=False` leaves the server's session alive, to be adopted; by default it is ended unless a memory stores it.
        """
        self._enter_loop()
        await self.lifecycle.close(self.saved.memory is None if end is None else end)

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self.lifecycle.phase.is_closed and not self._loop.is_closed():
                raise UsageError(
                    f"the link to {self.name!r} belongs to another event loop",
                    server=self.name,
                    remedy="use one link per event loop, or close it first",
                )
            self.lifecycle.abandon()
            self._exchanger.abandon()
        self._loop = loop


def _resumption(token: str | None, on_token: OnResumeToken | None, reporter: LinkReporter) -> Resumption | None:
    if token is None and on_token is None:
        return None
    if on_token is None:
        return Resumption(token)

    async def take(token: str) -> None:
        try:
            await on_token(token)
        except Exception as error:
            reporter.handler_failed("a callback for resume tokens", error)

    return Resumption(token, take)


def _until(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout


def _check(method: object, params: object, headers: Mapping[str, str] | None, server: str) -> None:
    """Raise for a caller's mistake, before anything is sent."""
    what = None
    if not isinstance(method, str) or not method:
        what = f"method={method!r:.80} is not the name of a method"
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
        named = {name: value for name, value in headers.items() if name.lower() != "mcp-name" or method in NAMED_BY}
        check_headers(named)
