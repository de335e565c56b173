"""A request that is refused: the HTTP status and the JSON-RPC error with which every front answers it."""

import math
from typing import Any

from holdfast.core.disclosure import INTERNAL_ERROR, disclosed
from holdfast.errors import HoldfastError, LimitReached, OutcomeUnknown, Unavailable

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
UNAVAILABLE = -32000
SESSION_NOT_FOUND = -32001
CANCELLED = -32800


class Refused(Exception):
    """A request that gets no result. Fronts without HTTP send the error alone."""

    def __init__(
        self, status: int, message: str, *, code: int = INVALID_REQUEST, data: Any = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status = status
        self.is_reported = False
        """It is the end of a request that was observed, and is reported as that."""
        self.error: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    @classmethod
    def for_now(cls, message: str) -> "Refused":
        """The same request may succeed in a second."""
        return cls(503, message, code=UNAVAILABLE, retry_after="1")

    @classmethod
    def because(cls, error: HoldfastError) -> "Refused":
        """The answer to a request that failed with one of our errors, in the words that a caller may see."""
        seen = disclosed(error)
        if not isinstance(error, Unavailable | OutcomeUnknown | LimitReached):
            return cls(500, seen.text, code=INTERNAL_ERROR, data=dict(seen.fields))
        wait = str(max(1, math.ceil(error.retry_after or 1)))
        return cls(503, seen.text, code=UNAVAILABLE, data=dict(seen.fields), retry_after=wait)


class Malformed(Refused):
    """What a client sent is not a JSON-RPC message."""

    def __init__(self, message: str, body: dict[str, Any] | None = None, *, code: int = INVALID_REQUEST) -> None:
        super().__init__(400, message, code=code)
        id = None if body is None else body.get("id")
        self.id = id if isinstance(id, str | int) and not isinstance(id, bool) else None
        """The id of the request, as far as it can be read."""
        self.is_answer = body is not None and body.get("method") is None
        """It was meant as an answer, which is not answered in turn."""


def refusal(id: str | int | None, error: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that is refused."""
    return {"jsonrpc": "2.0", "id": id, "error": error}
