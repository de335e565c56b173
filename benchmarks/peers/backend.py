"""`python benchmarks/peers/backend.py`: the server behind every peer: 2025, JSON, sessions.

It counts requests, opened sessions and sessions that served a call, and has one counter for each session. Its tools are `echo`
(returns the `text` argument, or 64 bytes) and `count`. Requests to `/control/…` on the same port are not counted; they make it
forget its sessions or reset its counts. A request without a session id gets 400, so a 2026 request does too; one with an
unknown id gets 404. It is not an example of a good server.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

TOOLS = {
    "tools": [
        {
            "name": "echo",
            "description": "The text, back.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
        {"name": "count", "description": "How often it was called here.", "inputSchema": {"type": "object"}},
    ]
}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "peers", "version": "1"},
}
EVENTS = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n4\r\n:ok\n\r\n"
EMPTY = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}
WORDS = {200: b"OK", 202: b"Accepted", 400: b"Bad Request", 404: b"Not Found"}


@dataclass
class State:
    """What all connections share."""

    counters: dict[str, int] = field(default_factory=dict)
    streams: set["Connection"] = field(default_factory=set)
    served: set[str] = field(default_factory=set)
    requests: int = 0
    opened: int = 0

    def control(self, order: str) -> dict[str, int]:
        if order == "forget":
            self.counters.clear()
            for stream in list(self.streams):
                stream.close()
        elif order == "zero":
            self.counters = dict.fromkeys(self.counters, 0)
            self.served.clear()
            self.requests = self.opened = 0
        return {"requests": self.requests, "opened": self.opened, "served": len(self.served)}


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, state: State) -> None:
        self._state = state

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._buffer = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.streams.discard(self)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            size = int(_header(head, b"content-length") or 0)
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            verb, path = head.split(b" ", 2)[:2]
            if path.startswith(b"/control/"):
                self._write(200, self._state.control(path[9:].decode()))
            else:
                self._state.requests += 1
                self._answer(verb, _header(head, b"mcp-session-id").decode(), body)

    def _answer(self, verb: bytes, session: str, body: bytes) -> None:
        state = self._state
        message: dict[str, Any] = json.loads(body) if verb == b"post" and body else {}
        id, method = message.get("id"), message.get("method", "")
        if method == "initialize":
            session = uuid4().hex
            state.counters[session] = 0
            state.opened += 1
            self._write(200, {"jsonrpc": "2.0", "id": id, "result": INITIALIZED}, session)
        elif session not in state.counters:
            words = "Session not found" if session else "Bad Request: Missing session ID"
            error = {"code": -32600, "message": words}
            self._write(404 if session else 400, {"jsonrpc": "2.0", "id": id, "error": error})
        elif verb == b"delete":
            del state.counters[session]
            self._write(200, None)
        elif verb == b"get":  # the server's own stream: open, without messages
            state.streams.add(self)
            self._transport.write(EVENTS)
        elif id is None:
            self._write(202, None)
        elif (result := self._result(session, method, message.get("params") or {})) is None:
            error = {"code": -32601, "message": "Method not found"}
            self._write(200, {"jsonrpc": "2.0", "id": id, "error": error})
        else:
            self._write(200, {"jsonrpc": "2.0", "id": id, "result": result})

    def _result(self, session: str, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "tools/call":
            if method in EMPTY:
                return {EMPTY[method]: []}
            return {"tools/list": TOOLS, "ping": {}}.get(method)
        state = self._state
        state.served.add(session)
        if params["name"] == "count":
            state.counters[session] += 1
            text = str(state.counters[session])
        else:
            text = (params.get("arguments") or {}).get("text") or "x" * 64
        return {"content": [{"type": "text", "text": text}], "isError": False}

    def _write(self, status: int, value: object, session: str = "") -> None:
        body = b"" if value is None else json.dumps(value).encode()
        extra = b"mcp-session-id: %s\r\n" % session.encode() if session else b""
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, WORDS[status], extra, len(body)) + body)


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header in a lower-case head, or nothing."""
    at = head.find(b"\r\n" + name + b":")
    return head[at + len(name) + 3 :].split(b"\r\n", 1)[0].strip() if at >= 0 else b""


async def main() -> None:
    state, loop = State(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent has ended


if __name__ == "__main__":
    asyncio.run(main())
