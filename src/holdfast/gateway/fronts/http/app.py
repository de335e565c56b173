"""The gateway's ASGI application: who may come in, health checks, and which era a request belongs to.

What is done for a request is in `http_2025.py` and `http_2026.py`. A request is refused with the status that the
specification names, and nothing that a client sends is answered with 500.
"""

import asyncio
import logging
import math
import time
from typing import Any, cast

from holdfast.core.disclosure import INTERNAL_ERROR
from holdfast.core.eras import UNSUPPORTED_VERSION, VERSIONS, Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import HoldfastError
from holdfast.events import CallerRefused
from holdfast.gateway.auth import Authenticator
from holdfast.gateway.callers.limits import CallRates
from holdfast.gateway.callers.verdicts import Verdicts
from holdfast.gateway.fronts.http.bodies import COMMON, RequestBodies
from holdfast.gateway.fronts.http.connections import most_of_one_caller
from holdfast.gateway.fronts.http.http_2025 import Front2025
from holdfast.gateway.fronts.http.http_2026 import Front2026
from holdfast.gateway.fronts.http.keep_alive import KeepAlive
from holdfast.gateway.fronts.http.metrics import MetricsPage
from holdfast.gateway.fronts.http.open_requests import OpenRequests
from holdfast.gateway.fronts.http.post_reply import Accepts
from holdfast.gateway.fronts.http.request import Receive, Request, Scope, Send
from holdfast.gateway.fronts.messages import Message, checked, decoded
from holdfast.gateway.fronts.pipeline import Pipeline
from holdfast.gateway.fronts.refusals import UNAVAILABLE, Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.process.readiness import Readiness
from holdfast.links.codec import weight
from holdfast.observers import deliver, is_observed

log = logging.getLogger("holdfast.gateway")

_2025 = frozenset(VERSIONS[Era.Y2025])
_2026 = frozenset(VERSIONS[Era.Y2026])
_METADATA = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"max-age=300"),
    (b"access-control-allow-origin", b"*"),  # clients in web pages read it before they have a token
]
_TEXT = [(b"content-type", b"text/plain")]


class HttpFront:
    """The gateway's ASGI application."""

    def __init__(self, gateway: Gateway, metrics: MetricsPage | None = None) -> None:
        self._gateway = gateway
        self._metrics = metrics
        pipeline = Pipeline(gateway, "tcp")
        self.keep_alive = KeepAlive(lambda: gateway.settings.clients.keep_alive)
        self._2025 = Front2025(gateway, pipeline, self.keep_alive)
        self._2026 = Front2026(gateway, pipeline, self.keep_alive)
        self.open = OpenRequests()
        self.bodies = RequestBodies()
        self._readiness = Readiness(gateway)
        self._authenticator = Authenticator(gateway.settings.auth, gateway.settings.listen)
        self._retired: list[Verdicts] = []
        self._rates = CallRates(lambda: gateway.settings.clients)

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    def authenticate_by(self, authenticator: Authenticator) -> None:
        """Let callers in by another configuration, and end the requests of those that it no longer lets in."""
        before, self._authenticator = self._authenticator, authenticator
        if before.verdicts is not authenticator.verdicts:
            self._retired.append(before.verdicts)
        self.end_refused()

    def end_refused(self) -> None:
        """End every request whose token has been taken away or has expired."""
        ended = self.open.end_refused(self._authenticator)
        if ended:
            log.warning("ended %d open requests: their tokens are no longer valid", ended)
        self._gateway.parked.end_refused(self._authenticator.lets_in)

    async def close(self) -> None:
        """Stop what still runs once no request is served."""
        self.keep_alive.close()
        await self._readiness.close()
        for verdicts in (*self._retired, self._authenticator.verdicts):
            await verdicts.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request: Request | None = None
        try:
            request = Request(scope, receive, send)
            if scope["path"] == self._gateway.settings.listen.path:
                await self._mcp(request)
            else:
                await self._plain(request, scope["path"])
            return
        except (Refused, HoldfastError) as error:
            refused = self._refused(error)
        except Exception:
            log.exception("a request could not be answered")
            refused = Refused(500, "Internal error", code=INTERNAL_ERROR)
        request = request or Request({**scope, "headers": []}, receive, send)
        if request.begun:  # another answer in the middle of this one would be read as part of it
            request.hang_up()
            return
        self._report_refused(request, refused)
        await request.refuse(refused)

    def _refused(self, error: Refused | HoldfastError) -> Refused:
        if isinstance(error, Refused):
            return error
        self._gateway.report(error)
        return Refused.because(error)

    def _report_refused(self, request: Request, refused: Refused) -> None:
        sink = self._gateway.sink
        if is_observed(sink) and not refused.is_reported:
            status, reason = refused.status, str(refused.error["message"])
            deliver(CallerRefused(time.time(), status, reason, request.principal, request.address), sink)

    async def _plain(self, request: Request, path: str) -> None:
        endpoint = self._gateway.settings.listen.path
        if path == "/healthz":
            await request.reply(200, b"ok\n", _TEXT)
        elif path == "/readyz":
            why_not = await self._readiness.why_not()
            await request.reply(503 if why_not else 200, b"%s\n" % (why_not or "ready").encode(), _TEXT)
        elif self._metrics is not None and self._metrics.is_here and path == self._metrics.path:
            if not self._authenticator.host_is_fine(request.header(b"host")):
                raise Refused(421, "this host is not served here; see listen.hosts")
            await self._metrics.answer(request)
        elif path in self._authenticator.metadata.paths:
            await request.reply(200, self._authenticator.metadata.document(*request.origin), _METADATA)
        elif path.rstrip("/") == endpoint.rstrip("/"):  # with a slash after it, it is the same endpoint
            await self._mcp(request)
        else:
            raise Refused(404, f"there is nothing here; the endpoint is {endpoint}")

    async def _mcp(self, request: Request) -> None:
        if not self._authenticator.host_is_fine(request.header(b"host")):
            raise Refused(421, "this host is not served here; see listen.hosts")
        if b"origin" in request.headers:
            if not self._authenticator.origin_is_fine(request.header(b"origin")):
                raise Refused(403, "this origin may not call; see listen.origins")
            request.allow_origin()
            if request.method == "OPTIONS":
                await request.reply(204, headers=[(b"access-control-max-age", b"600")])
                return
        authorization = request.header(b"authorization")
        principal = self._authenticator.principal(authorization) or await self._let_in(request, authorization)
        request.is_of(principal)
        if principal != ANONYMOUS:
            self._check_share(principal)
        if request.repeated:
            self._refuse_doubles(request.repeated)
        with self.open.keep(request, principal, authorization):
            try:
                if request.method == "POST":
                    await self._post(request, principal)
                else:
                    await self._get_or_delete(request, principal)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not request.revoked or task is None:
                    raise
                task.uncancel()
                if not request.begun:
                    raise self._unauthorized(request, authorization) from None
                request.hang_up()

    async def _let_in(self, request: Request, authorization: str | None) -> Principal:
        """The caller whose token is verified now, or `Refused`."""
        verified = await self._authenticator.verified(authorization)
        if verified is None:
            raise self._unauthorized(request, authorization)
        if verified.lacks:
            needed = " ".join(sorted(verified.lacks))
            challenge = self._authenticator.metadata.challenge(*request.origin, "insufficient_scope")
            raise Refused(403, f"the token lacks a scope that is needed here: {needed}", www_authenticate=challenge)
        return verified.principal

    def _unauthorized(self, request: Request, authorization: str | None) -> Refused:
        error = None if authorization is None else "invalid_token"
        challenge = self._authenticator.metadata.challenge(*request.origin, error)
        return Refused(401, "a valid bearer token is needed", www_authenticate=challenge)

    def _check_share(self, principal: Principal) -> None:
        """Refuse a caller who has too many requests and streams open already."""
        most = most_of_one_caller(self._gateway.settings.clients)
        if self.open.count(principal) >= most:
            what = f"{most} requests and streams of yours are open, which is the most (clients.per_principal)"
            raise Refused.for_now(what)

    def _check_rate(self, principal: Principal, calls: int = 1) -> None:
        """Refuse a caller who makes more calls a second than it may."""
        wait = self._rates.take(principal, calls)
        if wait is not None:
            seconds = str(max(1, math.ceil(wait)))
            what = f"more calls than you may make (clients.calls_per_second); try again in {seconds} s"
            raise Refused(429, what, code=UNAVAILABLE, retry_after=seconds)

    def _refuse_doubles(self, doubled: frozenset[bytes]) -> None:
        """A header that is passed to a backend, or names a session, must have one value."""
        deciding = {name for backend in self._gateway.backends.values() for name in backend.policy.pass_headers}
        deciding.add((self._gateway.settings.sessions.header or "").lower())
        for name in sorted(doubled):
            if name.decode("latin-1") in deciding:
                raise Refused(400, f"the header {name.decode('latin-1')} occurs twice")

    async def _post(self, request: Request, principal: Principal) -> None:
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refused(415, "the body must be application/json")
        accepts = Accepts.of(request.headers.get(b"accept"))
        if not accepts.json and not accepts.sse:
            raise Refused(406, "accept application/json and text/event-stream")
        with self.bodies.held_by(principal) as held:
            body = await request.body(self._gateway.settings.listen.max_body, held.grow_to)
            found = decoded(body, "the body")
            if len(body) > COMMON:
                held.grow_to(weight(found))
            if isinstance(found, list):
                self._check_rate(principal, len(cast("list[Any]", found)))
                await self._2025.post_batch(request, principal, cast("list[Any]", found), accepts)
                return
            message = checked(found)
            if message.is_request:
                try:
                    self._check_rate(principal)
                except Refused as refused:
                    self._report_refused(request, refused)
                    await request.refuse(refused, message.id)
                    return
            front = self._2026 if self._is_2026(request, message) else self._2025
            try:
                await front.post(request, principal, message, accepts)
            except (Refused, HoldfastError) as error:
                if request.begun:
                    raise
                refused = self._refused(error)
                self._report_refused(request, refused)
                await request.refuse(refused, message.id)

    def _is_2026(self, request: Request, message: Message) -> bool:
        """The era of a request, by its header; by its envelope where the header is missing or odd."""
        version = request.header(b"mcp-protocol-version")
        if version in _2026 or message.has_2026_envelope:
            return True
        if version is not None and version not in _2025 and message.method != "initialize":
            supported = {"supported": [*VERSIONS[Era.Y2025], *VERSIONS[Era.Y2026]], "requested": version[:40]}
            raise Refused(400, "Unsupported protocol version", code=UNSUPPORTED_VERSION, data=supported)
        return False

    async def _get_or_delete(self, request: Request, principal: Principal) -> None:
        if request.method not in ("GET", "DELETE"):
            raise Refused(405, "GET, POST and DELETE are served", allow="GET, POST, DELETE")
        is_get = request.method == "GET"
        if request.header(b"mcp-protocol-version") in _2026:
            what = "no GET stream; use subscriptions/listen" if is_get else "no sessions to delete"
            raise Refused(405, f"2026 has {what}", allow="POST")
        await (self._2025.get if is_get else self._2025.delete)(request, principal)
