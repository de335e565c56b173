"""Requests of a server to its client during a call: sampling, elicitation, roots.

Here is which client capability each of them needs, and how a retried request is recognised as the same one.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from holdfast.core import exact
from holdfast.core.values import members

CAPABILITY: Mapping[str, str] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""The capability of a client that each question needs."""

URL_NEEDED = -32042
"""The error by which a 2025 server says that a person must visit URLs before the call can be made.
2026 has no such error.
"""

_OF_A_RETRY = frozenset({"_meta", "inputResponses", "requestState"})
"""Parameters that differ between a request and its retry."""


def may_be_asked(declared: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities answers questions of any kind."""
    return any(name in declared for name in CAPABILITY.values())


def required(method: str, params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The capabilities that a client needs for this question; None if it is not one of the protocol's questions."""
    name = CAPABILITY.get(method)
    if name is None:
        return None
    asked = params or {}
    if name == "elicitation":
        return {name: {"url": {}} if asked.get("mode") == "url" else {"form": {}}}
    if name == "sampling" and ("tools" in asked or "toolChoice" in asked):
        return {name: {"tools": {}}}
    return {name: {}}


def has(declared: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    """Whether the declared capabilities include the needed ones. `elicitation: {}` alone means forms."""
    for name, details in needed.items():
        if not isinstance(declared.get(name), Mapping):
            return False
        given = cast("Mapping[str, Any]", declared[name])
        for detail in cast("Mapping[str, Any]", details):
            is_form = name == "elicitation" and detail == "form"
            if detail not in given and not (is_form and "url" not in given):
                return False
    return True


def asked_by_error(code: int | None, data: object) -> dict[str, Any] | None:
    """The requests in a 2025 server's error `URL_NEEDED`, as `inputRequests`;
    None for other errors. The call was not executed, so its retry is a new call.
    """
    listed: object = members(data).get("elicitations")
    if code != URL_NEEDED or not isinstance(listed, list):
        return None
    asked = [members(each) for each in cast("list[object]", listed)]
    return {
        f"question-{number}": {"method": "elicitation/create", "params": {"mode": "url", **params}}
        for number, params in enumerate(asked, 1)
        if params
    } or None


def request_digest(method: str, params: Mapping[str, Any]) -> str:
    """A digest that is equal for a request and its retry, whatever the order of their members, and differs for other
    requests."""
    kept = {key: value for key, value in params.items() if key not in _OF_A_RETRY}
    return hashlib.sha256(exact.encode({"method": method, "params": _in_order(kept)})).hexdigest()


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        return {key: _in_order(known[key]) for key in sorted(known)}
    if isinstance(value, list):
        return [_in_order(each) for each in cast("list[Any]", value)]
    return value


def answer_of(response: Any) -> dict[str, Any]:
    """A 2026 client's response to a question, as the result that a 2025 server expects."""
    return {key: value for key, value in members(response).items() if key != "resultType"}
