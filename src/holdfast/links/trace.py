"""W3C trace context on requests, if a span is active. The only use of OpenTelemetry's API in links."""

import sys
from functools import cache
from typing import Any, cast


def traced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with the active span's context in `_meta`; unchanged without a span."""
    if "opentelemetry.trace" not in sys.modules:  # not imported: no span can be active
        return params
    get_current_span, inject = _api()
    if not get_current_span().get_span_context().is_valid:
        return params
    meta = dict(cast("dict[str, Any]", params.get("_meta") or {}))
    inject(meta)
    return {**params, "_meta": meta}


@cache
def _api() -> tuple[Any, Any]:
    from opentelemetry.propagate import inject
    from opentelemetry.trace import get_current_span

    return get_current_span, inject
