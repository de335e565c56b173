"""Spans and W3C trace context by OpenTelemetry's convention for MCP. The only use of OpenTelemetry's API in links.

Spans are made once a program has set a tracer provider; without one, a request costs one look.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from holdfast.core.outcome import Outcome
from holdfast.core.values import members
from holdfast.version import __version__

CLIENT = "CLIENT"
SERVER = "SERVER"
_KEYS = ("traceparent", "tracestate", "baggage")
_GOOD = frozenset({Outcome.OK, Outcome.CANCELLED})


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

    def note(self, **attributes: str | int | bool) -> None:
        """Add attributes; a double underscore in a name stands for a dot."""
        for name, value in attributes.items():
            self._span.set_attribute(name.replace("__", "."), value)

    def end(
        self,
        outcome: Outcome,
        code: int | None = None,
        error: BaseException | None = None,
        version: str | None = None,
        session: str | None = None,
    ) -> None:
        """End it, with the outcome of what it spans. No text of an error goes into it."""
        api, span = _api(), self._span
        api.detach(self._token)
        if span.is_recording():
            if version is not None:
                span.set_attribute("mcp.protocol.version", version)
            if session is not None:
                span.set_attribute("mcp.session.id", shortened(session))
            span.set_attribute("holdfast.outcome", outcome.value)
            if outcome not in _GOOD:
                kind = error_type(outcome, code, error)
                span.set_attribute("error.type", kind)
                if code is not None:
                    span.set_attribute("rpc.response.status_code", str(code))
                span.set_status(api.ERROR, kind)
        span.end()


def error_type(outcome: Outcome, code: int | None, error: BaseException | None) -> str:
    """The convention's `error.type`: `tool_error`, the code of a JSON-RPC error, or the class of ours."""
    if outcome is Outcome.TOOL_ERROR:
        return "tool_error"
    if code is not None:
        return str(code)
    return type(error).__name__ if error is not None else outcome.value


def shortened(session: str) -> str:
    """The beginning of a session id: enough to distinguish sessions, not enough to use one."""
    return f"{session[:4]}…"


def is_tracing() -> bool:
    """Has this program set a tracer provider?"""
    if "opentelemetry.trace" not in sys.modules:  # not imported: nobody can have
        return False
    api = _api()
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def begin_span(
    kind: str,
    method: str,
    name: str | None,
    attributes: Mapping[str, Any],
    *,
    meta: object = None,
    headers: Mapping[str, str] | None = None,
    links: Sequence[Any] = (),
    parent: Any = None,
) -> Span | None:
    """Begin the span of a request, and make it current; None without a tracer provider.

    The parent is the context in the request's `_meta`, else the one in its headers, else `parent`, else the current
    span. A current span that is not the parent becomes a link, as `links` do.
    """
    if not is_tracing():
        return None
    api = _api()
    current = api.get_current_span().get_span_context()
    context = None
    for carrier in (members(meta), headers or {}):
        found = {key: carrier[key] for key in _KEYS if isinstance(carrier.get(key), str)}
        if "traceparent" in found:
            context = api.extract(found)
            break
    if context is None and parent is not None:
        context = api.set_span_in_context(api.NonRecordingSpan(parent))
    linked = [api.Link(each) for each in links]
    if context is not None and current.is_valid:
        linked.append(api.Link(current))
    known: dict[str, Any] = {"mcp.method.name": method, **attributes}
    if name is not None:
        known["gen_ai.prompt.name" if method == "prompts/get" else "gen_ai.tool.name"] = name
        if method == "tools/call":
            known["gen_ai.operation.name"] = "execute_tool"
    span = api.tracer().start_span(
        f"{method} {name}" if name is not None else method,
        context,
        api.SpanKind[kind],
        known,
        linked or None,
    )
    return Span(span, context)


def traced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with the active span's context in `_meta`; unchanged without a span."""
    if "opentelemetry.trace" not in sys.modules:  # not imported: no span can be active
        return params
    api = _api()
    if not api.get_current_span().get_span_context().is_valid:
        return params
    meta = dict(cast("dict[str, Any]", params.get("_meta") or {}))
    for key in _KEYS:
        meta.pop(key, None)  # of the span before: this one's parent
    api.inject(meta)
    return {**params, "_meta": meta}


def current_trace_id() -> str | None:
    """The trace that the current span belongs to, for log lines."""
    if "opentelemetry.trace" not in sys.modules:  # not imported: no span can be active
        return None
    context = _api().get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


class _Api:
    """What we use of OpenTelemetry's API."""

    def __init__(self) -> None:
        from opentelemetry import context, propagate, trace

        self.attach, self.detach = context.attach, context.detach
        self.extract, self.inject = propagate.extract, propagate.inject
        self.get_current_span, self.set_span_in_context = trace.get_current_span, trace.set_span_in_context
        self.get_tracer_provider, self.ProxyTracerProvider = trace.get_tracer_provider, trace.ProxyTracerProvider
        self.Link, self.NonRecordingSpan, self.SpanKind = trace.Link, trace.NonRecordingSpan, trace.SpanKind
        self.ERROR = trace.StatusCode.ERROR

    def tracer(self) -> Any:
        return self.get_tracer_provider().get_tracer("holdfast", __version__)


@cache
def _api() -> Any:
    return _Api()
