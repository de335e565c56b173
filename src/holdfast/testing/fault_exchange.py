"""One request to a `FaultServer`, answered in either era by the specification, or by a planned fault."""

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any, Literal

from holdfast.testing.fault_plan import LOST_SESSION, Fault, Planned, Refusal, error_body
from holdfast.testing.fault_sessions import VERSION_2026, Message, Session, Sessions, members

Answers = Literal["json", "sse"]
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    verb: str
    headers: Mapping[str, str]
    message: Message | None

    @property
    def method(self) -> str | None:
        """The method of the message; None for a GET or DELETE, and for an answer to the server."""
        return None if self.message is None else self.message.get("method")


@dataclass(eq=False, repr=False)
class Behaviour:
    """The settings, planned faults and open streams of a server, shared by all its exchanges."""

    sessions: Sessions
    answers: Answers = "json"
    resumable: bool = False
    get_stream: bool = True
    bearer: str | None = None
    lost: Refusal = LOST_SESSION[0]
    challenge: str = 'Bearer error="invalid_token"'
    planned: list[Planned] = field(default_factory=list[Planned])
    open_streams: list[asyncio.Queue[Message | None]] = field(default_factory=list[asyncio.Queue[Message | None]])
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    kept: dict[str, list[tuple[str, Message]]] = field(default_factory=dict[str, list[tuple[str, Message]]])
    """Answers whose stream was cut, by the id of the last event that was sent."""
    events: int = 0


class Exchange:
    """A request and its answer."""

    def __init__(
        self, server: Behaviour, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._sessions = server.sessions
        self._request = request
        self._reader = reader
        self._writer = writer

    async def serve(self) -> bool:
        """Answer the request or execute the planned fault. Returns False if the connection ends."""
        request = self._request
        planned = next((plan for plan in self._server.planned if plan.matches(request.method or request.verb)), None)
        if planned is None:
            return await self.answer()
        planned.times -= 1
        if planned.effect and request.message is not None:
            self._sessions.happen(request.message)
        done = await self._fail(planned)
        return await self.answer() if done is None else done

    def refuse(self, refusal: Refusal) -> bool:
        """Answer with a refusal."""
        return self._write(refusal.status, refusal.headers, refusal.body)

    async def answer(self) -> bool:
        """Answer the request without a fault."""
        request = self._request
        if self._server.bearer is not None and request.headers.get("authorization") != f"Bearer {self._server.bearer}":
            return self._write(401, {"www-authenticate": self._server.challenge})
        if request.verb == "GET":
            return await self._get()
        if request.verb == "DELETE":
            self._sessions.deletes += 1
            known = self._sessions.sessions.pop(request.headers.get("mcp-session-id", ""), None)
            return self._write(200 if known is not None else 404)
        if request.message is None:
            return self._write(400, body=error_body(-32700, "Parse error"))
        return await self._post(request.message)

    async def _fail(self, planned: Planned) -> bool | None:
        """Execute the fault. Returns None if the request is to be answered normally."""
        message = self._request.message or {"id": None}
        match planned.fault:
            case Fault.HANG:
                await asyncio.Event().wait()
            case Fault.CLOSE:
                return False
            case Fault.RESET:
                raw: socket.socket = self._writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case Fault.CLOSE_IN_BODY:
                self._writer.write(_head(200, {**_JSON, "content-length": "5000"}) + b'{"jsonrpc"')
                await self._writer.drain()
                return False
            case Fault.CLOSE_IN_STREAM:
                self._begin_events()
                if self._server.resumable:
                    event = self._keep(message)
                    self._writer.write(_chunk(f"id: {event}\nretry: 10\ndata: \n\n".encode()))
                else:
                    self._writer.write(_chunk(b": nothing yet\n\n"))
                await self._writer.drain()
                return False
            case Fault.STATUS:
                return self._write(planned.status, {**_JSON, **planned.headers}, planned.body)
            case Fault.FORGET:
                self._sessions.sessions.clear()
            case Fault.CHANGE_ERA:
                self._sessions.sessions.clear()
                self._sessions.era = "2026" if self._sessions.era == "2025" else "2025"
            case Fault.CLOSE_AFTER:
                await self.answer()
                await self._writer.drain()
                return False
            case Fault.STRAYS:
                return await self._with_strays()
            case Fault.BAD_SESSION_ID:
                self._sessions.bad_session_id = "böse id"
            case _:
                return self._write(200, *_nonsense(planned.fault))
        return None

    async def _with_strays(self) -> bool:
        message = self._request.message or {"id": None}
        self._begin_events()
        for id in ("nobody-1", 77, None):
            self._writer.write(_event({"jsonrpc": "2.0", "id": id, "result": {"content": []}}))
        self._writer.write(_chunk(b"data: 17\n\n"))
        async for part in self._sessions.answer(message, self._session()):
            self._writer.write(_event(part))
        return await self._end_events()

    # MCP

    def _session(self) -> Session | None:
        return self._sessions.sessions.get(self._request.headers.get("mcp-session-id", ""))

    def _lost(self) -> bool:
        lost = self._server.lost
        return self._write(lost.status, {**_JSON, **lost.headers}, lost.body)

    async def _post(self, message: Message) -> bool:
        method = message.get("method")
        if method is None:
            waiting = self._sessions.asked.get(message.get("id", ""))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return self._write(202)
        both = self._sessions.era == "both" and self._request.headers.get("mcp-protocol-version") == VERSION_2026
        if self._sessions.era == "2026" or both:
            return await self._post_2026(message)
        if method == "initialize":
            answer, session_id = self._sessions.handshake(message)
            return self._write_json(answer, {"mcp-session-id": session_id} if session_id else {})
        if self._request.headers.get("mcp-protocol-version") == VERSION_2026:
            return self._write(400, _JSON, error_body(-32600, "Bad Request: Missing session ID"))
        session = self._session()
        if session is None and not self._sessions.gives_sessions:
            session = Session("")
        if session is None:
            if "mcp-session-id" not in self._request.headers:
                return self._write(400, _JSON, error_body(-32600, "Bad Request: Missing session ID"))
            return self._lost()
        if "id" not in message:
            if method == "notifications/cancelled":
                self._sessions.cancelled.append(members(message.get("params")).get("requestId"))
            return self._write(202)
        return await self._call(message, session)

    async def _post_2026(self, message: Message) -> bool:
        meta = members(members(message.get("params")).get("_meta"))
        if self._request.headers.get("mcp-protocol-version") != VERSION_2026:
            requested = self._request.headers.get("mcp-protocol-version", "")
            unsupported = {"supported": [VERSION_2026], "requested": requested}
            return self._write(400, _JSON, error_body(-32022, "Unsupported protocol version", unsupported))
        if self._request.headers.get("mcp-method") != message["method"]:
            return self._write(400, _JSON, error_body(-32020, "Mcp-Method does not match"))
        if "io.modelcontextprotocol/clientCapabilities" not in meta:
            return self._write(400, _JSON, error_body(-32602, "_meta lacks clientCapabilities"))
        if message["method"] == "server/discover":
            return self._write_json(self._sessions.discover(message), {})
        if message["method"] == "subscriptions/listen":
            return await self._listen(message)
        return await self._call(message, None)

    async def _call(self, message: Message, session: Session | None) -> bool:
        if self._server.answers == "json":
            answer: Message = {}
            async for part in self._sessions.answer(message, session):
                answer = part
            return self._write_json(answer, {})
        self._begin_events()
        async for part in self._sessions.answer(message, session):
            self._writer.write(_event(part))
            await self._writer.drain()
        return await self._end_events()

    def _keep(self, message: Message) -> str:
        """Continue an answer whose stream was interrupted."""
        self._server.events += 1
        event, kept = f"s{self._server.events}", list[tuple[str, Message]]()
        self._server.kept[event] = kept
        session = self._session()

        async def work() -> None:
            async for part in self._sessions.answer(message, session):
                kept.append((f"{event}-{len(kept)}", part))

        task = asyncio.get_running_loop().create_task(work())
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        return event

    async def _get(self) -> bool:
        if self._sessions.era == "2026" or not self._server.get_stream:
            return self._write(405)
        if self._session() is None:
            return self._lost()
        kept = self._server.kept.get(self._request.headers.get("last-event-id", ""))
        if kept is not None:
            self._begin_events()
            for id, part in kept:
                self._writer.write(_event(part, id))
            return await self._end_events()
        return await self._stream(None)

    async def _listen(self, message: Message) -> bool:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        wanted = message["params"].get("notifications", {})
        acknowledged = {"_meta": meta, "notifications": wanted}
        first = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": acknowledged}
        return await self._stream((first, meta))

    async def _stream(self, first: tuple[Message, Message] | None) -> bool:
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._server.open_streams.append(queue)
        gone = asyncio.ensure_future(self._reader.read(1))
        gone.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            self._begin_events()
            self._writer.write(_chunk(b": open\n\n") if first is None else _event(first[0]))
            await self._writer.drain()
            while (message := await queue.get()) is not None:
                self._server.events += 1
                if first is not None:
                    message = {**message, "params": {**members(message.get("params")), "_meta": first[1]}}
                id = f"e{self._server.events}" if self._server.resumable and first is None else None
                self._writer.write(_event(message, id))
                await self._writer.drain()
        finally:
            gone.cancel()
            self._server.open_streams.remove(queue)
        return False

    # HTTP

    def _begin_events(self) -> None:
        self._writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))

    async def _end_events(self) -> bool:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return True

    def _write_json(self, message: Message, headers: Mapping[str, str]) -> bool:
        return self._write(200, {**_JSON, **headers}, dumps(message).encode())

    def _write(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        known = dict(headers or {})
        if known.pop("", None) is not None:
            self._writer.write(body)
            return False
        status = int(known.pop(":status", status))
        self._writer.write(_head(status, {**known, "content-length": str(len(body))}) + body)
        return True


def _nonsense(fault: Fault) -> tuple[dict[str, str], bytes]:
    match fault:
        case Fault.OVERSIZE:
            return _JSON, b'{"jsonrpc":"2.0","result":{"x":"' + b"x" * 300_000 + b'"}}'
        case Fault.BROKEN_JSON:
            return _JSON, b'{"jsonrpc": "2.0", "id": 1, "result": {"cont'
        case Fault.NOT_JSON_RPC:
            return _JSON, b'["neither", "nor"]'
        case Fault.WRONG_ID:
            return _JSON, dumps({"jsonrpc": "2.0", "id": "of-nobody", "result": {}}).encode()
        case Fault.HTML:
            return {"content-type": "text/html; charset=utf-8"}, b"<!doctype html><title>hello</title>"
        case Fault.NOT_HTTP:
            return {"": ""}, b"SSH-2.0-OpenSSH_9.6\r\n"
        case Fault.ACCEPTED:
            return {":status": "202"}, b""
        case Fault.REDIRECT:
            return {":status": "307", "location": "http://elsewhere.example/mcp"}, b""
        case _:
            raise AssertionError(fault)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Planned", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(message: Message, id: str | None = None) -> bytes:
    head = f"id: {id}\n" if id is not None else ""
    return _chunk(f"{head}event: message\ndata: {dumps(message)}\n\n".encode())


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request of a connection; None at its end."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = raw.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    try:
        message = loads(body) if body else None
    except ValueError:
        message = None
    return Request(first.split(" ", 1)[0], headers, members(message) or None)
