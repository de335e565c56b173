"""What is reported of the requests that a gateway serves: an event at the end of each, and a span around it.

The first call of a session continues the trace in which the session and its backends started, or is linked to it.
"""

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from holdfast.core.eras import Era
from holdfast.core.outcome import Outcome, outcome_of_error, outcome_of_result
from holdfast.errors import HoldfastError
from holdfast.events import RequestServed, Sink
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.fronts.http.request import Request
from holdfast.gateway.fronts.messages import Message
from holdfast.gateway.fronts.refusals import CANCELLED, Refused
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.calls.observed import NAMED, named
from holdfast.links.trace import Span, begin_server_span, is_tracing
from holdfast.observers import deliver, wants_each

CALLS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests whose first in a session is shown with the session's start."""
_CLIENT_TEXT = 100  # characters of a client's name and version


class ServedRequest:
    """One request that the gateway serves, while somebody observes it."""

    __slots__ = ("_at", "_began", "_context", "_id", "_method", "_name", "_observer", "_params", "_span")

    def __init__(
        self,
        observer: "RequestObserver",
        context: RequestContext,
        id: str | int,
        method: str,
        params: Mapping[str, Any],
        span: Span | None,
    ) -> None:
        self._observer = observer
        self._context = context
        self._id = id
        self._method = method
        self._name = named(method, params)
        self._params = params
        self._span = span
        self._at = time.time()
        self._began = time.perf_counter()

    def answered(self, message: Mapping[str, Any] | None, *, is_ours: bool = False) -> None:
        """The answer is there; None if its client is gone. `is_ours`: a mistake of ours prevented a better one."""
        context, code = self._context, None
        if message is None:
            outcome = Outcome.CANCELLED
        elif "result" in message:
            outcome = outcome_of_result(cast("Mapping[str, Any]", message["result"]))
        else:
            code = cast("int | None", message["error"].get("code"))
            outcome = Outcome.CANCELLED if code == CANCELLED else Outcome.REFUSED
            if is_ours:
                outcome = Outcome.FAILED
        if context.failure is not None and outcome is not Outcome.OK:
            outcome = outcome_of_error(context.failure)
            if outcome is Outcome.ERROR and context.backend is None:
                outcome = Outcome.REFUSED  # it is the gateway's own answer
        self._end(outcome, code, context.failure)

    def failed(self, error: BaseException) -> None:
        """There is no answer: it was cut, or it is a mistake of ours."""
        cut = isinstance(error, asyncio.CancelledError)
        self._end(Outcome.CANCELLED if cut else Outcome.FAILED, None, error)

    def _end(self, outcome: Outcome, code: int | None, error: BaseException | None) -> None:
        context, span = self._context, self._span
        session = context.session
        if span is not None:
            if session is not None and self._method in CALLS and (start := session.take_start()) is not None:
                span.link(start)  # it was not known when the call came
            known = {
                "holdfast.backend": context.backend,
                "mcp.protocol.version": context.client.version or None,
                "mcp.session.id": session.key if session is not None else None,
            }
            span.end(outcome, code, error, known)
        sink = self._observer.sink
        if not wants_each(sink):
            return
        arguments = self._params.get("arguments") if self._method in NAMED else None
        deliver(
            RequestServed(
                self._at,
                self._method,
                self._name,
                context.backend,
                time.perf_counter() - self._began,
                outcome.value,
                code,
                type(error).__name__ if error is not None else None,
                session.key if session is not None else None,
                context.principal,
                client_text(context.client.info),
                self._id,
                context.era.value,
                context.client.version,
                self._observer.transport,
                span.traceparent if span is not None else None,
                cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None,
            ),
            sink,
        )


class RequestObserver:
    """Observes the requests that one front serves."""

    def __init__(self, sink: Sink | None, transport: str) -> None:
        self.sink = sink
        self.transport = transport
        self.session: GatewaySession | None = None
        """The session of all requests of 2025, where the connection is the session."""
        self._attributes: dict[str, str] = {"network.transport": transport}
        if transport == "tcp":
            self._attributes["network.protocol.name"] = "http"

    def begin(
        self, context: RequestContext, id: str | int, method: str, params: Mapping[str, Any]
    ) -> ServedRequest | None:
        """None if nobody observes."""
        if is_tracing():
            span = self._span(context, id, method, params)
        elif wants_each(self.sink):
            span = None
        else:
            return None
        return ServedRequest(self, context, id, method, params, span)

    @contextmanager
    def observing(self, context: RequestContext, message: Message) -> Generator[None]:
        """Around a request whose answer is not one of `Pipeline.answer`."""
        id, method = message.id, message.method
        served = None if id is None or method is None else self.begin(context, id, method, message.params)
        if served is None:
            yield
            return
        try:
            yield
        except Refused as refused:
            refused.is_reported = True
            served.answered({"error": refused.error})
            raise
        except HoldfastError as error:
            context.failed_with(error)
            served.answered({"error": {}})
            raise
        except BaseException as error:
            served.failed(error)
            raise
        served.answered({"result": {}})

    def _span(self, context: RequestContext, id: str | int, method: str, params: Mapping[str, Any]) -> Span | None:
        known = {**self._attributes, "jsonrpc.request.id": str(id)}
        if isinstance(context.headers, Request) and (address := context.headers.address) is not None:
            known["client.address"] = address
        start = None
        if method in CALLS:
            session = context.session or (self.session if context.era is Era.Y2025 else None)
            start = session.take_start() if session is not None else None
        return begin_server_span(method, named(method, params), known, params.get("_meta"), context.headers, start)


def client_text(info: Mapping[str, Any]) -> str:
    """A client's name and version in one line, as it gives them: nothing of it is known to be true."""
    name, version = info.get("name"), info.get("version")
    return f"{name or '?'}{f' {version}' if version else ''}"[:_CLIENT_TEXT]
