"""One call of a 2026 client whose 2025 server may ask something in the middle of it.

It owns the task that does the call's work, beyond the request that began it, and the questions that wait for an answer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.core.models import Principal
from holdfast.core.questions import has, required
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.gateway.parking.places import Places
from holdfast.gateway.sessions.questions import ReplyChannel
from holdfast.links.calls.handlers import Params
from holdfast.links.codec import weight
from holdfast.links.crossing.open_questions import OpenQuestions, missing_capability, not_asked


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
        self.questions = OpenQuestions()
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
        if self._on_end is not None:
            self._on_end()
        self.questions.end()

    async def settle(self) -> None:
        """Wait until the work is done, or the server waits for answers."""
        if not self.is_done:
            await self.questions.settle(self.task)

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

    async def ask(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        """Answer a question of the server, once the client has."""
        self._check(method, params)
        size = weight(params)
        needed = size if self._has_place else size + weight(self._params)
        if (over := self._places.take(self, self.principal, needed)) is not None:
            self.refusal = over
            raise not_asked(method, "no more calls can wait for this client's answers")
        self._has_place = True
        try:
            return await self.questions.ask(method, params)
        finally:
            self._places.give_back(self, self.principal, size)

    def _check(self, method: str, params: Params) -> None:
        """Raise if the question can't be passed on."""
        if self._is_cancelled or self.is_done:  # one more question would take a place again
            raise not_asked(method, "the call is over")
        needed = required(method, params)
        if needed is None:
            raise ErrorAnswer(f"{method}: not a question", message="Method not found", code=METHOD_NOT_FOUND)
        if not has(self._capabilities, needed):
            self.refusal = missing_capability(method, needed)
            raise not_asked(method, "the client does not support this")


def with_answer(lacking: ErrorAnswer, answer: ErrorAnswer) -> ErrorAnswer:
    """The same, with the server's own error: the question may have belonged to no call."""
    lacking.data = {**members(lacking.data), "answer": rpc_error(answer)}
    return lacking
