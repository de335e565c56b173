"""Questions of a server, during one call, for a client that can't be asked: refused at once, or the server would wait.

Each call has a record of its own, so that only the call whose question was refused reports it.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.core.questions import has, required
from holdfast.errors import ErrorAnswer, QuestionRefused
from holdfast.links.calls.handlers import Params
from holdfast.links.crossing.open_questions import missing_capability


class RefusedQuestions:
    """The refused questions of one call at one server."""

    __slots__ = ("_params", "_server", "method")

    def __init__(self, server: str) -> None:
        self._server = server
        self._params: Params = None
        self.method: str | None = None
        """What the server asked for last."""

    async def refuse(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """Answer a question with an error. An `OnRequest`."""
        self.method, self._params = method, params
        raise ErrorAnswer(
            f"{method}: the client can't be asked",
            message="this client can't be asked during a call",
            code=METHOD_NOT_FOUND,
        )

    def error(self, declared: Mapping[str, Any] | None) -> ErrorAnswer | QuestionRefused | None:
        """Why the call may have failed; None if no question was refused. `declared`: what its
        client can do, if it is of 2026."""
        if self.method is None:
            return None
        needed = required(self.method, self._params)
        if declared is not None and needed is not None and not has(declared, needed):
            return missing_capability(self.method, needed)
        return QuestionRefused(
            f"{self.method} from {self._server!r} was refused: no call was under way that it can belong to",
            server=self._server,
            phase="call",
        )
