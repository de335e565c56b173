"""One HTTP response: its head, and its body as it arrives."""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast.links.wires.http.failures import NotHttp

MEMBERS = 64  # of one compressed response: each one copies the rest
INFLATED = 16 * 1024 * 1024  # bytes to which one read of a compressed response may expand
BUFFER = 256 * 1024  # bytes of a body that may wait to be read before the socket is paused


class Source(Protocol):
    """The connection of a response."""

    def pause(self) -> None:
        """Pause reading from the socket."""
        ...

    def resume(self) -> None:
        """Resume reading."""
        ...

    def release(self, complete: bool) -> None:
        """The response is no longer needed."""
        ...


class Response:
    """One response. Leaving its context releases the connection, and closes it if the body was not read to its end."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_eof",
        "_error",
        "_inflater",
        "_members",
        "_source",
        "_waiting",
        "closed",
        "headers",
        "status",
    )

    def __init__(self, source: Source) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.closed = False
        self._source = source
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._eof = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._inflater: Any = None
        self._members = 0

    @property
    def content_length(self) -> int | None:
        length = self.headers.get("content-length", "")
        return int(length) if length.isdigit() else None

    @property
    def content_type(self) -> str:
        """The media type, without parameters and in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_eof(self) -> bool:
        """Whether the body has been read to its end."""
        return self._eof and not self._chunks

    @property
    def failed(self) -> bool:
        return self._error is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body in pieces, as they arrive."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered -= len(chunk)
                if self._buffered <= BUFFER:
                    self._source.resume()
                yield chunk
            if self._error is not None:
                raise self._error
            if self._eof:
                return
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    async def read(self) -> bytes:
        """The whole body."""
        if self._eof and len(self._chunks) == 1:  # the usual case: it came with the head
            self._buffered = 0
            return self._chunks.popleft()
        return b"".join([chunk async for chunk in self.iter_any()])

    async def read_up_to(self, size: int) -> bytes:
        """The body, or more than `size` bytes of it if it is larger."""
        raw = bytearray()
        async for chunk in self.iter_any():
            raw += chunk
            if len(raw) > size:
                break
        return bytes(raw)

    def release(self) -> None:
        """Release the connection if the body has been received completely, else close it."""
        if not self.closed:
            self.closed = True
            self._source.release(self._eof)

    def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            self.closed = True
            self._source.release(False)

    # From the connection

    def begin(self, status: int) -> None:
        """The head is complete."""
        self.status = status
        if self.headers.get("content-encoding", "").lower() in ("gzip", "deflate", "x-gzip"):
            self._inflater = zlib.decompressobj(47)

    def feed(self, data: bytes) -> None:
        """A piece of the body has arrived."""
        if self._inflater is not None:
            data = self._inflated(data)
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > BUFFER:
            self._source.pause()
        self._wake()

    def finish(self, error: Exception | None) -> None:
        """The body is complete, or was interrupted. A complete one stays complete."""
        if self._eof:
            return
        self._eof, self._error = error is None, error
        self._wake()

    def _inflated(self, data: bytes) -> bytes:
        """Decompress a response, with narrow limits because compression was not requested."""
        found = b""
        while data:
            found += self._inflater.decompress(data, INFLATED - len(found))
            if self._inflater.unconsumed_tail:
                raise NotHttp(f"a compressed answer grows beyond {INFLATED} bytes a read")
            data = self._inflater.unused_data
            if data:
                self._members += 1
                if self._members > MEMBERS:
                    raise NotHttp(f"a compressed answer has more than {MEMBERS} members")
                self._inflater = zlib.decompressobj(47)  # another member follows
        return found

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
