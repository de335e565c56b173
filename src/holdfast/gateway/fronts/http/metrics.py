"""Where Prometheus reads: a page on the gateway's own port, or on one of its own."""

import asyncio
import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.core.lifecycle import CircuitState
from holdfast.gateway.auth import hash_of, is_loopback
from holdfast.gateway.config.observe import Metrics
from holdfast.gateway.fronts.http.request import Receive, Request, Scope, Send
from holdfast.gateway.fronts.refusals import Refused
from holdfast.gateway.gateway import Gateway
from holdfast.sinks.metrics.figures import Reading

if TYPE_CHECKING:
    from holdfast.sinks.metrics.prometheus import PrometheusMeter

_TYPE = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


class MetricsPage:
    """The page. Also an ASGI application, for a port of its own."""

    def __init__(
        self, settings: Metrics, meter: "PrometheusMeter", gateway: Gateway, count_dropped: Callable[[], None]
    ) -> None:
        self.path = settings.path
        self.is_here = settings.port is None
        """It is on the gateway's own port."""
        self._token = settings.token
        self._meter = meter
        self._any_host = not is_loopback(settings.host)
        self._making: asyncio.Future[bytes] | None = None
        self._gateway = gateway
        self._count_dropped = count_dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request({**scope, "headers": scope["headers"]}, receive, send)
        try:
            if scope["path"] != self.path:
                raise Refused(404, f"there is nothing here; metrics are at {self.path}")
            if not self._any_host and not _is_local(request.header(b"host")):
                raise Refused(421, "this host is not served here")
            await self.answer(request)
        except Refused as refused:
            await request.refuse(refused)

    async def answer(self, request: Request) -> None:
        """Answer a request for the page."""
        if request.method != "GET":
            raise Refused(405, "metrics are read with GET", allow="GET")
        if self._token is not None and not _has(request.header(b"authorization"), self._token):
            raise Refused(401, "a valid bearer token is needed", www_authenticate='Bearer realm="metrics"')
        if self._making is None:  # readers that come meanwhile get the same page
            self._count_dropped()
            readings = list(_readings(self._gateway))
            self._making = asyncio.ensure_future(asyncio.to_thread(self._meter.text, readings))
            self._making.add_done_callback(lambda _: setattr(self, "_making", None))
        await request.reply(200, await asyncio.shield(self._making), _TYPE)


def metrics_page(
    settings: Metrics | None, meter: "PrometheusMeter | None", gateway: Gateway, count_dropped: Callable[[], None]
) -> MetricsPage | None:
    """The page that a file asks for. `count_dropped` counts what other sinks dropped until now."""
    return MetricsPage(settings, meter, gateway, count_dropped) if settings is not None and meter is not None else None


def _has(authorization: str | None, expected: str) -> bool:
    scheme, _, token = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(hash_of(token.strip()), expected)


def _is_local(host: str | None) -> bool:
    """Is the request meant for this machine? A web page that resolves its own name to us must not read."""
    name = (host or "").rpartition(":")[0] if (host or "").rpartition(":")[2].isdigit() else host or ""
    return is_loopback(name.strip("[]").lower())


def _readings(gateway: Gateway) -> Iterable[Reading]:
    """What the gateway has anyway."""
    eras: dict[str, int] = {"2025": 0, "2026": 0}
    for session in list(gateway.sessions.live.values()):
        eras[session.era.value] += 1
    for era, count in eras.items():
        yield "holdfast_sessions", (era,), count
    for name, backend in list(gateway.backends.items()):
        yield "holdfast_backend_up", (name,), float(backend.health.state == "up")
        links = list(backend.counts.links)
        yield "holdfast_links", (name,), len(links)
        yield "holdfast_requests_in_flight", (name,), sum(link.statistics().in_flight for link in links)
        yield "holdfast_circuit_open", (name,), float(any(link.circuit is CircuitState.OPEN for link in links))
    yield "holdfast_children", (), gateway.children
