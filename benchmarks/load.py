"""`python benchmarks/load.py URL CONNECTIONS SECONDS [BYTES] [NAME]`: put load on one MCP session.

It prints requests a second, p50 and p99 in milliseconds, as JSON. Every answer's body is checked, so fast errors
do not count.
"""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

JSON_HEADERS = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"


class Connection:
    """One HTTP/1.1 connection that sends the same request repeatedly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self._path = path

    async def post(self, body: bytes, extra: str = "") -> tuple[int, dict[str, str], bytes]:
        head = f"POST {self._path} HTTP/1.1\r\nhost: {self._host}\r\n{JSON_HEADERS}{extra}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        raw = await self._reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if value
        }
        status = int(lines[0].split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            parts: list[bytes] = []
            while size := int((await self._reader.readline()).strip() or b"0", 16):
                parts.append((await self._reader.readexactly(size + 2))[:-2])
            await self._reader.readline()
            return status, headers, b"".join(parts)
        return status, headers, await self._reader.readexactly(int(headers.get("content-length", "0")))

    def close(self) -> None:
        self._writer.close()


def content(body: bytes) -> dict[str, object]:
    """The last message of an answer, JSON or events."""
    if body.startswith(b"{"):
        return json.loads(body)
    datas = [line[5:] for line in body.split(b"\n") if line.startswith(b"data:") and line[5:].strip()]
    return json.loads(datas[-1])


async def connect(url: str) -> Connection:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**22)
    return Connection(reader, writer, parts.netloc, parts.path or "/")


async def handshake(connection: Connection) -> str:
    """Initialize; returns the header that names the session."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
    status, headers, answer = await connection.post(body)
    assert status == 200, (status, answer[:200])
    session = headers.get("mcp-session-id")
    extra = "mcp-protocol-version: 2025-11-25\r\n" + (f"mcp-session-id: {session}\r\n" if session else "")
    await connection.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', extra)
    return extra


async def load(url: str, connections: int, seconds: float, size: int = 64, tool: str | None = None) -> dict[str, float]:
    first = await connect(url)
    extra = await handshake(first)
    if tool is None:
        _, _, raw = await first.post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', extra)
        tools = content(raw)["result"]["tools"]  # type: ignore[index]
        tool = next(each["name"] for each in tools if each["name"].endswith("echo"))
    text = "x" * size
    spans: list[float] = []
    until = time.perf_counter() + seconds

    async def work(connection: Connection, number: int) -> None:
        arguments = {"text": text} if size != 64 else {}
        id = f"{number}-1"
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        while True:
            began = time.perf_counter()
            if began >= until:
                return
            status, _, answer = await connection.post(body, extra)
            spans.append(time.perf_counter() - began)
            if status != 200 or text.encode() not in answer or id.encode() not in answer:
                raise AssertionError(f"{status} {answer[:300]!r}")

    others = [await connect(url) for _ in range(connections - 1)]
    began = time.perf_counter()
    await asyncio.gather(*(work(each, number) for number, each in enumerate((first, *others))))
    took = time.perf_counter() - began
    spans.sort()
    return {
        "rps": len(spans) / took,
        "p50": spans[len(spans) // 2] * 1e3,
        "p99": spans[int(len(spans) * 0.99)] * 1e3,
        "calls": len(spans),
    }


async def many_sessions(url: str, count: int) -> None:
    """Open sessions, use each once, and leave them open."""
    for start in range(0, count, 50):
        connections = [await connect(url) for _ in range(min(50, count - start))]

        async def one(connection: Connection) -> None:
            extra = await handshake(connection)
            await connection.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', extra)

        await asyncio.gather(*(one(each) for each in connections))
        for each in connections:
            each.close()


if __name__ == "__main__":
    if sys.argv[1] == "sessions":
        asyncio.run(many_sessions(sys.argv[2], int(sys.argv[3])))
    else:
        size = int(sys.argv[4]) if len(sys.argv) > 4 else 64
        name = sys.argv[5] if len(sys.argv) > 5 else None
        print(json.dumps(asyncio.run(load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), size, name))))
