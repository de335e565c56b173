"""A raw client of the gateway: HTTP and JSON by hand."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from holdfast.core.sse import Parser
from tests.eras.cells import Cell
from tests.eras.client import Client, Json, Reply, Running

BOTH = "application/json, text/event-stream"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | dict.fromkeys(
    ("tasks/get", "tasks/update", "tasks/cancel"), "taskId"
)


class HttpClient(Client):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self.url = url
        self.session: str | None = None
        self.event_ids: list[str] = []
        """Of all events that came."""
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))

    async def close(self) -> None:
        await self._end_tasks()
        if self.session is not None:
            await self.send("DELETE")
        await self._http.close()

    def headers(self, message: Any = None, **extra: str) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": BOTH}
        if self.era == "2025":
            if self.session is not None:
                headers |= {"mcp-session-id": self.session, "mcp-protocol-version": self.version}
        elif message is not None:
            headers |= {"mcp-protocol-version": self.version, "mcp-method": message["method"]}
            name = message["params"].get(_NAMED.get(message["method"], ""))
            if name is not None:
                headers["mcp-name"] = _header(name)
        return headers | {name.replace("_", "-"): value for name, value in extra.items()}

    async def send(
        self, verb: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], Any]:
        """Any request, with these headers only if they are given: status, headers and JSON of the answer."""
        data = json.dumps(body).encode() if body is not None else None
        async with self._http.request(verb, self.url, data=data, headers=headers or self.headers()) as response:
            raw = await response.read()
            parsed = json.loads(raw) if raw and response.content_type == "application/json" else None
            return response.status, response.headers, parsed

    async def begin(self, method: str, params: Json | None = None, **headers: str) -> "HttpRunning":
        id, stamped = next(self.ids), self.stamped(params)
        message: Json = {"jsonrpc": "2.0", "id": id, "method": method}
        if stamped is not None:
            message["params"] = stamped
        task = self._start(self._call(message, self.headers(message, **headers)))
        return HttpRunning(self, id, task)

    async def notify(self, method: str, params: Json | None = None) -> None:
        message: Json = {"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})}
        status, _, answer = await self.send("POST", message, self.headers(message))
        assert status == 202, (status, answer)

    @asynccontextmanager
    async def _notices_2025(self) -> AsyncGenerator[None]:
        opened = asyncio.get_running_loop().create_future()
        task = self._start(self._read_stream(opened))
        try:
            assert await opened == 200
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _call(self, message: Json, headers: Mapping[str, str]) -> Reply:
        data = json.dumps(message).encode()
        async with self._http.post(self.url, data=data, headers=headers) as response:
            if message["method"] == "initialize":
                self.session = response.headers.get("mcp-session-id")
            notices: list[Json] = []
            async for each in self._messages(response):
                if "method" in each:
                    notices.append(each)
                    self.notices.append(each)
                elif each.get("id") == message["id"] or response.status >= 400:
                    return Reply(each, notices, response.status)
        raise AssertionError(f"HTTP {response.status} without an answer to {message['method']}")

    async def _read_stream(self, opened: "asyncio.Future[int]", **headers: str) -> None:
        async with self._http.get(self.url, headers=self.headers(**headers)) as response:
            opened.set_result(response.status)
            async for each in self._messages(response):
                if "method" in each:
                    self.notices.append(each)

    async def send_batch(self, batch: list[Json]) -> list[Json]:
        """The answers to several messages in one body."""
        async with self._http.post(self.url, data=json.dumps(batch).encode(), headers=self.headers()) as response:
            found: list[Json] = []
            async for each in self._messages(response):
                found += each if isinstance(each, list) else [each]
            return found

    async def resume(self, after: str) -> AsyncIterator[Json]:
        """The messages of a stream after an event."""
        async with self._http.get(self.url, headers=self.headers(last_event_id=after)) as response:
            assert response.status == 200
            async for each in self._messages(response):
                yield each

    async def _messages(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        """Answers and notifications. The server's questions are answered at once."""
        if response.content_type != "text/event-stream":
            raw = await response.read()
            assert raw, f"HTTP {response.status} without a body"
            yield json.loads(raw)
            return
        parser = Parser(10_000_000)
        async for chunk in response.content.iter_any():
            for event in parser.feed(chunk):
                if event.id:
                    self.event_ids.append(event.id)
                if not event.data:
                    continue
                message = json.loads(event.data)
                if "method" in message and "id" in message:
                    assert self.era == "2025", "a 2026 client got a request"
                    self._start(self._answer(message))
                else:
                    yield message

    async def _answer(self, question: Json) -> None:
        answer = {"jsonrpc": "2.0", "id": question["id"], **await self.answer_to(question)}
        status, _, said = await self.send("POST", answer)
        assert status == 202, (status, said)


class HttpRunning(Running):
    """A request under way."""

    def __init__(self, client: HttpClient, id: int, task: "asyncio.Task[Reply]") -> None:
        self.id = id
        self._client = client
        self._task = task

    async def cancel(self) -> None:
        if self._client.era == "2025":
            await self._client.notify("notifications/cancelled", {"requestId": self.id, "reason": "no more"})
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def reply(self) -> Reply:
        return await self._task


def _header(value: str) -> str:
    if value.isascii() and value.isprintable() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
