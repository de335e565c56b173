"""Faults that a test plans for a server, and refusals as sent by real servers.

Nothing is random: a test knows which request gets the fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from json import dumps


class Fault(Enum):
    """A fault of one request."""

    HANG = "take the request and never answer"
    CLOSE = "close the connection before the answer's headers"
    RESET = "reset the connection before the answer's headers"
    CLOSE_IN_BODY = "close in the middle of the answer's body"
    CLOSE_IN_STREAM = "close an event stream before the answer's event"
    CLOSE_AFTER = "answer, then close the idle connection without announcing it"
    STATUS = "answer with a status, headers and body"
    FORGET = "forget all sessions first"
    CHANGE_ERA = "come back in the other era first"
    OVERSIZE = "answer with more bytes than the limit"
    BROKEN_JSON = "answer with half of a JSON text"
    NOT_JSON_RPC = "answer with JSON that is not a JSON-RPC message"
    WRONG_ID = "answer a request that was never made"
    STRAYS = "send answers to requests that were never made, then the right one"
    HTML = "answer with a web page"
    NOT_HTTP = "answer with bytes that are not HTTP"
    ACCEPTED = "answer 202 and send no result"
    BAD_SESSION_ID = "give a session id with illegal characters"
    REDIRECT = "send the client to another origin"


@dataclass(slots=True)
class Planned:
    """A fault for the next `times` requests of `method` (None:
    of any method). `effect`: whether the call is executed.
    """

    fault: Fault
    method: str | None = None
    times: int = 1
    effect: bool = False
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    def matches(self, method: str | None) -> bool:
        return self.times > 0 and self.method in (None, method)


def error_body(code: int, message: str, data: object = None) -> bytes:
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of one real server."""

    name: str
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


LOST_SESSION: tuple[Refusal, ...] = (
    Refusal("Python SDK", 404, error_body(-32600, "Session not found")),
    Refusal("TypeScript SDK", 404, error_body(-32001, "Session not found")),
    Refusal("empty 404", 404),
    Refusal("plain text 404", 404, b"session not found"),
    Refusal("TypeScript example", 400, error_body(-32000, "Bad Request: No valid session ID provided")),
    Refusal("404 as an unknown method", 404, error_body(-32601, "Method not found")),
    Refusal("410", 410),
)
"""The refusals of 2025 servers for an unknown session."""

OTHER_REFUSALS: tuple[Refusal, ...] = (
    Refusal("401", 401, b"", {"www-authenticate": "Bearer"}),
    Refusal("403", 403),
    Refusal("429", 429),
    Refusal("429 with Retry-After", 429, b"", {"retry-after": "0"}),
    Refusal("500", 500),
    Refusal("500 with a JSON-RPC body", 500, error_body(-32603, "Internal error")),
    Refusal("502 web page", 502, b"<html>bad gateway</html>", {"content-type": "text/html"}),
    Refusal("503", 503),
    Refusal("503 with Retry-After", 503, b"", {"retry-after": "0"}),
    Refusal("504", 504),
)
"""Other refusals, of servers and of proxies in front of them."""
