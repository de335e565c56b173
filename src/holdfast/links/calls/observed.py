"""What is reported of a link's request, if anybody observes it: an event at its end, and a span around it."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.core.outcome import Outcome, outcome_of_error, outcome_of_result
from holdfast.errors import HoldfastError
from holdfast.events import RequestSent
from holdfast.links.reporter import LinkReporter
from holdfast.links.target import CommandTarget, HttpTarget, Target
from holdfast.links.trace import Span, begin_client_span, shortened
from holdfast.links.wires.base import Generation

NAMED = ("tools/call", "prompts/get")


class ObservedRequest:
    """One request of a link, while somebody observes it."""

    __slots__ = ("_at", "_began", "_method", "_name", "_reporter", "_span", "_transport", "_wanted")

    def __init__(
        self, reporter: LinkReporter, span: Span | None, wanted: bool, transport: str, method: str, name: str | None
    ) -> None:
        self._reporter = reporter
        self._span = span
        self._wanted = wanted
        self._transport = transport
        self._method = method
        self._name = name
        self._at = time.time()
        self._began = time.perf_counter()

    def answered(self, result: Mapping[str, Any], attempts: int, id: str | int | None, generation: Generation) -> None:
        """Its result is there. `id` is the JSON-RPC id under which it was sent last."""
        self._end(outcome_of_result(result), None, attempts, id, generation)

    def failed(self, error: BaseException, attempts: int, id: str | int | None, generation: Generation | None) -> None:
        """It raised an error, or was cancelled."""
        if isinstance(error, HoldfastError):
            outcome = outcome_of_error(error)
        else:
            outcome = Outcome.CANCELLED if isinstance(error, asyncio.CancelledError) else Outcome.FAILED
        self._end(outcome, error, attempts, id, generation)

    def _end(
        self,
        outcome: Outcome,
        error: BaseException | None,
        attempts: int,
        id: str | int | None,
        generation: Generation | None,
    ) -> None:
        code = error.code if isinstance(error, HoldfastError) else None
        version = generation.version if generation is not None else None
        session = generation.session if generation is not None else None
        if self._span is not None:
            known = {
                "jsonrpc.request.id": None if id is None else str(id),
                "mcp.protocol.version": version,
                "mcp.session.id": shortened(session),
                "holdfast.attempts": attempts if attempts > 1 else None,
            }
            self._span.end(outcome, code, error, known)
        if self._wanted:
            self._reporter.deliver(
                RequestSent(
                    self._at,
                    self._reporter.server,
                    self._method,
                    self._name,
                    time.perf_counter() - self._began,
                    outcome.value,
                    code,
                    type(error).__name__ if error is not None else None,
                    attempts,
                    session,
                    generation.era.value if generation is not None else None,
                    version,
                    self._transport,
                    self._span.traceparent if self._span is not None else None,
                )
            )


class RequestObserver:
    """Observes the requests of one link."""

    __slots__ = ("_reporter", "_transport", "attributes")

    def __init__(self, reporter: LinkReporter, target: Target) -> None:
        self._reporter = reporter
        self._transport = transport_of(target)
        self.attributes = {
            "network.transport": self._transport,
            "mcp.server.name": reporter.server,
            **server_attributes(target),
        }
        """Of each span of the link."""

    def begin(self, method: str, params: Mapping[str, Any] | None) -> ObservedRequest | None:
        """None if nobody observes."""
        wanted = self._reporter.reports_requests
        name = named(method, params)
        span = begin_client_span(method, name, self.attributes, params.get("_meta") if params is not None else None)
        if span is None and not wanted:
            return None
        return ObservedRequest(self._reporter, span, wanted, self._transport, method, name)


def named(method: str, params: Mapping[str, Any] | None) -> str | None:
    """The tool or prompt that a request names."""
    name = params.get("name") if params is not None and method in NAMED else None
    return name if isinstance(name, str) else None


def transport_of(target: Target) -> str:
    """How messages travel, in OpenTelemetry's words."""
    if isinstance(target, HttpTarget):
        return "tcp"
    return "pipe" if isinstance(target, CommandTarget) else "inproc"


def server_attributes(target: Target) -> dict[str, str | int]:
    """Where a server is: host and port alone, as the rest of a URL may be secret."""
    if not isinstance(target, HttpTarget):
        return {}
    known: dict[str, str | int] = {"network.protocol.name": "http"}
    if isinstance(target.url, str):  # else it is known with the first connection only
        parts = urlsplit(target.url)
        if parts.hostname:
            known["server.address"] = parts.hostname
            known["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return known
