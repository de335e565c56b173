"""Handshakes, results, errors and notifications of one era in the shape of the other. Pure."""

from collections.abc import Mapping
from json import dumps
from typing import Any, cast

from holdfast.core import eras
from holdfast.core.eras import (
    HEADER_MISMATCH,
    INPUT_METHODS,
    MISSING_CAPABILITY,
    SERVER_INFO,
    UNSUPPORTED_VERSION,
    VERSIONS,
    Era,
    result_in,
)
from holdfast.core.handshake import Handshake
from holdfast.core.questions import URL_NEEDED
from holdfast.core.values import members
from holdfast.errors import BadAnswer, ErrorAnswer

INVALID_REQUEST, INVALID_PARAMS = -32600, -32602
NOT_FOUND_2025 = -32002  # of a resource; 2026 says that the parameters are invalid
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, the most verbose first."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension of 2026 by which a result may be a task; 2025 has tasks of its own."""

_REFUSALS_2026 = (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION)


def initialize_result(handshake: Handshake, name: str, wanted: object) -> dict[str, Any]:
    """A 2026 server's handshake as the answer to `initialize`, in the version that the session wants, if we know it."""
    versions = VERSIONS[Era.Y2025]
    result = {
        "protocolVersion": wanted if wanted in versions else versions[0],
        "capabilities": without_tasks(handshake.capabilities),
        "serverInfo": dict(handshake.server_info or {"name": name, "version": ""}),
    }
    if handshake.instructions is not None:
        result["instructions"] = handshake.instructions
    return result


def without_tasks(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Capabilities without the tasks of 2026."""
    extensions = members(capabilities.get("extensions"))
    if TASKS not in extensions:
        return dict(capabilities)
    kept = {name: value for name, value in extensions.items() if name != TASKS}
    rest = {name: value for name, value in capabilities.items() if name != "extensions"}
    return {**rest, "extensions": kept} if kept else rest


def discover_result(handshake: Handshake) -> dict[str, Any]:
    """A 2025 server's handshake as the answer to `server/discover`."""
    capabilities = {name: value for name, value in handshake.capabilities.items() if name != "tasks"}
    result: dict[str, Any] = {"supportedVersions": [*VERSIONS[Era.Y2026], handshake.version]}
    result["capabilities"] = capabilities
    if handshake.instructions is not None:
        result["instructions"] = handshake.instructions
    if handshake.server_info is not None:
        result["_meta"] = {**members(handshake.result.get("_meta")), SERVER_INFO: dict(handshake.server_info)}
    return result_in(Era.Y2026, "server/discover", result)


def result_for_2025(method: str, result: dict[str, Any], server: str) -> dict[str, Any]:
    """A 2026 server's result without what only that era has."""
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise BadAnswer(
            f"{method}: {server!r} answered with a result of the type {str(kind)[:80]!r}, which 2025 does not have",
            server=server,
            phase="call",
            remedy="use a 2026 session for this server",
        )
    kept = eras.result_for_2025(method, result)
    if method in INPUT_METHODS:
        kept = {name: value for name, value in kept.items() if name not in ("inputRequests", "requestState")}
    if method == "tools/call":
        return structured_for_2025(kept)
    if method == "tools/list" and isinstance(kept.get("tools"), list):
        kept["tools"] = [tool_for_2025(tool) for tool in cast("list[Any]", kept["tools"])]
    return kept


def structured_for_2025(result: dict[str, Any]) -> dict[str, Any]:
    """In 2025, structured content is an object; anything else is told as text, where the server has not done so."""
    if isinstance(result.get("structuredContent", {}), dict):
        return result
    kept = {name: value for name, value in result.items() if name != "structuredContent"}
    if not kept.get("content"):
        kept["content"] = [{"type": "text", "text": dumps(result["structuredContent"], default=str)}]
    return kept


def tool_for_2025(tool: Any) -> Any:
    """In 2025, the schema of a tool's output describes an object; another one is left out."""
    known = members(tool)
    if "outputSchema" not in known or members(known["outputSchema"]).get("type") == "object":
        return tool
    return {name: value for name, value in known.items() if name != "outputSchema"}


def error_for_2025(method: str, error: ErrorAnswer) -> ErrorAnswer:
    """A 2026 server's error with a code that 2025 knows."""
    if error.code == INVALID_PARAMS and method == "resources/read" and ("uri" in members(error.data) or not error.data):
        return _with_code(error, NOT_FOUND_2025)
    return _with_code(error, INVALID_REQUEST) if error.code in _REFUSALS_2026 else error


def error_for_2026(method: str, error: ErrorAnswer, params: Mapping[str, Any]) -> ErrorAnswer:
    """A 2025 server's error with a code that 2026 knows."""
    if error.code == URL_NEEDED:
        return _with_code(error, INVALID_REQUEST)
    if (error.code, method) != (NOT_FOUND_2025, "resources/read"):
        return error
    changed = _with_code(error, INVALID_PARAMS)
    if changed.data is None and isinstance(params.get("uri"), str):
        changed.data = {"uri": params["uri"]}
    return changed


def _with_code(error: ErrorAnswer, code: int) -> ErrorAnswer:
    changed = error.copied()
    changed.code = code
    if error.answer is not None:
        changed.answer = {**error.answer, "code": code}
    return changed


def question_for_2025(method: str, params: Mapping[str, Any], id: str) -> dict[str, Any]:
    """The parameters of a 2026 server's question. In 2025, one by URL has an id."""
    if method == "elicitation/create" and params.get("mode") == "url":
        return {"elicitationId": id, **params}
    return dict(params)
