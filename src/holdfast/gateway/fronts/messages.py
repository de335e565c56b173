"""One JSON-RPC message from a client: decoded, checked, and what kind it is. For all fronts, and without I/O."""

from dataclasses import dataclass
from typing import Any, cast

from holdfast.core.eras import INVALID_PARAMS, PROTOCOL_VERSION
from holdfast.gateway.fronts.refusals import PARSE_ERROR, Malformed
from holdfast.links.codec import decode_exactly


@dataclass(slots=True)
class Message:
    """A message whose outer form is right. Without a method it is an answer, without an id a notification."""

    body: dict[str, Any]
    method: str | None
    id: str | int | None
    params: dict[str, Any]
    has_2026_envelope: bool
    """Its `_meta` names a protocol version."""

    @property
    def is_request(self) -> bool:
        return self.method is not None and self.id is not None

    @property
    def is_answer(self) -> bool:
        """It has the form of an answer to a request."""
        return self.method is None and "id" in self.body and ("result" in self.body) != ("error" in self.body)


def decoded(data: bytes, what: str) -> Any:
    """The JSON that a client sent, or `Malformed`. `what` is what the client calls the data."""
    try:
        return decode_exactly(data)
    except ValueError as error:
        raise Malformed(f"{what} is not valid JSON: {error}"[:200], code=PARSE_ERROR) from None


def checked(value: Any) -> Message:
    """One message, or `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed("a message is an object")
    body = cast("dict[str, Any]", value)
    if body.get("jsonrpc") != "2.0":
        raise Malformed('a message has "jsonrpc": "2.0"', body)
    id, method, params = body.get("id"), body.get("method"), body.get("params")
    if "id" in body and (isinstance(id, bool) or not isinstance(id, str | int)):
        raise Malformed("an id is a string or a whole number", body)
    if "method" in body and not isinstance(method, str):
        raise Malformed("a method is a string", body)
    if params is None:
        return Message(body, method, id, {}, has_2026_envelope=False)
    if not isinstance(params, dict):
        raise Malformed("params are an object", body, code=INVALID_PARAMS)
    known = cast("dict[str, Any]", params)
    meta = known.get("_meta")
    if meta is not None and not isinstance(meta, dict):
        raise Malformed("_meta is an object", body, code=INVALID_PARAMS)
    return Message(body, method, id, known, has_2026_envelope=meta is not None and PROTOCOL_VERSION in meta)
