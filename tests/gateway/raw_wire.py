"""A connection to the gateway that sends exactly the bytes that it is told to, and reads when it is told to."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from holdfast.gateway.server import Program
from tests.gateway.clients import BOTH

HOSTS = b"host: localhost\r\n"


class Wire:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_piecewise(self, pieces: Sequence[bytes]) -> None:
        """Each piece in a read of its own, as far as the loop has it so: a turn of the loop between two."""
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0)

    async def answer(self, seconds: float = 20) -> tuple[int, bytes]:
        """One answer with a length."""
        async with asyncio.timeout(seconds):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
            length = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def rest(self, seconds: float = 20) -> bytes:
        """All that comes until the gateway hangs up."""
        found = bytearray()
        async with asyncio.timeout(seconds):
            try:
                while part := await self.reader.read(65536):
                    found += part
            except ConnectionError:
                pass  # we were still writing: what came before that counts
        return bytes(found)


@asynccontextmanager
async def wire(program: Program, receive: int = 8192) -> AsyncGenerator[Wire]:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)  # who does not read has not taken much
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", program.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def post(body: bytes, *lines: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = b"POST /mcp HTTP/1.1\r\n" + HOSTS + b"content-type: application/json\r\naccept: " + BOTH.encode() + b"\r\n"
    return head + b"".join(lines) + b"content-length: %d\r\n\r\n" % size + body


def ping(session: str, id: str, *lines: bytes) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode()
    return post(body, f"mcp-session-id: {session}\r\n".encode(), *lines)
