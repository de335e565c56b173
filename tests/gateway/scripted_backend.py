"""A backend over HTTP whose answers a test writes down and may change at any time, in either era.

It pushes notifications to those who listen: on the GET stream in 2025, on `subscriptions/listen` in 2026.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

from aiohttp import web

from tests.gateway.web_apps import serving_app

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
Era: TypeAlias = Literal["2025", "2026"]


class Refusal(Exception):
    """The error object of an answer, whole."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.error = dict(error)


Result: TypeAlias = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


class Scripted:
    """`results` has a result, or a function of the params, for each method; others are unknown to it."""

    def __init__(self, era: Era = "2025", **results: Result) -> None:
        self.era = era
        self.url = ""
        self.capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {},
            "resources": {"subscribe": True},
            "completions": {},
        }
        self.results: dict[str, Result] = {
            "tools/list": {"tools": [TOOL]},
            "prompts/list": {"prompts": []},
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
            "tools/call": {"content": []},
            "resources/subscribe": {},
            "resources/unsubscribe": {},
            "ping": {},
            **{name.replace("__", "/"): result for name, result in results.items()},
        }
        self.before: list[dict[str, Any]] = []
        """Notifications that come before the result of a tool; `@TOKEN@` stands for its progress token."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.delays: dict[str, float] = {}
        self._listening: dict[asyncio.Queue[dict[str, Any]], Any] = {}

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.requests)

    def params_of(self, method: str) -> list[dict[str, Any]]:
        return [params for asked, params in self.requests if asked == method]

    @property
    def listening(self) -> int:
        return len(self._listening)

    def push(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification to all who listen."""
        for queue, id in self._listening.items():
            said = dict(params or {})
            if id is not None:
                said["_meta"] = {**said.get("_meta", {}), SUBSCRIPTION_ID: id}
            queue.put_nowait({"jsonrpc": "2.0", "method": method, "params": said})

    def _result(self, method: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if method == "initialize" and self.era == "2025":
            info = {"name": "scripted", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": info}
        if method == "server/discover" and self.era == "2026":
            return {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities, "resultType": "complete"}
        result = self.results.get(method)
        if result is None:
            raise Refusal({"code": -32601, "message": "Method not found"})
        return result(params) if callable(result) else result

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await self._stream(request, None) if self.era == "2025" else web.Response(status=405)
        if request.method == "DELETE":
            return web.Response(status=204)
        message = await request.json()
        method, params = message.get("method"), message.get("params") or {}
        self.requests.append((method, params))
        if "id" not in message or method is None:
            return web.Response(status=202)
        if method == "subscriptions/listen" and self.era == "2026":
            return await self._stream(request, message["id"], params["notifications"])
        await asyncio.sleep(self.delays.get(method, 0))
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = self._result(method, params)
        except Refusal as refusal:
            answer["error"] = refusal.error
        headers = {"mcp-session-id": "abc"} if self.era == "2025" else {}
        if method != "tools/call" or not self.before:
            return web.json_response(answer, headers=headers)
        token = json.dumps(params.get("_meta", {}).get("progressToken"))
        said = [json.dumps({"jsonrpc": "2.0", **each}).replace('"@TOKEN@"', token) for each in self.before]
        text = "".join(f"data: {each}\n\n" for each in (*said, json.dumps(answer)))
        return web.Response(text=text, content_type="text/event-stream", headers=headers)

    async def _stream(self, request: web.Request, id: Any, wanted: Any = None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listening[queue] = id
        if id is not None:
            acknowledged = {"notifications": wanted, "_meta": {SUBSCRIPTION_ID: id}}
            method = "notifications/subscriptions/acknowledged"
            queue.put_nowait({"jsonrpc": "2.0", "method": method, "params": acknowledged})
        with contextlib.suppress(ConnectionError):
            try:
                while True:
                    await response.write(f"data: {json.dumps(await queue.get())}\n\n".encode())
            finally:
                del self._listening[queue]
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Scripted"]:
        app = web.Application()
        app.router.add_route("*", "/mcp", self._serve)
        async with serving_app(app, cancels=True) as self.url:
            yield self

    @property
    def entry(self) -> dict[str, Any]:
        return {"url": self.url, "era": self.era}
