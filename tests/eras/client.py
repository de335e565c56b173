"""A raw client of one era: what the client of the gateway and the client of a link have in common."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from holdfast.core.eras import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION, SERVER_INFO
from tests.deadlines import until
from tests.eras.cells import Cell

Json: TypeAlias = dict[str, Any]
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ROUNDS = 10
T = TypeVar("T")
_FILTERS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}


@dataclass
class Reply:
    """The answer to a request, what came before it on the same stream, and its HTTP status (None over a link)."""

    message: Json
    notices: list[Json] = field(default_factory=list)
    status: int | None = None

    @property
    def result(self) -> Json:
        assert "result" in self.message, self.message
        return self.message["result"]

    @property
    def error(self) -> Json:
        assert "error" in self.message, self.message
        return self.message["error"]


class Running(ABC):
    """A request under way."""

    id: int

    @abstractmethod
    async def cancel(self) -> None:
        """Cancel it in the way of the client's era."""

    @abstractmethod
    async def reply(self) -> Reply:
        """Wait for the answer."""


class Client(ABC):
    """The client. `answers` has a message with `result` or `error` for each method that a server may ask by."""

    def __init__(self, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        self.cell = cell
        self.era = cell.client
        self.capabilities = capabilities
        self.info = info
        self.version = version or ("2025-11-25" if self.era == "2025" else "2026-07-28")
        self.handshake: Json = {}
        self.refused: Json | None = None
        """The error that came instead of a handshake."""
        self.answers: dict[str, Json | Callable[[Json], Awaitable[Json]]] = {}
        self.asked: list[Json] = []
        """Questions of the server, in the order in which they came."""
        self.notices: list[Json] = []
        """Notifications of all streams."""
        self.ids = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()

    # What is its own in each

    @abstractmethod
    async def begin(self, method: str, params: Json | None = None, **headers: str) -> Running:
        """Send a request."""

    @abstractmethod
    async def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification."""

    @asynccontextmanager
    async def _notices_2025(self) -> AsyncGenerator[None]:
        """Take what the server sends beside calls."""
        yield

    # What all have

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end_tasks(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def _listen_2026(self, params: Json) -> AsyncGenerator[int]:
        """Send `subscriptions/listen`, and give its id."""
        running = await self.begin("subscriptions/listen", params)
        try:
            yield running.id
        finally:
            await running.cancel()

    @property
    def server_info(self) -> Json:
        return self.handshake["serverInfo"] if self.era == "2025" else self.handshake["_meta"][SERVER_INFO]

    async def start(self) -> None:
        """The handshake. Over a link whose server speaks 2025 only, `server/discover` may be refused."""
        if self.era == "2026":
            reply = await self.request("server/discover")
        else:
            own = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": self.info}
            reply = await self.request("initialize", own)
        self.refused = reply.message.get("error")
        self.handshake = reply.message.get("result", {})
        if self.era == "2025" and self.refused is None:
            self.version = self.handshake["protocolVersion"]
            await self.notify("notifications/initialized")

    def stamped(self, params: Json | None) -> Json | None:
        """The parameters as this era sends them."""
        if self.era == "2025":
            return params
        envelope = {
            PROTOCOL_VERSION: self.version,
            CLIENT_CAPABILITIES: self.capabilities,
            CLIENT_INFO: self.info,
        }
        return {**(params or {}), "_meta": {**envelope, **(params or {}).get("_meta", {})}}

    async def answer_to(self, question: Mapping[str, Any]) -> Json:
        """The result or error that a question gets."""
        self.asked.append(dict(question))
        answer = self.answers.get(question["method"])
        if answer is None:
            return {"error": {"code": -32601, "message": "Method not found"}}
        return await answer(dict(question)) if callable(answer) else answer

    async def request(self, method: str, params: Json | None = None, **headers: str) -> Reply:
        """Send a request, and wait for its answer. Questions on its stream are answered meanwhile."""
        return await (await self.begin(method, params, **headers)).reply()

    async def ask(self, method: str, params: Json | None = None) -> Reply:
        """A request, and in 2026 its retries with what the server asks for."""
        params = params or {}
        reply = await self.request(method, params)
        for _ in range(ROUNDS):
            result = reply.message.get("result", {})
            if result.get("resultType") != "input_required":
                return reply
            assert self.era == "2026", "a 2025 client got input_required"
            reply = await self.request(method, {**params, **await self.answers_to(result)})
        raise AssertionError(f"{ROUNDS} rounds of questions were not enough")

    async def answers_to(self, result: Json) -> Json:
        """The parameters of the retry after `input_required`."""
        asked = result.get("inputRequests", {})
        responses = {key: (await self.answer_to(each))["result"] for key, each in asked.items()}
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        return {**({"inputResponses": responses} if responses else {}), **state}

    @asynccontextmanager
    async def listening(self, *lists: str, uris: Sequence[str] = (), **extra: Any) -> AsyncGenerator[int | None]:
        """Subscribed to changes of these lists and resources, in the way of the client's era."""
        if self.era == "2025":
            async with self._notices_2025():
                for uri in uris:
                    assert (await self.request("resources/subscribe", {"uri": uri})).result == {}
                yield None
            return
        wanted: Json = {_FILTERS[each]: True for each in lists} | extra
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        async with self._listen_2026({"notifications": wanted}) as id:
            acknowledged = await self.noticed(ACKNOWLEDGED)
            assert acknowledged["notifications"] == wanted, acknowledged
            yield id

    async def noticed(self, method: str) -> Json:
        """The parameters of the first notification of this method, once it came."""
        await until(lambda: any(each["method"] == method for each in self.notices))
        return self.all_noticed(method)[0]

    def all_noticed(self, method: str) -> list[Json]:
        return [each.get("params", {}) for each in self.notices if each["method"] == method]
