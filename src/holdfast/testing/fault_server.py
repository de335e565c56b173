"""An HTTP server with planned faults, on a loopback port: either era, answers as JSON or as event streams.

It does its own framing, so that it can break it anywhere; what it would answer is in `fault_sessions.py`. It counts
effects by call id, so that a test can prove "executed exactly once".
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps, loads
from types import TracebackType
from typing import Any, Literal, Self

from holdfast.testing.fault_plan import LOST_SESSION, Fault, Planned, Refusal, error_body
from holdfast.testing.fault_sessions import VERSION_2026, Message, Session, Sessions, members

Answers = Literal["json", "sse"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came in."""

    verb: str
    headers: Mapping[str, str]
    message: Message | None

    @property
    def method(self) -> str | None:
        return None if self.message is None else self.message.get("method")


class FaultServer:
    """`async with FaultServer(era="2025") as server: server.plan(Fault.CLOSE); Link(server.url)`."""

    def __init__(
        self,
        *,
        era: Literal["2025", "2026", "both"] = "2025",
        answers: Answers = "json",
        resumable: bool = False,
        get_stream: bool = True,
        bearer: str | None = None,
        lost: Refusal = LOST_SESSION[0],
        path: str = "/mcp",
    ) -> None:
        self.sessions = Sessions(era)
        self.answers: Answers = answers
        self.resumable = resumable
        self.get_stream = get_stream
        self.bearer = bearer
        self.lost = lost
        self.path = path
        self.challenge = 'Bearer error="invalid_token"'
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._planned: list[Planned] = []
        self._listener: asyncio.Server | None = None
        self._readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams: list[asyncio.Queue[Message | None]] = []
        self._kept: dict[str, list[tuple[str, Message]]] = {}
        self._events = 0

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def effects(self) -> Mapping[str, int]:
        """How often each tool was executed, by the key of its call."""
        return self.sessions.effects

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse connections, and cut those that are open, until `listen`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.cut()

    async def cut(self) -> None:
        """Close every connection."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def restart(self) -> None:
        """Restart without the sessions; the counts of effects are kept."""
        await self.refuse()
        self.sessions.sessions.clear()
        await self.listen()

    async def close(self) -> None:
        """Stop serving; every connection is cut."""
        self.sessions.release.set()
        await self.refuse()

    def plan(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        times: int = 1,
        effect: bool = False,
        refusal: Refusal | None = None,
        status: int = 500,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Plan a fault for the next `times` requests of `method`. Plans apply in the order they were made."""
        if refusal is not None:
            status, headers, body = refusal.status, refusal.headers, refusal.body
        self._planned.append(Planned(fault, method, times, effect, status, headers or {}, body))

    def lift(self) -> None:
        """Remove all plans, and release requests that hang."""
        self._planned.clear()

    def push(self, message: Message) -> int:
        """Send a message on every open server stream. Returns how many there are."""
        for queue in self._streams:
            queue.put_nowait(message)
        return len(self._streams)

    def drop_streams(self) -> None:
        """Close every open server stream."""
        for queue in self._streams:
            queue.put_nowait(None)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    # One connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._readers[writer] = reader
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not await self._serve(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._readers.pop(writer, None)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False if the connection ends with it."""
        planned = next((plan for plan in self._planned if plan.matches(request.method or request.verb)), None)
        if planned is not None:
            planned.times -= 1
            if planned.effect and request.message is not None:
                self.sessions.happen(request.message)
            done = await self._fail(planned, request, writer)
            if done is not None:
                return done
        if self.bearer is not None and request.headers.get("authorization") != f"Bearer {self.bearer}":
            return self._write(writer, 401, {"www-authenticate": self.challenge})
        if request.verb == "GET":
            return await self._get(request, writer)
        if request.verb == "DELETE":
            self.sessions.deletes += 1
            known = self.sessions.sessions.pop(request.headers.get("mcp-session-id", ""), None)
            return self._write(writer, 200 if known is not None else 404)
        if request.message is None:
            return self._write(writer, 400, body=error_body(-32700, "Parse error"))
        return await self._post(request, request.message, writer)

    async def _fail(self, planned: Planned, request: Request, writer: asyncio.StreamWriter) -> bool | None:
        """Do what the fault says. None: go on and answer the request."""
        message = request.message or {"id": None}
        match planned.fault:
            case Fault.HANG:
                await asyncio.Event().wait()
            case Fault.CLOSE:
                return False
            case Fault.RESET:
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case Fault.CLOSE_IN_BODY:
                writer.write(_head(200, {"content-type": "application/json", "content-length": "5000"}) + b'{"jsonrpc"')
                await writer.drain()
                return False
            case Fault.CLOSE_IN_STREAM:
                writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
                if self.resumable:
                    event = self._keep(message, request)
                    writer.write(_chunk(f"id: {event}\nretry: 10\ndata: \n\n".encode()))
                else:
                    writer.write(_chunk(b": nothing yet\n\n"))
                await writer.drain()
                return False
            case Fault.STATUS:
                headers = {"content-type": "application/json", **planned.headers}
                return self._write(writer, planned.status, headers, planned.body)
            case Fault.FORGET:
                self.sessions.sessions.clear()
            case Fault.CHANGE_ERA:
                self.sessions.sessions.clear()
                self.sessions.era = "2026" if self.sessions.era == "2025" else "2025"
            case Fault.CLOSE_AFTER:
                await self._serve_without_plan(request, writer)
                await writer.drain()
                return False
            case Fault.STRAYS:
                return await self._with_strays(request, writer)
            case Fault.BAD_SESSION_ID:
                self.sessions.bad_session_id = "böse id"
            case _:
                return self._write(writer, 200, *self._nonsense(planned.fault))
        return None

    def _nonsense(self, fault: Fault) -> tuple[dict[str, str], bytes]:
        json = {"content-type": "application/json"}
        match fault:
            case Fault.OVERSIZE:
                return json, b'{"jsonrpc":"2.0","result":{"x":"' + b"x" * 300_000 + b'"}}'
            case Fault.BROKEN_JSON:
                return json, b'{"jsonrpc": "2.0", "id": 1, "result": {"cont'
            case Fault.NOT_JSON_RPC:
                return json, b'["neither", "nor"]'
            case Fault.WRONG_ID:
                return json, dumps({"jsonrpc": "2.0", "id": "of-nobody", "result": {}}).encode()
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

    async def _serve_without_plan(self, request: Request, writer: asyncio.StreamWriter) -> None:
        planned, self._planned = self._planned, []
        try:
            await self._serve(request, writer)
        finally:
            self._planned = planned

    async def _with_strays(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        message = request.message or {"id": None}
        writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        for id in ("nobody-1", 77, None):
            writer.write(_event({"jsonrpc": "2.0", "id": id, "result": {"content": []}}))
        writer.write(_chunk(b"data: 17\n\n"))
        async for part in self.sessions.answer(message, self._session(request)):
            writer.write(_event(part))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    # MCP

    def _session(self, request: Request) -> Session | None:
        return self.sessions.sessions.get(request.headers.get("mcp-session-id", ""))

    async def _post(self, request: Request, message: Message, writer: asyncio.StreamWriter) -> bool:
        method = message.get("method")
        if method is None:
            waiting = self.sessions.asked.get(message.get("id", ""))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return self._write(writer, 202)
        both = self.sessions.era == "both" and request.headers.get("mcp-protocol-version") == VERSION_2026
        if self.sessions.era == "2026" or both:
            return await self._post_2026(request, message, writer)
        if method == "initialize":
            answer, session_id = self.sessions.handshake(message)
            return self._write_json(writer, answer, {"mcp-session-id": session_id} if session_id else {})
        if request.headers.get("mcp-protocol-version") == VERSION_2026:
            return self._write(writer, 400, _JSON, error_body(-32600, "Bad Request: Missing session ID"))
        session = self._session(request)
        if session is None and not self.sessions.gives_sessions:
            session = Session("")
        if session is None:
            if "mcp-session-id" not in request.headers:
                return self._write(writer, 400, _JSON, error_body(-32600, "Bad Request: Missing session ID"))
            return self._write(writer, self.lost.status, {**_JSON, **self.lost.headers}, self.lost.body)
        if "id" not in message:
            if method == "notifications/cancelled":
                self.sessions.cancelled.append(members(message.get("params")).get("requestId"))
            return self._write(writer, 202)
        return await self._answer(message, session, writer)

    async def _post_2026(self, request: Request, message: Message, writer: asyncio.StreamWriter) -> bool:
        meta = members(members(message.get("params")).get("_meta"))
        if request.headers.get("mcp-protocol-version") != VERSION_2026:
            unsupported = {"supported": [VERSION_2026], "requested": request.headers.get("mcp-protocol-version", "")}
            return self._write(writer, 400, _JSON, error_body(-32022, "Unsupported protocol version", unsupported))
        if request.headers.get("mcp-method") != message["method"]:
            return self._write(writer, 400, _JSON, error_body(-32020, "Mcp-Method does not match"))
        if "io.modelcontextprotocol/clientCapabilities" not in meta:
            return self._write(writer, 400, _JSON, error_body(-32602, "_meta lacks clientCapabilities"))
        if message["method"] == "server/discover":
            return self._write_json(writer, self.sessions.discover(message), {})
        if message["method"] == "subscriptions/listen":
            return await self._listen(message, writer)
        return await self._answer(message, None, writer)

    async def _answer(self, message: Message, session: Session | None, writer: asyncio.StreamWriter) -> bool:
        if self.answers == "json":
            answer: Message = {}
            async for part in self.sessions.answer(message, session):
                answer = part
            return self._write_json(writer, answer, {})
        writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        async for part in self.sessions.answer(message, session):
            writer.write(_event(part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _keep(self, message: Message, request: Request) -> str:
        """Finish an answer whose stream was cut, so that it can be resumed."""
        self._events += 1
        event, kept = f"s{self._events}", list[tuple[str, Message]]()
        self._kept[event] = kept
        session = self._session(request)

        async def work() -> None:
            async for part in self.sessions.answer(message, session):
                kept.append((f"{event}-{len(kept)}", part))

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return event

    async def _get(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if self.sessions.era == "2026" or not self.get_stream:
            return self._write(writer, 405)
        if self._session(request) is None:
            return self._write(writer, self.lost.status, {**_JSON, **self.lost.headers}, self.lost.body)
        kept = self._kept.get(request.headers.get("last-event-id", ""))
        if kept is not None:
            writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
            for id, part in kept:
                writer.write(_event(part, id))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        return await self._stream(writer, None)

    async def _listen(self, message: Message, writer: asyncio.StreamWriter) -> bool:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        wanted = message["params"].get("notifications", {})
        acknowledged = {"_meta": meta, "notifications": wanted}
        first = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": acknowledged}
        return await self._stream(writer, (first, meta))

    async def _stream(self, writer: asyncio.StreamWriter, first: tuple[Message, Message] | None) -> bool:
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._streams.append(queue)
        gone = asyncio.ensure_future(self._readers[writer].read(1))
        gone.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
            writer.write(_chunk(b": open\n\n") if first is None else _event(first[0]))
            await writer.drain()
            while (message := await queue.get()) is not None:
                self._events += 1
                if first is not None:
                    message = {**message, "params": {**members(message.get("params")), "_meta": first[1]}}
                writer.write(_event(message, f"e{self._events}" if self.resumable and first is None else None))
                await writer.drain()
        finally:
            gone.cancel()
            self._streams.remove(queue)
        return False

    # HTTP

    def _write_json(self, writer: asyncio.StreamWriter, message: Message, headers: Mapping[str, str]) -> bool:
        return self._write(writer, 200, {**_JSON, **headers}, dumps(message).encode())

    def _write(
        self, writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bool:
        known = dict(headers or {})
        if known.pop("", None) is not None:
            writer.write(body)
            return False
        status = int(known.pop(":status", status))
        writer.write(_head(status, {**known, "content-length": str(len(body))}) + body)
        return True


_JSON = {"content-type": "application/json"}


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Planned", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(message: Message, id: str | None = None) -> bytes:
    head = f"id: {id}\n" if id is not None else ""
    return _chunk(f"{head}event: message\ndata: {dumps(message)}\n\n".encode())


async def _read(reader: asyncio.StreamReader) -> Request | None:
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
