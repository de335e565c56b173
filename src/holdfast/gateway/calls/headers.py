"""Headers of a call to a server: trace context, what the operator passes through, and what a 2026 tool wants."""

from collections.abc import Mapping
from typing import Any

from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from holdfast.core.eras import Era
from holdfast.core.exact import plain
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.links.passed_headers import HasHeaders
from holdfast.gateway.names.routing import Route

TRACE = ("traceparent", "tracestate", "baggage")


def call_headers(
    given: HasHeaders | None, backend_link: BackendLink, route: Route, params: Mapping[str, Any]
) -> dict[str, str] | None:
    """The headers of a call. `given`: those of the caller's request."""
    headers: dict[str, str] | None = None
    backend = backend_link.backend
    if given is not None:
        for name in (*TRACE, *backend.policy.pass_headers):
            value = given.get(name)
            if value is not None:
                headers = headers or {}
                headers[name] = value
    if route.params_in_headers and backend_link.link.era is Era.Y2026:
        known = backend.catalogue
        tool = known.tools_by_name.get(route.name) if known is not None else route.item
        if tool is not None and (wanted := param_headers(tool, params)):
            headers = {**(headers or {}), **wanted}
    return headers


def param_headers(tool: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a 2026 tool wants in headers, too."""
    mapped = x_mcp_header_map(tool.get("inputSchema"))
    return mcp_param_headers(mapped, plain(params.get("arguments") or {})) if mapped else {}
