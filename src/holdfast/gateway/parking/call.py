"""One call of a 2026 client whose 2025 server may ask something in the middle of it.

It owns the task that does the call's work, beyond the request that began it, and the questions that wait for an answer.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import METHOD_NOT_FOUND, MISSING_CAPABILITY
from holdfast.core.models import Principal
from holdfast.core.questions import answer_of, has, required
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.gateway.parking.places import Places
from holdfast.gateway.sessions.questions import ReplyChannel
from holdfast.links.calls.handlers import Params
from holdfast.links.codec import weight

GATHER_SECONDS = 0.03  # after a question, for others that the server asks at the same time


class Question(NamedTuple):
    """A question that waits for the client's answer."""

    method: str
    params: Params
    answered: "asyncio.Future[dict[str, Any]]"


class LatestChannel:
    """The `ReplyChannel` of a call that goes on over several requests: that of the latest, none in between."""

    def __init__(self, channel: ReplyChannel | None) -> None:
        self.can_ask = False  # 2026 clients are asked by results
        self.is_alone = channel is not None and channel.is_alone
        self._channel = channel
        self._token: Any = None
        self._is_first = True

    def move_to(self, channel: ReplyChannel | None, progress_token: Any = None) -> None:
        """Send what comes from now on to another request; None: drop it."""
        self._channel, self._token, self._is_first = channel, progress_token, False

    def send(self, message: Mapping[str, Any]) -> None:
        if self._channel is None:
            return
        if not self._is_first and message.get("method") == "notifications/progress":
            if self._token is None:
                return
            message = {**message, "params": {**message["params"], "progressToken": self._token}}
        self._channel.send(message)

    async def keep_up(self) -> None:
        if self._channel is not None:
            await self._channel.keep_up()


class ParkableCall:
    """A call that may be parked."""

    def __init__(
        self,
        principal: Principal,
        capabilities: Mapping[str, Any],
        channel: ReplyChannel | None,
        params: Mapping[str, Any],
        places: Places,
    ) -> None:
        self.principal = principal
        self._capabilities = capabilities
        self.channel = LatestChannel(channel)
        self.refusal: HoldfastError | None = None
        """Why a question of the server was refused; the reason of the call's failure, if it fails."""
        self._on_end: Callable[[], None] | None = None
        """Called when the work is done, while no request waits for it."""
        self._params = params
        self._places = places
        self._has_place = self._is_cancelled = False
        self._task: asyncio.Task[dict[str, Any]] | None = None
        self._questions: dict[str, Question] = {}
        self._numbers = itertools.count(1)
        self._changed: asyncio.Future[None] | None = None
        self._dropped: HoldfastError | None = None

    # The work

    def start(self, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Begin the work, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(work, name="parkable call")
        self._task.add_done_callback(self._ended)

    @property
    def task(self) -> "asyncio.Task[dict[str, Any]]":
        assert self._task is not None
        return self._task

    @property
    def is_done(self) -> bool:
        return self._dropped is not None or self.task.done()

    def _ended(self, task: "asyncio.Task[dict[str, Any]]") -> None:
        if not task.cancelled():
            task.exception()  # no request may ever come back for it
        for question in self._questions.values():
            if not question.answered.done():
                question.answered.set_exception(_not_asked(question.method, "the call is over"))
        if self._on_end is not None:
            self._on_end()
        self._wake()

    async def settle(self) -> None:
        """Wait until the work is done, or the server waits for answers."""
        while not self.is_done:
            if self._questions:
                await asyncio.wait((self.task,), timeout=GATHER_SECONDS)
                if self._questions:
                    return
                continue
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def result(self) -> dict[str, Any] | None:
        """The result of the work that is done, or its error; None if it was cancelled."""
        if self._dropped is not None:
            raise self._dropped
        return None if self.task.cancelled() else self.task.result()

    def drop_result(self, instead: HoldfastError) -> None:
        """Drop the result, which is too large to be kept, and raise this error in its place."""
        self._dropped, self._task = instead, None

    def result_bytes(self) -> int:
        """About how much memory the result takes."""
        return 0 if self.task.cancelled() or self.task.exception() is not None else weight(self.task.result())

    def cancel(self) -> None:
        """Cancel the work, and with it the call at its server."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def wait_ended(self, seconds: float) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=seconds)

    # The client

    def park(self, on_end: Callable[[], None]) -> None:
        """No request waits for it any longer. `on_end` is called if its work is done meanwhile."""
        self.channel.move_to(None)
        self._on_end = on_end

    def unpark(self) -> None:
        """A request is about to take it up, or it is given up."""
        self._on_end = None

    def resume(self, channel: ReplyChannel | None, progress_token: Any, capabilities: Mapping[str, Any]) -> None:
        """Another request of its client waits for it now."""
        self.channel.move_to(channel, progress_token)
        self._capabilities = capabilities

    # The questions

    @property
    def questions(self) -> dict[str, Any]:
        """What the client is asked, as `inputRequests`."""
        return {
            key: {"method": question.method, "params": dict(question.params or {})}
            for key, question in self._questions.items()
        }

    async def ask(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """Answer a question of the server, once the client has."""
        self._check(method, params)
        size = weight(params)
        needed = size if self._has_place else size + weight(self._params)
        if (over := self._places.take(self, self.principal, needed)) is not None:
            self.refusal = over
            raise _not_asked(method, "no more calls can wait for this client's answers")
        self._has_place = True
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        key = f"question-{next(self._numbers)}"
        self._questions[key] = Question(method, params, answered)
        self._wake()
        try:
            return await answered
        finally:
            self._questions.pop(key, None)
            self._places.give_back(self, self.principal, size)

    def _check(self, method: str, params: Params) -> None:
        """Raise if the question can't be passed on."""
        if self._is_cancelled or self.is_done:  # one more question would take a place again
            raise _not_asked(method, "the call is over")
        needed = required(method, params)
        if needed is None:
            raise ErrorAnswer(f"{method}: not a question", message="Method not found", code=METHOD_NOT_FOUND)
        if not has(self._capabilities, needed):
            self.refusal = missing_capability(method, needed)
            raise _not_asked(method, "the client does not support this")

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take the client's responses. Questions without one stay open, and are asked again."""
        for key, response in responses.items():
            question = self._questions.pop(key, None)
            if question is not None and not question.answered.done():
                question.answered.set_result(answer_of(response))


def missing_capability(method: str, needed: Mapping[str, Any]) -> ErrorAnswer:
    """The answer to a call that failed because its client lacks a capability."""
    return ErrorAnswer(
        f"{method}: the client has not declared {', '.join(needed)}",
        message="Missing required client capability",
        code=MISSING_CAPABILITY,
        data={"requiredCapabilities": dict(needed)},
    )


def with_answer(lacking: ErrorAnswer, answer: ErrorAnswer) -> ErrorAnswer:
    """The same, with the server's own error: the question may have belonged to no call."""
    lacking.data = {**members(lacking.data), "answer": rpc_error(answer)}
    return lacking


def _not_asked(method: str, why: str) -> ErrorAnswer:
    return ErrorAnswer(f"{method}: {why}", message=why, code=METHOD_NOT_FOUND)
