"""What raw clients have in common whose messages all come on one stream: answers find their requests by ids."""

import asyncio
from abc import abstractmethod
from typing import Any

from tests.eras.cells import Cell
from tests.eras.client import Client, Json, Reply, Running


class MessageClient(Client):
    """The client."""

    def __init__(self, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._calls: dict[Any, tuple[asyncio.Future[Reply], int]] = {}

    @abstractmethod
    async def send(self, message: Json, **headers: str) -> None:
        """Send a message as it is."""

    async def begin(self, method: str, params: Json | None = None, **headers: str) -> "MessageRunning":
        id = next(self.ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[id] = (answer, len(self.notices))
        stamped = self.stamped(params)
        message = {"id": id, "method": method, **({"params": stamped} if stamped is not None else {})}
        await self.send(message, **headers)
        return MessageRunning(self, id, answer)

    async def notify(self, method: str, params: Json | None = None) -> None:
        await self.send({"method": method, **({"params": params} if params is not None else {})})

    def take(self, message: Json) -> None:
        """A message of the server."""
        if "method" not in message:
            answer, before = self._calls.pop(message["id"], (None, 0))
            if answer is not None and not answer.done():
                answer.set_result(Reply(message, self.notices[before:]))
        elif "id" in message and self.era == "2026":
            for answer, _ in self._calls.values():
                answer.set_exception(AssertionError(f"a 2026 client got the request {message['method']}"))
        elif "id" in message:
            self._start(self._answer(message))
        else:
            self.notices.append(message)

    async def _answer(self, question: Json) -> None:
        await self.send({"id": question["id"], **await self.answer_to(question)})

    def give_up(self) -> None:
        """No more answers come."""
        for answer, _ in self._calls.values():
            answer.cancel()


class MessageRunning(Running):
    """A request under way."""

    def __init__(self, client: MessageClient, id: int, answer: "asyncio.Future[Reply]") -> None:
        self.id = id
        self._client = client
        self._answer = answer

    async def cancel(self) -> None:
        await self._client.notify("notifications/cancelled", {"requestId": self.id, "reason": "no more"})

    async def reply(self) -> Reply:
        return await self._answer
