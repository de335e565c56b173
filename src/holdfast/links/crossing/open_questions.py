"""The questions of a 2025 server in the middle of a call whose 2026 client answers them by retrying the call."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.core.eras import METHOD_NOT_FOUND, MISSING_CAPABILITY
from holdfast.core.questions import answer_of
from holdfast.errors import ErrorAnswer, Fields
from holdfast.links.calls.handlers import Params

GATHER_SECONDS = 0.03  # after a question, for others that the server asks at the same time


class Question(NamedTuple):
    """A question that waits for the client's answer."""

    method: str
    params: Params
    answered: "asyncio.Future[dict[str, Any]]"


class OpenQuestions:
    """The questions of one call that wait for answers."""

    def __init__(self) -> None:
        self._open: dict[str, Question] = {}
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    @property
    def as_input_requests(self) -> dict[str, Any]:
        """What the client is asked, as `inputRequests`."""
        return {
            key: {"method": question.method, "params": dict(question.params or {})}
            for key, question in self._open.items()
        }

    async def ask(self, method: str, params: Params) -> dict[str, Any]:
        """Return the client's answer, once it is there."""
        key = f"question-{next(self._numbers)}"
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[key] = Question(method, params, answered)
        self._changed.set()
        try:
            return await answered
        finally:
            self._open.pop(key, None)

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take the client's responses. Questions without one stay open, and are asked again."""
        for key, response in responses.items():
            question = self._open.pop(key, None)
            if question is not None and not question.answered.done():
                question.answered.set_result(answer_of(response))

    def end(self) -> None:
        """Refuse the questions that are open: the call is over."""
        for question in self._open.values():
            if not question.answered.done():
                question.answered.set_exception(not_asked(question.method, "the call is over"))
        self._changed.set()

    async def settle(self, task: "asyncio.Task[Any]") -> None:
        """Wait until the call's task is done, or the server waits for answers."""
        while not task.done():
            if self._open:
                await asyncio.wait((task,), timeout=GATHER_SECONDS)
                if self._open:
                    return
                continue
            self._changed.clear()
            await self._changed.wait()


def not_asked(method: str, why: str) -> ErrorAnswer:
    """The answer to a server whose question can't be passed on."""
    return ErrorAnswer(f"{method}: {why}", message=why, code=METHOD_NOT_FOUND)


def missing_capability(method: str, needed: Mapping[str, Any], server: str | None = None) -> ErrorAnswer:
    """The answer to a call that failed because its client lacks a capability."""
    fields: Fields = {"code": MISSING_CAPABILITY}
    if server is not None:
        fields["server"] = server
    return ErrorAnswer(
        f"{method}: the client has not declared {', '.join(needed)}",
        message="Missing required client capability",
        data={"requiredCapabilities": dict(needed)},
        **fields,
    )
