"""W3C trace context on requests, if a span is active. The door to OpenTelemetry's API; no span, no cost."""

from typing import Any, cast

from opentelemetry.propagate import inject
from opentelemetry.trace import get_current_span


def traced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with the active span's context in `_meta`, or as they are."""
    if not get_current_span().get_span_context().is_valid:
        return params
    meta = dict(cast("dict[str, Any]", params.get("_meta") or {}))
    inject(meta)
    return {**params, "_meta": meta}
