"""A raw server of one era over HTTP, strict about what clients of that era must send.

What it answers stands in `on`, a result or a function for each method; a function gets the `ServerCall`, on which it
may notify and ask. `seen` has every message that came in, with its headers.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import web

from holdfast.core.eras import CLIENT_CAPABILITIES, NAMED_BY, PROTOCOL_VERSION, SUBSCRIPTION_ID, header_value
from tests.deadlines import until
from tests.eras.cells import Era
from tests.eras.offers import handshake_2025, handshake_2026, lists
from tests.gateway.web_apps import serving_app

HEADER_MISMATCH, UNSUPPORTED_VERSION, INVALID_PARAMS, UNKNOWN_METHOD = -32020, -32022, -32602, -32601
UPDATED = "notifications/resources/updated"
_KINDS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
Json: TypeAlias = dict[str, Any]


class Refusal(Exception):
    """The error object of an answer, whole, and its HTTP status."""

    def __init__(self, code: int, message: str, status: int = 200, **members: Any) -> None:
        super().__init__(code, message)
        self.error: Json = {"code": code, "message": message, **members}
        self.status = status


class InputRequired(Exception):
    """A 2026 result that asks the client."""

    def __init__(self, result: Json) -> None:
        super().__init__(result)
        self.result = result


class Cut(Exception):
    """The answer's stream ends here, without an answer."""


@dataclass(frozen=True)
class Seen:
    """A message that came in."""

    method: str | None
    message: Json
    headers: Mapping[str, str]

    @property
    def params(self) -> Json:
        return self.message.get("params") or {}


class ServerCall:
    """A request of the client, while it is answered."""

    def __init__(self, server: "EraServer", request: web.Request, message: Json) -> None:
        self.id = message["id"]
        self.method: str = message["method"]
        self.params: Json = message.get("params") or {}
        self.headers = request.headers
        self.token = self.params.get("_meta", {}).get("progressToken")
        self.stream: web.StreamResponse | None = None
        self._server = server
        self._request = request
        self._rounds = 0
        self._writing = asyncio.Lock()

    async def send(self, message: Json, event_id: str | None = None) -> None:
        async with self._writing:
            if self.stream is None:
                self.stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await self.stream.prepare(self._request)
            lead = f"id: {event_id}\nretry: 10\n" if event_id is not None else ""
            await self.stream.write(f"{lead}data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode())

    async def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification on the call's own stream."""
        await self.send({"method": method, "params": params or {}})

    async def ask(self, method: str, params: Json | None = None) -> Json:
        """Ask the client on the call's own stream (2025), and return its whole answer."""
        id, answer = self._server.question()
        await self.send({"id": id, "method": method, **({"params": params} if params is not None else {})})
        return await answer

    async def questions(self, questions: Mapping[str, tuple[str, Json | None]]) -> dict[str, Any]:
        """Ask all of them at once in the way of the server's era, and return the results by key."""
        if self._server.era == "2025":
            answers = await asyncio.gather(*(self.ask(*each) for each in questions.values()))
            if failed := [answer["error"] for answer in answers if "error" in answer]:
                raise Refusal(failed[0]["code"], failed[0]["message"])
            return dict(zip(questions, (answer["result"] for answer in answers), strict=True))
        state = self.params.get("requestState")
        past: list[dict[str, Any]] = json.loads(state) if state is not None else []
        if state is not None and self.params.get("inputResponses") is not None:
            past.append(self.params["inputResponses"])
        turn, self._rounds = self._rounds, self._rounds + 1
        if turn < len(past):
            return past[turn]
        asked = {
            key: {"method": method, **({"params": params} if params is not None else {})}
            for key, (method, params) in questions.items()
        }
        raise InputRequired({"resultType": "input_required", "inputRequests": asked, "requestState": json.dumps(past)})


Handler: TypeAlias = Json | Callable[[ServerCall], Awaitable[Json]]


class EraServer:
    """The server."""

    def __init__(self, era: Era) -> None:
        self.era: Era = era
        self.url = ""
        self.capabilities: Json = {}
        self.on: dict[str, Handler] = {}
        self.seen: list[Seen] = []
        self.running = 0
        self.hung_up: list[str] = []
        """Methods whose client closed the connection before the answer."""
        self.ended: list[str] = []
        """Sessions that were ended by DELETE."""
        self.resumed: list[str] = []
        """Ids of events after which a client wanted the rest of a stream."""
        self.rest: list[Json] = []
        """What those clients get."""
        self._sessions: set[str] = set()
        self._subscribed: set[tuple[str | None, str]] = set()
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Json]] = {}
        self._streams: dict[asyncio.Queue[Json], tuple[Any, Json, str | None]] = {}
        self.reset()

    def reset(self) -> None:
        """As at first, for the next walk. Sessions and streams stay: the gateway's own are among them."""
        self.on = {**(handshake_2025() if self.era == "2025" else handshake_2026()), **lists(self.era)}
        for each in (self.seen, self.hung_up, self.ended, self.resumed, self.rest):
            each.clear()
        self._waiting.clear()

    def all(self, method: str, **params: Any) -> list[Seen]:
        """The messages of a method that came in, with these parameters."""
        return [
            each
            for each in self.seen
            if each.method == method and all(each.params.get(name) == value for name, value in params.items())
        ]

    def one(self, method: str, **params: Any) -> Seen:
        found = self.all(method, **params)
        assert len(found) == 1, f"{method} came {len(found)} times, of {[each.method for each in self.seen]}"
        return found[0]

    def question(self) -> tuple[str, "asyncio.Future[Json]"]:
        id = f"question-{next(self._ids)}"
        self._waiting[id] = asyncio.get_running_loop().create_future()
        return id, self._waiting[id]

    def push(self, method: str, params: Json | None = None) -> None:
        """Send a notification to all who listen for it: on GET streams in 2025, on `subscriptions/listen` in 2026."""
        for queue, (id, wanted, session) in self._streams.items():
            said = dict(params or {})
            if id is None and method == UPDATED and (session, said["uri"]) not in self._subscribed:
                continue
            if id is not None:
                uri_wanted = said.get("uri") in wanted.get("resourceSubscriptions", ())
                if not (uri_wanted or wanted.get(_KINDS.get(method, "")) or method.startswith("notifications/tasks")):
                    continue
                said["_meta"] = {**said.get("_meta", {}), SUBSCRIPTION_ID: id}
            queue.put_nowait({"method": method, "params": said})

    async def push_question(self, session: str, method: str, params: Json | None = None) -> Json:
        """Ask on the GET stream of a session, once it is open."""
        await until(lambda: session in [each for _, _, each in self._streams.values()])
        id, answer = self.question()
        (queue,) = [queue for queue, (_, _, each) in self._streams.items() if each == session]
        queue.put_nowait({"id": id, "method": method, "params": params or {}})
        return await answer

    def forget_sessions(self) -> None:
        """As after a restart."""
        self._sessions.clear()

    @property
    def listens(self) -> list[Json]:
        """The filters of the open streams; empty ones are GET streams."""
        return [wanted for _, wanted, _ in self._streams.values()]

    # Requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await self._get(request)
        if request.method == "DELETE":
            if self.era == "2026":
                return web.Response(status=405)
            session = request.headers.get("mcp-session-id", "")
            self._sessions.discard(session)
            self.ended.append(session)
            return web.Response(status=204)
        message = await request.json()
        if not isinstance(message, dict):
            return web.Response(status=400)
        method, id = message.get("method"), message.get("id")
        self.seen.append(Seen(method, message, request.headers))
        if method is None:
            if (waiting := self._waiting.pop(id, None)) is not None and not waiting.done():
                waiting.set_result(message)
            return web.Response(status=202)
        if id is None:
            return web.Response(status=202)
        call = ServerCall(self, request, message)
        status, headers = 200, dict[str, str]()
        self.running += 1
        try:
            (self._check_2025 if self.era == "2025" else self._check_2026)(call)
            if method == "subscriptions/listen" and self.era == "2026":
                return await self._listen(request, id, call.params["notifications"])
            answer: Json = {"jsonrpc": "2.0", "id": id, "result": await self._result(call)}
            if method == "initialize":
                headers["mcp-session-id"] = f"session-{next(self._ids)}"
                self._sessions.add(headers["mcp-session-id"])
        except Refusal as refusal:
            answer, status = {"jsonrpc": "2.0", "id": id, "error": refusal.error}, refusal.status
        except Cut:
            assert call.stream is not None
            return call.stream
        except asyncio.CancelledError:
            self.hung_up.append(method)
            raise
        finally:
            self.running -= 1
        if call.stream is None:
            return web.json_response(answer, status=status, headers=headers)
        with contextlib.suppress(ConnectionError):
            await call.send(answer)
        return call.stream

    async def _result(self, call: ServerCall) -> Json:
        if self.era == "2025" and call.method in ("resources/subscribe", "resources/unsubscribe"):
            change = self._subscribed.add if call.method == "resources/subscribe" else self._subscribed.discard
            change((call.headers.get("mcp-session-id"), call.params["uri"]))
        handler = self.on.get(call.method)
        if handler is None:
            raise Refusal(UNKNOWN_METHOD, "Method not found", 404 if self.era == "2026" else 200)
        try:
            result = await handler(call) if callable(handler) else handler
        except InputRequired as wanted:
            result = wanted.result
        return {"resultType": "complete", **result} if self.era == "2026" else result

    def _check_2025(self, call: ServerCall) -> None:
        if call.method == "initialize" or call.method == "server/discover":
            return
        session = call.headers.get("mcp-session-id")
        if session is None:
            raise Refusal(-32600, "Bad Request: Missing session ID", 400)
        if session not in self._sessions:
            raise Refusal(-32600, "Session not found", 404)

    def _check_2026(self, call: ServerCall) -> None:
        if call.headers.get("mcp-protocol-version") != "2026-07-28":
            data = {"supported": ["2026-07-28"], "requested": call.headers.get("mcp-protocol-version")}
            raise Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version", 400, data=data)
        meta = call.params.get("_meta", {})
        if PROTOCOL_VERSION not in meta or CLIENT_CAPABILITIES not in meta:
            raise Refusal(INVALID_PARAMS, "the envelope is missing", 400)
        name = call.params.get(NAMED_BY.get(call.method, ""))
        wanted = {"mcp-method": call.method, "mcp-name": header_value(name) if name is not None else None}
        for header, value in wanted.items():
            if call.headers.get(header) != value:
                raise Refusal(HEADER_MISMATCH, f"{header} is not {value}", 400)

    # Streams

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if self.era == "2026":
            return web.Response(status=405)
        if (last := request.headers.get("last-event-id")) is not None:
            self.resumed.append(last)
            text = "".join(f"data: {json.dumps({'jsonrpc': '2.0', **each})}\n\n" for each in self.rest)
            return web.Response(text=text, content_type="text/event-stream")
        return await self._stream(request, None, {})

    async def _listen(self, request: web.Request, id: Any, wanted: Json) -> web.StreamResponse:
        return await self._stream(request, id, wanted)

    async def _stream(self, request: web.Request, id: Any, wanted: Json) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[Json] = asyncio.Queue()
        if id is not None:
            acknowledged = {"notifications": wanted, "_meta": {SUBSCRIPTION_ID: id}}
            queue.put_nowait({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})
        self._streams[queue] = (id, wanted, request.headers.get("mcp-session-id"))
        with contextlib.suppress(ConnectionError):
            try:
                while True:
                    message = json.dumps({"jsonrpc": "2.0", **await queue.get()})
                    await response.write(f"data: {message}\n\n".encode())
            finally:
                del self._streams[queue]
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["EraServer"]:
        async with _listening(self._serve) as self.url:
            yield self


@asynccontextmanager
async def serving_both_eras() -> AsyncGenerator[dict[Era, EraServer]]:
    """A server of both eras at one URL: each request goes to that of its era, by its header."""
    servers: dict[Era, EraServer] = {"2025": EraServer("2025"), "2026": EraServer("2026")}

    async def serve(request: web.Request) -> web.StreamResponse:
        is_2026 = request.headers.get("mcp-protocol-version") == "2026-07-28"
        return await servers["2026" if is_2026 else "2025"]._serve(request)

    async with _listening(serve) as url:
        for server in servers.values():
            server.url = url
        yield servers


@asynccontextmanager
async def _listening(serve: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/mcp", serve)
    async with serving_app(app, cancels=True) as url:
        yield url
