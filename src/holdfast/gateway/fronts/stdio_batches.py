"""The answers to one batch over stdio: one line with an array, or several where they are large together."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.gateway.fronts.pipeline import AnswerChannel
from holdfast.links.codec import weight


class Output(AnswerChannel, Protocol):
    """The pipe to the client."""

    def send_batch(self, messages: list[dict[str, Any]]) -> None:
        """Send several messages as one array."""
        ...


class BatchedLines:
    """The answers that are still missing, and those that wait for them: at most `held` bytes."""

    def __init__(self, output: Output, expected: int, held: int) -> None:
        self.output = output
        self._expected = expected
        self._most = held
        self._waiting: list[dict[str, Any]] = []
        self._held = 0
        self._sent = asyncio.Event()

    def add(self, message: dict[str, Any]) -> None:
        """Add an answer. The last one is sent with all that wait, and so is one with which they get too large."""
        self._expected -= 1
        self._waiting.append(message)
        self._held += weight(message)
        if not self._expected or self._held > self._most:
            waiting, self._waiting, self._held = self._waiting, [], 0
            self._sent.set()
            self._sent = asyncio.Event()
            self.output.send_batch(waiting)

    async def deliver(self, message: dict[str, Any]) -> None:
        """Add an answer, and return when it is sent."""
        sent = self._sent
        self.add(message)
        await sent.wait()


class BatchedLine:
    """The way back to the client for one call of a batch; an `AnswerChannel`."""

    can_ask = True
    is_alone = True
    __slots__ = ("_answers",)

    def __init__(self, answers: BatchedLines) -> None:
        self._answers = answers

    def send(self, message: Mapping[str, Any]) -> None:
        self._answers.output.send(message)

    async def keep_up(self) -> None:
        await self._answers.output.keep_up()

    def cancelled(self) -> Mapping[str, Any] | None:
        return self._answers.output.cancelled()

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        await self._answers.deliver(message)

    async def was_read(self) -> bool:
        return await self._answers.output.was_read()
