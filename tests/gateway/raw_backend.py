"""A backend that says exactly the bytes that a test gives it, over HTTP or as a program, in either era.

Every `tools/call` is answered with the test's result, in which `@SEEN@` stands for the request as it came in, as a JSON
string; before it comes the test's notification, if there is one. A program writes what it is told to the file `log`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

TOOLS = '{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}'
RESULT = '{"content":[],"structuredContent":{"seen":@SEEN@}}'
_INIT = (
    '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}%s}',
    '{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"%s}',
)


def answer(line: str, said: Mapping[str, str]) -> list[str]:
    """The messages that answer one; none to a notification."""
    message = json.loads(line, parse_int=lambda text: int(text) if len(text) < 100 else text)
    if "id" not in message or "method" not in message:
        return []
    id, method = json.dumps(message["id"]), message["method"]
    extra = said.get("handshake", "")
    if method == "initialize":
        result = (_INIT[0] % extra).replace('{"tools":{}}', said.get("capabilities", '{"tools":{}}'))
    elif method == "server/discover" and said.get("era") == "2026":
        result = _INIT[1] % extra
    elif method == "tools/list" and "tools_error" in said:
        return [f'{{"jsonrpc":"2.0","id":{id},"error":{said["tools_error"]}}}']
    elif method == "tools/list":
        result = said.get("tools", TOOLS)
    elif method == "tools/call":
        if "error" in said:
            return [f'{{"jsonrpc":"2.0","id":{id},"error":{said["error"]}}}']
        result = said.get("result", RESULT).replace("@SEEN@", json.dumps(line))
    elif method == "ping" and "ping" not in said:
        result = "{}"
    elif "/" in method and method in said:
        result = said[method]
    else:
        return [f'{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"Method not found"}}}}']
    before: list[str] = []
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    if method == "tools/call" and "progress" in said and token is not None:
        params = said["progress"].replace("@TOKEN@", json.dumps(token))
        before = [f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}']
    return [*before, f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}']


@asynccontextmanager
async def raw_http(said: Mapping[str, str]) -> AsyncGenerator[str]:
    """The URL. `said` may be changed meanwhile."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                body = (await reader.readexactly(size)).decode()
                messages = answer(body, said) if head.startswith("post") else None
                if messages is None:
                    writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                elif not messages:
                    writer.write(b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\n\r\n")
                else:
                    stream = len(messages) > 1 or said.get("answers") == "sse"
                    kind = "text/event-stream" if stream else "application/json"
                    text = "".join(f"data: {each}\n\n" for each in messages) if stream else messages[0]
                    data = text.encode()
                    session = "mcp-session-id: abc\r\n" if said.get("era") != "2026" else ""
                    said_head = (
                        f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{session}content-length: {len(data)}\r\n\r\n"
                    )
                    writer.write(said_head.encode() + data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def raw_program(said: Mapping[str, str]) -> dict[str, object]:
    """The entry of a gateway's file that starts this file as a program."""
    return {"command": sys.executable, "args": [str(Path(__file__)), json.dumps(dict(said))]}


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    for line in sys.stdin:
        if "log" in told:
            with Path(told["log"]).open("a") as log:
                log.write(line.replace(" ", ""))
        for message in answer(line, told):
            sys.stdout.write(message + "\n")
            sys.stdout.flush()
