"""The handshake with a server: which eras it speaks, which one is used, and what both sides declare.

A timeout, a 401, a 429 or a 5xx says nothing about an era: the handshake fails, and the caller decides whether to
repeat it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.eras import (
    UNSUPPORTED_VERSION,
    VERSIONS,
    Era,
    Offers,
    Probe,
    Probed,
    Why,
    read_probe,
    stamp_2026,
)
from holdfast.core.exact import plain
from holdfast.core.handshake import Handshake, Ours, legal_session_id
from holdfast.core.models import BackendSessionId
from holdfast.core.outcome import Outcome
from holdfast.core.verdicts import Broke, Seen, Verdict, judge
from holdfast.errors import HoldfastError, Rejected
from holdfast.links.calls.inbound import Inbound
from holdfast.links.trace import Span, begin_client_span, shortened, traced
from holdfast.links.wires.base import Generation, Message, Patience, Reply, Resolved, Wire


class HandshakeFailed(Exception):
    """An exchange of the handshake failed. The link decides what follows."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.what)
        assert reply.seen is not None
        self.reply = reply
        self.seen: Seen = reply.seen


class Handshaker:
    """One handshake of one server through one wire."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        resolved: Resolved,
        ours: Ours,
        seconds: float,
        deliver_seconds: float,
        inbound: Inbound,
        number: int,
        begun: Callable[[Generation], None],
        attributes: Mapping[str, Any],
    ) -> None:
        """`begun` is called with the session that the server has begun; `attributes` are those of the link's spans."""
        self._name = name
        self._wire = wire
        self._resolved = resolved
        self._ours = ours
        self._seconds = seconds
        self._deliver_seconds = deliver_seconds
        self._receive = inbound.during_handshake(self.deliver)
        self._number = number
        self._begun = begun
        self._attributes = attributes
        self._asked = 0

    async def deliver(self, message: Message) -> Reply:
        """Answer a ping that arrives before the handshake is done."""
        version = VERSIONS[Era.Y2025][0]
        provisional = Generation(0, Era.Y2025, version, Handshake(Era.Y2025, version, {}), self._wire)
        self._wire.apply_credentials(provisional, self._resolved)
        return await self._wire.deliver(provisional, message, self._deliver_seconds)

    async def handshake(self, pinned: Era | None, prefers: Era, offers: Offers, *, asked: bool = False) -> Generation:
        """Make a handshake: in the pinned era, else in the preferred one if the server offers it. `asked`: also where
        2025 holds no session."""
        if pinned is not None:
            try:
                return await (self._initialize() if pinned is Era.Y2025 else self._discover())
            except _OtherEra as error:
                raise error.refusal from None
        passed = offers.passed.get(prefers)
        has_it = asked and passed is not None and passed[1] is Why.NO_SESSION_GIVEN
        first = prefers if has_it else offers.first(prefers, time.monotonic())
        generation = await (self._2025_first(offers, asked) if first is Era.Y2025 else self._2026_first(offers))
        if asked and generation.era is prefers:
            generation.choose(Why.ASKED)  # says nothing of what links that did not ask would take
            return generation
        offers.took(generation.era)
        generation.choose(offers.why(prefers, generation.era))
        return generation

    def assume(self, version: str) -> Generation:
        """A generation of 2026 without any request, for a server whose version the user knows."""
        known: dict[str, Any] = {"supportedVersions": [version], "capabilities": {}}
        generation = self._ready(Handshake(Era.Y2026, version, known), None, assumed=True)
        generation.choose(Why.KNOWN)
        return generation

    async def _2025_first(self, offers: Offers, asked: bool) -> Generation:
        """Send `initialize`, and a probe only where that is refused, or gives no session and none was asked for."""
        asks_2026 = not asked and not offers.has_passed(Era.Y2026, time.monotonic())
        try:
            return await self._initialize(offers if asks_2026 else None)
        except _OtherEra as refused:
            try:
                generation = await self._discover(refused.version)
            except _OtherEra:
                raise refused.refusal from None
            offers.passes(Era.Y2025, Why.ONLY_ONE, time.monotonic())
            return generation

    async def _2026_first(self, offers: Offers) -> Generation:
        version = None
        for _ in range(2):
            try:
                return await self._discover(version)
            except _OtherEra:
                try:
                    generation = await self._initialize()
                except _OtherEra as refused:
                    if refused.version is None:
                        raise refused.refusal from None
                    version = refused.version
                else:
                    offers.passes(Era.Y2026, Why.ONLY_ONE, time.monotonic())
                    return generation
        raise self._no("refused the version that it had offered", "see the server's log")

    async def _discover(self, version: str | None = None) -> Generation:
        """Make a handshake of 2026. Raises `_OtherEra` if the server does not speak it."""
        version = version or VERSIONS[Era.Y2026][0]
        for _ in range(2):
            probe, reply = await self._probe(version)
            if probe.verdict is Probed.IS_2026:
                assert probe.version is not None
                assert reply.message is not None
                return self._ready(Handshake(Era.Y2026, probe.version, plain(reply.message["result"])), None)
            if probe.verdict is Probed.INCOMPATIBLE:
                raise self._no(
                    f"speaks {', '.join(probe.offered)[:200]}, and we speak {', '.join(sum(VERSIONS.values(), ()))}",
                    "update one of the two",
                )
            if probe.verdict is not Probed.ASK_AGAIN or probe.version is None:
                reason = reply.what or "it offers only older versions"
                raise _OtherEra(None, self._no(f"does not speak 2026: {reason}", "leave era= out"))
            version = probe.version
        raise self._no("refused the version that it had offered", "see the server's log")

    async def _probe(self, version: str) -> tuple[Probe, Reply]:
        params = stamp_2026(None, version, self._ours.info, self._ours.capabilities)
        reply = await self._exchange(Era.Y2026, version, "server/discover", params)
        if reply.seen is None:
            assert reply.message is not None
            return read_probe(reply.message["result"], None, None), reply
        self._fail_unless_answered(reply)
        return read_probe(None, reply.seen.code, reply.seen.data), reply

    async def _initialize(self, offers: Offers | None = None) -> Generation:
        """Make a handshake of 2025. With `offers`, a server that gives no session is probed for 2026."""
        params = {
            "protocolVersion": VERSIONS[Era.Y2025][0],
            "capabilities": dict(self._ours.capabilities),
            "clientInfo": dict(self._ours.info),
        }
        reply = await self._exchange(Era.Y2025, VERSIONS[Era.Y2025][0], "initialize", params)
        if reply.seen is not None:
            self._fail_unless_answered(reply)
            raise self._refused(reply)
        assert reply.message is not None
        result: dict[str, Any] = reply.message["result"]
        version = result.get("protocolVersion")
        if version in VERSIONS[Era.Y2026]:
            refusal = self._no(f"answered the handshake with version {version!r}", "see the server's log")
            raise _OtherEra(str(version), refusal)
        if version not in VERSIONS[Era.Y2025]:
            raise self._no(f"answered the handshake with version {str(version)[:40]!r}", "update one of the two")
        if reply.session is not None and not legal_session_id(reply.session):
            raise self._no(
                f"gave a session id that is not visible ASCII of at most 1024 characters: {reply.session[:40]!r}",
                "this is a fault of the server; the specification allows 0x21 to 0x7E only",
            )
        session = BackendSessionId(reply.session) if reply.session is not None else None
        # Without a session, 2026 is better: a 2025 server without one can't send requests during a call; in
        # 2026 it can, inside its answer.
        sessionless = session is None and not self._wire.owns_server
        if sessionless and offers is not None and (better := await self._in_2026(offers)) is not None:
            return better
        generation = self._ready(Handshake(Era.Y2025, str(version), plain(result)), session)
        self._begun(generation)  # from here on the session has to be ended, whatever happens
        delivered = await self._wire.deliver(
            generation, {"jsonrpc": "2.0", "method": "notifications/initialized"}, self._seconds
        )
        if delivered.seen is not None:
            raise HandshakeFailed(delivered)
        return generation

    async def _in_2026(self, offers: Offers) -> Generation | None:
        """A handshake of 2026 with the same server, if it speaks that.
        If the probe fails, the 2025 handshake is used.
        """
        try:
            generation = await self._discover()
        except HandshakeFailed:
            return None
        except (_OtherEra, HoldfastError):
            offers.passes(Era.Y2026, Why.ONLY_ONE, time.monotonic())
            return None
        offers.passes(Era.Y2025, Why.NO_SESSION_GIVEN, time.monotonic())
        return generation

    def _ready(self, handshake: Handshake, session: BackendSessionId | None, *, assumed: bool = False) -> Generation:
        keeps = handshake.era is Era.Y2025 and (session is not None or self._wire.owns_server)
        generation = Generation(
            self._number,
            handshake.era,
            handshake.version,
            handshake,
            self._wire,
            session,
            keeps_state=keeps,
            assumed=assumed,
        )
        self._wire.apply_credentials(generation, self._resolved)
        return generation

    async def _exchange(self, era: Era, version: str, method: str, params: dict[str, Any]) -> Reply:
        self._asked += 1
        provisional = Generation(0, era, version, Handshake(era, version, {}), self._wire)
        self._wire.apply_credentials(provisional, self._resolved)
        id = f"handshake-{self._asked}"
        span = begin_client_span(method, None, self._attributes)
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method, "params": traced(params)}
        until = asyncio.get_running_loop().time() + self._seconds
        reply: Reply | None = None
        try:
            reply = await self._wire.send(provisional, message, {}, Patience(until, self._seconds), self._receive)
            return reply
        finally:
            if span is not None:
                _end(span, id, version, reply)

    def _fail_unless_answered(self, reply: Reply) -> None:
        """Raise unless the answer says something about the era:
        a refusal of the server, in JSON-RPC or as a bare 4xx.
        """
        seen = reply.seen
        assert seen is not None
        if seen.broke is Broke.NOT_AN_ANSWER:
            return
        verdict = judge(seen)
        if verdict not in (Verdict.ANSWER, Verdict.REJECTED, Verdict.SESSION_LOST) or seen.broke is not Broke.NOWHERE:
            raise HandshakeFailed(reply)
        if seen.status == 403:
            raise HandshakeFailed(reply)

    def _refused(self, reply: Reply) -> "HoldfastError | _OtherEra":
        """The error for a refused `initialize`.
        Servers of 2026 refuse it in many ways, by code, by header check or by a bare 4xx of a router: a probe decides,
        and if that is refused too, the first refusal is raised.
        """
        seen = reply.seen
        assert seen is not None
        if seen.broke is Broke.NOT_AN_ANSWER:
            return self._no(f"is not an MCP server: {reply.what}", "check the URL; it often ends in /mcp")
        if seen.code is None:
            refusal = self._no(
                f"refused the handshake: {reply.what}"[:400], "check the URL; it often ends in /mcp", seen.status
            )
            return _OtherEra(None, refusal)
        refusal = self._no(f"refused the handshake: {seen.code} {seen.text}"[:400], "see the server's log", seen.status)
        version = read_probe(None, seen.code, seen.data).version if seen.code == UNSUPPORTED_VERSION else None
        return _OtherEra(version, refusal)

    def _no(self, what: str, remedy: str, status: int | None = None) -> Rejected:
        error = Rejected(f"{self._name!r} {what}", server=self._name, phase="handshake", remedy=remedy)
        error.status = status
        return error


def _end(span: Span, id: str, version: str, reply: Reply | None) -> None:
    """End the span of an exchange, which is cancelled if there is no reply."""
    known = {"jsonrpc.request.id": id, "mcp.protocol.version": version}
    if reply is None:
        span.end(Outcome.CANCELLED, attributes=known)
    elif reply.seen is None:
        span.end(Outcome.OK, attributes={**known, "mcp.session.id": shortened(reply.session)})
    elif reply.seen.code is not None:
        span.end(Outcome.ERROR, reply.seen.code, attributes=known)
    else:
        span.end(Outcome.UNAVAILABLE, attributes=known)


class _OtherEra(Exception):
    """The server refused this era and may speak the other; `version` is set if it named one that we support."""

    def __init__(self, version: str | None, refusal: HoldfastError) -> None:
        super().__init__(refusal.what)
        self.version = version
        self.refusal = refusal
