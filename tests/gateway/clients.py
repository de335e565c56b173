"""Clients of a gateway for tests: HTTP and JSON by hand, answers and event streams as they came."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from holdfast.core.sse import Parser

BOTH = "application/json, text/event-stream"


class Answer:
    """One HTTP answer: status, headers, and what came, message by message."""

    def __init__(self, status: int, headers: Mapping[str, str], messages: list[dict[str, Any]], raw: bytes) -> None:
        self.status = status
        self.headers = headers
        self.messages = messages
        self.raw = raw

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.last, self.raw[:500]
        return self.last["result"]

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.last, self.raw[:500]
        return self.last["error"]

    @property
    def text(self) -> str:
        return self.result["content"][0]["text"]


class RawClient:
    """A client that knows HTTP and JSON, and nothing of sessions but what it is told."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token
        self.session: str | None = None
        self._ids = itertools.count(1)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    def headers(self, **extra: str) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": BOTH}
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers | {name.replace("_", "-"): value for name, value in extra.items()}

    async def send(
        self, body: bytes | dict[str, Any] | list[Any], verb: str = "POST", headers: Mapping[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._http.request(verb, self.url, data=data, headers=headers or self.headers()) as response:
            raw = await response.read()
            return Answer(response.status, response.headers, messages_in(raw, response.content_type), raw)

    async def initialize(self, capabilities: Mapping[str, Any] | None = None, version: str = "2025-11-25") -> Answer:
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = await self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        if answer.status == 200:
            self.session = answer.headers["mcp-session-id"]
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        if params is not None:
            message["params"] = dict(params)
        return await self.send(message, headers=self.headers(**headers))

    async def call(self, tool: str, **arguments: Any) -> Answer:
        return await self.ask("tools/call", {"name": tool, "arguments": arguments})

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.ask("tools/list")).result["tools"]]

    async def delete(self) -> Answer:
        return await self.send(b"", "DELETE")

    async def ask_2026(self, method: str, params: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            **(params or {}).get("_meta", {}),
        }
        body = {**(params or {}), "_meta": meta}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": body}
        name = body.get("name", body.get("uri")) if method in _NAMED else None
        named = {"mcp_name": str(name)} if name is not None else {}
        sent = self.headers(**{"mcp_protocol_version": "2026-07-28", "mcp_method": method, **named, **headers})
        return await self.send(message, headers={name: value for name, value in sent.items() if value})

    async def call_2026(self, tool: str, **arguments: Any) -> Answer:
        return await self.ask_2026("tools/call", {"name": tool, "arguments": arguments})

    @asynccontextmanager
    async def stream(
        self, verb: str = "GET", body: dict[str, Any] | None = None, **headers: str
    ) -> AsyncGenerator["Events"]:
        data = json.dumps(body).encode() if body is not None else None
        sent = self.headers(**headers)
        async with self._http.request(verb, self.url, headers=sent, data=data) as response:
            events = Events(response)
            try:
                yield events
            finally:
                response.close()


_NAMED = ("tools/call", "prompts/get", "resources/read")


class Events:
    """An event stream, read one event at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.status = response.status
        self._parser = Parser(10_000_000)
        self._waiting: list[Any] = []

    async def next(self, seconds: float = 5) -> dict[str, Any]:
        """The next message."""
        return json.loads((await self.event(seconds)).data)

    async def event(self, seconds: float = 5) -> Any:
        async with asyncio.timeout(seconds):
            while True:
                while self._waiting:
                    event = self._waiting.pop(0)
                    if event.data:
                        return event
                chunk = await self.response.content.readany()
                if not chunk:
                    raise EOFError
                self._waiting.extend(self._parser.feed(chunk))


def messages_in(raw: bytes, kind: str) -> list[dict[str, Any]]:
    if kind == "text/event-stream":
        return [json.loads(event.data) for event in Parser(10_000_000).feed(raw) if event.data]
    return [json.loads(raw)] if raw and kind == "application/json" else []
