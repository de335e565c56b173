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

from tests.deadlines import patience
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
        self.handshake: dict[str, Any] = {}
        """Members of its handshake's result besides, or in place of, the usual ones."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.delays: dict[str, float] = {}
        self._asked = 0
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.aside: list[tuple[str, dict[str, Any]]] = []
        """Notifications that a tool sends on the GET stream of the calling session alone, before its result."""
        self.open_calls = 0
        self.answered = 0
        self.gates: dict[str, asyncio.Event] = {}
        """Methods whose answers wait for an event."""
        self._listening: dict[asyncio.Queue[dict[str, Any] | None], Any] = {}
        self._session_of: dict[asyncio.Queue[dict[str, Any] | None], str | None] = {}

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.requests)

    def params_of(self, method: str) -> list[dict[str, Any]]:
        return [params for asked, params in self.requests if asked == method]

    @property
    def listening(self) -> int:
        return len(self._listening)

    def push(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> None:
        """Send a notification to all who listen, or in one session."""
        for queue, id in self._listening.items():
            if session is not None and self._session_of[queue] != session:
                continue
            said = dict(params or {})
            if id is not None:
                said["_meta"] = {**said.get("_meta", {}), SUBSCRIPTION_ID: id}
            queue.put_nowait({"jsonrpc": "2.0", "method": method, "params": said})

    async def ask(self, method: str, params: dict[str, Any] | None = None, seconds: float = 10) -> dict[str, Any]:
        """Ask the one who listened last (2025). Returns the client's whole answer."""
        self._asked += 1
        id = f"q{self._asked}"
        answered = self._answers[id] = asyncio.get_running_loop().create_future()
        queue = list(self._listening)[-1]
        queue.put_nowait({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        async with asyncio.timeout(patience(seconds)):
            return await answered

    def end_streams(self) -> None:
        """End the streams of all who listen."""
        for queue in self._listening:
            queue.put_nowait(None)

    def push_to_each(self, method: str) -> None:
        """Send each who listens a notification of its own, with its number in `n`."""
        for number, queue in enumerate(self._listening):
            queue.put_nowait({"jsonrpc": "2.0", "method": method, "params": {"n": number}})

    def _result(self, method: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if method == "initialize" and self.era == "2025":
            info = {"name": "scripted", "version": "1"}
            usual = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": info}
            return usual | self.handshake
        if method == "server/discover" and self.era == "2026":
            discovered = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities}
            return {**discovered, "resultType": "complete", **self.handshake}
        result = self.results.get(method)
        if result is None:
            raise Refusal({"code": -32601, "message": "Method not found"})
        return result(params) if callable(result) else result

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            await asyncio.sleep(self.delays.get("GET", 0))
            return await self._stream(request, None) if self.era == "2025" else web.Response(status=405)
        if request.method == "DELETE":
            return web.Response(status=204)
        message = await request.json()
        method, params = message.get("method"), message.get("params") or {}
        if method is None and message.get("id") in self._answers:
            self._answers.pop(message["id"]).set_result(message)
            return web.Response(status=202)
        self.requests.append((method, params))
        self.headers.append((method, {name.lower(): value for name, value in request.headers.items()}))
        if "id" not in message or method is None:
            return web.Response(status=202)
        if method == "subscriptions/listen" and self.era == "2026":
            return await self._stream(request, message["id"], params["notifications"])
        await asyncio.sleep(self.delays.get(method, 0))
        self.open_calls += method == "tools/call"
        try:
            if (gate := self.gates.get(method)) is not None:
                await gate.wait()
            self.answered += method == "tools/call"
        finally:
            self.open_calls -= method == "tools/call"
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = self._result(method, params)
        except Refusal as refusal:
            answer["error"] = refusal.error
        session = request.headers.get("mcp-session-id", f"s{self.count('initialize')}")
        headers = {"mcp-session-id": session} if self.era == "2025" else {}
        if method == "tools/call":
            for note, said in self.aside:
                self.push(note, said, session)
        if method != "tools/call" or not self.before:
            return web.json_response(answer, headers=headers)
        token = json.dumps(params.get("_meta", {}).get("progressToken"))
        said = [json.dumps({"jsonrpc": "2.0", **each}).replace('"@TOKEN@"', token) for each in self.before]
        text = "".join(f"data: {each}\n\n" for each in (*said, json.dumps(answer)))
        return web.Response(text=text, content_type="text/event-stream", headers=headers)

    async def _stream(self, request: web.Request, id: Any, wanted: Any = None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._listening[queue] = id
        self._session_of[queue] = request.headers.get("mcp-session-id")
        if id is not None:
            acknowledged = {"notifications": wanted, "_meta": {SUBSCRIPTION_ID: id}}
            method = "notifications/subscriptions/acknowledged"
            queue.put_nowait({"jsonrpc": "2.0", "method": method, "params": acknowledged})
        with contextlib.suppress(ConnectionError):
            try:
                while (said := await queue.get()) is not None:
                    await response.write(f"data: {json.dumps(said)}\n\n".encode())
            finally:
                del self._listening[queue], self._session_of[queue]
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
