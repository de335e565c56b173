"""A raw MCP echo server for both eras, so cheap that its cost does not hide a client's.

It sends fixed answers with the request's id. It is not an example of a good server.
"""

import asyncio
import json
import sys

TOOL = {"content": [{"type": "text", "text": "x" * 64}], "isError": False}
TOOLS = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "echo", "version": "1"},
}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
COMPLETE = {"resultType": "complete"}
KEPT = {"ttlMs": 0, "cacheScope": "private"}


class Echo(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"delete"):
            self._write(200, b"")
            return
        if head.startswith(b"get"):  # the server's own stream: open, without messages
            assert isinstance(self._transport, asyncio.WriteTransport)
            head = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._transport.write(head + b"4\r\n:ok\n\r\n")
            return
        message = json.loads(body)
        if "id" not in message:
            self._write(202, b"")
            return
        era_2026, method = b"mcp-protocol-version: 2026" in head, message["method"]
        extra = b""
        if method == "initialize":
            result, extra = INITIALIZED, b"mcp-session-id: s1\r\n"
        elif method == "server/discover":
            result = {**DISCOVERED, **KEPT}
        else:
            result = TOOLS if method == "tools/list" else TOOL
        if era_2026:
            result = {**COMPLETE, **(KEPT if method.endswith("list") else {}), **result}
        self._write(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode(), extra)

    def _write(self, status: int, body: bytes, extra: bytes = b"") -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, extra, len(body)) + body)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent has ended


if __name__ == "__main__":
    asyncio.run(main())
