"""A small MCP server of either era, without sockets: its answers and its state.

All its effects are counted.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, cast

Message: TypeAlias = dict[str, Any]

VERSION_2025 = "2025-11-25"
VERSION_2026 = "2026-07-28"
TOOLS = ("echo", "effect", "count", "wait", "progress", "ask", "large", "log")


class Session:
    """The state of one 2025 session."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.count = 0
        self.log_level: str | None = None
        self.subscribed: set[str] = set()


class Sessions:
    """The server's state and behaviour. `effects` counts tool calls by their `call` argument."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.sessions: dict[str, Session] = {}
        self.effects: Counter[str] = Counter()
        self.handshakes = 0
        self.deletes = 0
        self.cancelled: list[Any] = []
        self.asked: dict[str, asyncio.Future[Message]] = {}
        self.tools: tuple[str, ...] = TOOLS
        self.bad_session_id: str | None = None
        self.gives_sessions = True
        """Whether it has sessions in 2025."""
        self.release = asyncio.Event()
        self.read_only: set[str] = set()
        """Tools that are annotated as read-only."""
        self.version = "1"

    def handshake(self, message: Message) -> tuple[Message, str | None]:
        """The answer to `initialize`, and the new session's id."""
        self.handshakes += 1
        session = Session(secrets.token_hex(8))
        if self.gives_sessions:
            self.sessions[session.id] = session
        result = {
            "protocolVersion": VERSION_2025,
            "capabilities": {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}},
            "serverInfo": {"name": "faulty", "version": self.version},
        }
        return _result(message, result), self.bad_session_id or (session.id if self.gives_sessions else None)

    def discover(self, message: Message) -> Message:
        self.handshakes += 1
        result = {
            "resultType": "complete",
            "supportedVersions": [VERSION_2026],
            "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}},
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "faulty", "version": self.version}},
        }
        return _result(message, result)

    async def answer(self, message: Message, session: Session | None) -> AsyncIterator[Message]:
        """The messages on the answer's stream; the last is the answer."""
        method, params = message["method"], members(message.get("params"))
        token = members(params.get("_meta")).get("progressToken")
        if method == "tools/list":
            tools = [
                {"name": name, "inputSchema": {"type": "object"}}
                | ({"annotations": {"readOnlyHint": True}} if name in self.read_only else {})
                for name in self.tools
            ]
            cache = {"ttlMs": 0, "cacheScope": "private"} if session is None else {}
            yield _result(message, {"resultType": "complete", "tools": tools, **cache})
        elif method == "tools/call":
            async for part in self._call(message, params, session, token):
                yield part
        elif method == "logging/setLevel" and session is not None:
            session.log_level = params.get("level")
            yield _result(message, {})
        elif method == "resources/subscribe" and session is not None:
            session.subscribed.add(params["uri"])
            yield _result(message, {})
        elif method == "resources/unsubscribe" and session is not None:
            session.subscribed.discard(params["uri"])
            yield _result(message, {})
        elif method == "ping":
            yield _result(message, {})
        else:
            yield {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}

    def happen(self, message: Message) -> None:
        """Execute a tool call, for a fault that follows it."""
        params = members(message.get("params"))
        call = members(params.get("arguments")).get("call")
        if message.get("method") == "tools/call" and call is not None:
            self.effects[call] += 1

    async def _call(
        self, message: Message, params: Message, session: Session | None, token: object
    ) -> AsyncIterator[Message]:
        name, arguments = params.get("name"), members(params.get("arguments"))
        self.happen(message)
        text = str(arguments.get("text", ""))
        if name == "count":
            if session is not None:
                session.count += 1
                text = str(session.count)
        elif name == "wait":
            await self.release.wait()
        elif name == "progress":
            for step in range(int(arguments.get("steps", 3))):
                note = {"progressToken": token, "progress": step + 1, "total": arguments.get("steps", 3)}
                yield {"jsonrpc": "2.0", "method": "notifications/progress", "params": note}
        elif name == "log":
            note = {"level": "info", "data": text}
            yield {"jsonrpc": "2.0", "method": "notifications/message", "params": note}
        elif name == "large":
            text = "x" * int(arguments.get("bytes", 0))
        elif name == "ask":
            id = f"ask-{secrets.token_hex(4)}"
            self.asked[id] = asyncio.get_running_loop().create_future()
            method = arguments.get("method", "elicitation/create")
            yield {"jsonrpc": "2.0", "id": id, "method": method, "params": arguments.get("params", {})}
            answer = await self.asked[id]
            del self.asked[id]
            text = str(answer["result"] if "result" in answer else answer["error"])
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        yield _result(message, result if session is not None else {"resultType": "complete", **result})


def members(value: object) -> Message:
    """A member of a message that is an object; an empty one if it is absent."""
    return cast("Message", value) if isinstance(value, dict) else {}


def _result(message: Message, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}
