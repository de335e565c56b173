"""Questions of a server, during one call, for a client that can't be asked: refused at once, or the server would wait.

Each call has a record of its own, so that only the call whose question was refused is told of it.
"""

from typing import Any

from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.errors import ErrorAnswer, QuestionRefused
from holdfast.links.calls.handlers import Params


class RefusedQuestions:
    """The refused questions of one call at one server."""

    __slots__ = ("_server", "method")

    def __init__(self, server: str) -> None:
        self._server = server
        self.method: str | None = None
        """What the server asked for last."""

    async def refuse(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """Answer a question with an error. An `OnRequest`."""
        self.method = method
        raise ErrorAnswer(
            f"{method}: the client can't be asked",
            message="this client can't be asked during a call",
            code=METHOD_NOT_FOUND,
        )

    def error(self) -> QuestionRefused | None:
        """Why the call may have failed; None if no question was refused."""
        if self.method is None:
            return None
        return QuestionRefused(
            f"{self.method} from {self._server!r} was refused: 2026 clients can't be asked by a 2025 server",
            server=self._server,
            phase="call",
        )
