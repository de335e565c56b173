"""Results of tools that the gateway writes or adds to: its own errors, refused questions, sessions for one call."""

from typing import Any, cast

from holdfast.core.disclosure import disclosed, rpc_error
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError

ERROR = "dev.holdfast/error"
NOTICE = "dev.holdfast/notice"
OWN_SESSION = (
    "This call had a session of its own at {backend!r}: what it left there is gone. To keep state, open a session and "
    "pass its handle, or connect with a 2025 client."
)


def with_notice(result: dict[str, Any], method: str, notice: str) -> dict[str, Any]:
    """A result with a notice for the model, and for programs in `_meta`."""
    meta = result.get("_meta")
    known = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    changed = {**result, "_meta": {**known, NOTICE: notice}}
    content = result.get("content")
    if method == "tools/call" and isinstance(content, list):
        changed["content"] = [*cast("list[Any]", content), {"type": "text", "text": notice}]
    return changed


def with_refusal(result: dict[str, Any], refused: HoldfastError) -> dict[str, Any]:
    """The result of a tool that failed because its question was refused, with the reason and the remedy."""
    seen = disclosed(refused)
    content = result.get("content")
    before = cast("list[Any]", content) if isinstance(content, list) else []
    meta = {**members(result.get("_meta")), ERROR: dict(seen.fields)}
    return {**result, "content": [*before, {"type": "text", "text": seen.text}], "_meta": meta}


def error_with_refusal(method: str, error: ErrorAnswer, refused: HoldfastError) -> dict[str, Any]:
    """The server's own error, with the refused question that may be its reason: for a tool as a result, which a model
    reads, else raised."""
    if method == "tools/call":
        result = {"content": [{"type": "text", "text": error.message}] if error.message else [], "isError": True}
        changed = with_refusal(result, refused)
        changed["_meta"][ERROR]["answer"] = rpc_error(error)
        return changed
    seen = disclosed(refused)
    again = error.copied()
    again.message = f"{error.message} ({seen.text})" if error.message else seen.text
    again.data = dict(seen.fields) if error.data is None else error.data
    raise again from error


def tool_error(error: HoldfastError) -> dict[str, Any]:
    """A failed call as a tool's result, which a model can read."""
    seen = disclosed(error)
    return {
        "content": [{"type": "text", "text": seen.text}],
        "isError": True,
        "_meta": {ERROR: dict(seen.fields)},
    }
