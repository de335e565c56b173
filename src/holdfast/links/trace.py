"""Spans and W3C trace context by OpenTelemetry's convention for MCP. The only use of OpenTelemetry's API in links.

Spans are made once a program has set a tracer provider; without one, a request costs one look, and what a client
sends of a trace passes through unchanged. docs/decisions/0024-spans.md says what is chosen where the
convention is open.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, cast

from holdfast.core.outcome import Outcome, outcome_of_error
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.version import __version__

KEYS = ("traceparent", "tracestate", "baggage")
"""Members of `_meta`, and headers, that carry a trace's context."""
_GOOD = frozenset({Outcome.OK, Outcome.CANCELLED})
_SENT = "holdfast-sent"
"""In a context: the method of the request for which its span was made, by the SDK."""


class Carrier(Protocol):
    """What can carry a trace's context: the members of `_meta`, or the headers of a request."""

    def get(self, name: str, /) -> Any: ...


class Span:
    """A span that is current in this task until it ends."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any, context: Any) -> None:
        api = _api()
        self._span = span
        self._token = api.attach(api.set_span_in_context(span, context))

    @property
    def context(self) -> Any:
        """Its span context, to which other spans can link."""
        return self._span.get_span_context()

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def link(self, context: Any) -> None:
        """Link it to another span."""
        self._span.add_link(context)

    def end(
        self,
        outcome: Outcome,
        code: int | None = None,
        error: BaseException | None = None,
        attributes: Mapping[str, str | int | None] | None = None,
    ) -> None:
        """End it, with the outcome of what it spans and what else is known. No text of an error goes into it."""
        api, span = _api(), self._span
        api.detach(self._token)
        if span.is_recording():
            known: dict[str, str | int] = {"holdfast.outcome": outcome.value}
            if attributes is not None:
                known.update((key, value) for key, value in attributes.items() if value is not None)
            if outcome not in _GOOD:
                kind = known["error.type"] = error_type(outcome, code, error)
                if code is not None:
                    known["rpc.response.status_code"] = str(code)
                span.set_status(api.ERROR, kind)
            span.set_attributes(known)
        span.end()


def error_type(outcome: Outcome, code: int | None, error: BaseException | None) -> str:
    """The convention's `error.type`: `tool_error`, the code of a JSON-RPC error, or the class of ours."""
    if outcome is Outcome.TOOL_ERROR:
        return "tool_error"
    if code is not None:
        return str(code)
    return type(error).__name__ if error is not None else outcome.value


def shortened(session: str | None) -> str | None:
    """The beginning of a session id: enough to distinguish sessions, not enough to use one."""
    return None if session is None else f"{session[:4]}…"


def is_tracing() -> bool:
    """Has this program set a tracer provider?"""
    return _tracer() is not None


def _tracer() -> Any:
    if "opentelemetry.trace" not in sys.modules:  # not imported: nobody can have set a provider
        return None
    return _api().tracer()


# Spans of requests


def begin_client_span(method: str, name: str | None, attributes: Mapping[str, Any], meta: object = None) -> Span | None:
    """Begin the span of a request that is sent, and make it current; None without a tracer provider, where the SDK has
    made the span of this request, and in a trace that is not sampled: the server then gets the current span's context.

    The parent is the current span, else the context in the request's `_meta`. If both are there and belong to two
    traces, the one in `_meta` becomes a link.
    """
    if (tracer := _tracer()) is None:
        return None
    api = _api()
    context = api.get_current()
    if api.get_value(_SENT, context) == method or api.leaves_out(context):
        return None
    linked = None
    carrier = members(meta)
    if any(key in carrier for key in KEYS):
        ambient = api.get_current_span(context)
        context, given = api.received(carrier, context)
        if given is not None and ambient.get_span_context().is_valid:
            context = api.set_span_in_context(ambient, context)
            if given.trace_id != ambient.get_span_context().trace_id:
                linked = [api.Link(given)]
    span = tracer.start_span(
        _title(method, name), context, api.SpanKind.CLIENT, _described(method, name, attributes), linked
    )
    return Span(span, context)


def begin_server_span(
    method: str,
    name: str | None,
    attributes: Mapping[str, Any],
    meta: object = None,
    headers: Carrier | None = None,
    start: Any = None,
) -> Span | None:
    """Begin the span of a request that is served, and make it current; None without a tracer provider.

    The parent is the context in the request's `_meta`, else the one in its headers, else `start`, where its session
    began, else the current span. Those of these that are not the parent become links.
    """
    if (tracer := _tracer()) is None:
        return None
    api = _api()
    context = api.get_current()
    ambient = api.get_current_span(context).get_span_context()
    parent: Any = None
    others: list[Any] = [ambient] if ambient.is_valid else []
    for carrier in (headers, members(meta)):
        if carrier:
            context, given = api.received(carrier, context)
            if given is not None:
                if parent is not None:
                    others.append(parent)
                parent = given
    if parent is not None:
        others += [start] if start is not None else []
    elif start is not None:
        parent = start
        context = api.set_span_in_context(api.NonRecordingSpan(start), context)
    linked = None
    if parent is not None and others:
        linked = [api.Link(each) for each in others if each.span_id != parent.span_id]
    span = tracer.start_span(
        _title(method, name), context, api.SpanKind.SERVER, _described(method, name, attributes), linked
    )
    return Span(span, context)


def _title(method: str, name: str | None) -> str:
    return method if name is None else f"{method} {name}"


def _described(method: str, name: str | None, attributes: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"mcp.method.name": method, **attributes}
    if name is not None:
        known["gen_ai.prompt.name" if method == "prompts/get" else "gen_ai.tool.name"] = name
    if method == "tools/call":
        known["gen_ai.operation.name"] = "execute_tool"
    return known


# Spans of what goes on here


@contextmanager
def step(name: str, attributes: Mapping[str, Any], cause: Any = None) -> Generator[Span | None]:
    """Around a step that is no request; `cause` is the `current()` of the task that it is done for."""
    span = begin_step(name, attributes, cause)
    if span is None:
        yield None
        return
    try:
        yield span
    except HoldfastError as error:
        span.end(outcome_of_error(error), None, error)
        raise
    except BaseException as error:
        span.end(Outcome.FAILED if isinstance(error, Exception) else Outcome.CANCELLED, None, error)
        raise
    span.end(Outcome.OK)


def begin_step(name: str, attributes: Mapping[str, Any], cause: Any = None) -> Span | None:
    """Begin the span of a step, and make it current; None without a tracer provider."""
    if not is_tracing():
        return None
    api = _api()
    context = api.get_current() if cause is None else cause
    return Span(api.tracer().start_span(name, context, api.SpanKind.INTERNAL, attributes), context)


def add_event(name: str, **attributes: str | int) -> None:
    """Add an event to the current span."""
    if "opentelemetry.trace" in sys.modules:
        span = _api().get_current_span()
        if span.is_recording():
            span.add_event(name, {f"holdfast.{key}": value for key, value in attributes.items()})


# Context that travels


def current() -> Any:
    """The context of the current span, for a task that begins in an empty one; None without a span."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    api = _api()
    return api.get_current() if api.get_current_span().get_span_context().is_valid else None


@contextmanager
def received(meta: object, headers: Carrier | None) -> Generator[None]:
    """With the context that a request carries as the current one, before its span begins."""
    if not is_tracing():
        yield
        return
    api = _api()
    context = api.get_current()
    for carrier in (headers, members(meta)):
        if carrier:
            context, _ = api.received(carrier, context)
    token = api.attach(context)
    try:
        yield
    finally:
        api.detach(token)


@contextmanager
def sent_by_sdk(method: str, meta: object) -> Generator[None]:
    """Around a request of an SDK's session that carries the context of the span which the SDK has made for it: it needs
    no second one, and its context goes to the server as it is."""
    carrier = members(meta)
    if "traceparent" not in carrier or not is_tracing():
        yield
        return
    api = _api()
    context, given = api.received(carrier, api.get_current())
    token = api.attach(context if given is None else api.set_value(_SENT, method, context))
    try:
        yield
    finally:
        api.detach(token)


def traced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with the active span's context in `_meta`; unchanged without a span."""
    if "opentelemetry.trace" not in sys.modules:  # not imported: no span can be active
        return params
    api = _api()
    if not api.get_current_span().get_span_context().is_valid:
        return params
    meta = dict(cast("dict[str, Any]", params.get("_meta") or {}))
    for key in ("traceparent", "tracestate"):
        meta.pop(key, None)  # of the span before: this one's parent
    api.inject(meta)
    return {**params, "_meta": meta}


def current_trace_id() -> str | None:
    """The trace that the current span belongs to, for log lines."""
    if "opentelemetry.trace" not in sys.modules:  # not imported: no span can be active
        return None
    context = _api().get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def traced_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers that carry a trace's context, with the active span's; others, and without a span, unchanged."""
    if "traceparent" not in headers or "opentelemetry.trace" not in sys.modules:
        return headers
    api = _api()
    if not api.get_current_span().get_span_context().is_valid:
        return headers
    known = {key: value for key, value in headers.items() if key not in ("traceparent", "tracestate")}
    api.inject(known)
    return known


class _Api:
    """What we use of OpenTelemetry's API."""

    def __init__(self) -> None:
        from opentelemetry import context, propagate, trace

        self.attach, self.detach, self.get_current = context.attach, context.detach, context.get_current
        self.get_value, self.set_value = context.get_value, context.set_value
        self.extract, self.inject = propagate.extract, propagate.inject
        self.get_current_span, self.set_span_in_context = trace.get_current_span, trace.set_span_in_context
        self.get_tracer_provider, self._proxy = trace.get_tracer_provider, trace.ProxyTracerProvider
        self.Link, self.NonRecordingSpan, self.SpanKind = trace.Link, trace.NonRecordingSpan, trace.SpanKind
        self.ERROR = trace.StatusCode.ERROR
        self._provider: Any = None
        self._tracer: Any = None
        self._trace = trace
        self.get_tracer_provider()  # which may load one that the environment names

    def tracer(self) -> Any:
        """The tracer; None without a provider, and once the one of a gateway is closed (sinks/traces.py)."""
        # No public look at the provider costs less than a search of the environment, which was done at the beginning.
        provider: Any = getattr(self._trace, "_TRACER_PROVIDER", self)
        if provider is None:
            return None
        if provider is self:
            provider = self.get_tracer_provider()
        if provider is not self._provider:
            if isinstance(provider, self._proxy):
                return None
            self._provider, self._tracer = provider, provider.get_tracer("holdfast", __version__)
        return None if getattr(provider, "is_closed", False) else self._tracer

    def leaves_out(self, context: Any) -> bool:
        """Is the current trace not sampled, by a provider that decides for whole traces?"""
        if not getattr(self._provider, "decides_for_traces", False):
            return False
        known = self.get_current_span(context).get_span_context()
        return known.is_valid and not known.trace_flags.sampled

    def received(self, carrier: Carrier, context: Any) -> tuple[Any, Any]:
        """A context with what a carrier has, and the span context in it; None for a carrier without a valid one."""
        found = {key: value for key in KEYS if isinstance(value := carrier.get(key), str)}
        if not found:
            return context, None
        before = self.get_current_span(context)
        try:
            extracted = self.extract(found, context)
        except Exception:  # a propagator of the program's own choice may not be as careful as W3C's
            return context, None
        span = self.get_current_span(extracted)
        return extracted, None if span is before else span.get_span_context()


@cache
def _api() -> Any:
    return _Api()
