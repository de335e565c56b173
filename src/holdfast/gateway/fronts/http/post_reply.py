"""The answer to one POST, and the messages before it: one JSON body, or an event stream."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.gateway.fronts.http.request import Request
from holdfast.gateway.fronts.http.streams import COMMENT, Stream
from holdfast.gateway.fronts.pipeline import REQUEST_CANCELLED
from holdfast.links.codec import encode_known

log = logging.getLogger("holdfast.gateway")


class Accepts(NamedTuple):
    """The forms of an answer that a client takes, by its header `accept`."""

    json: bool
    sse: bool

    @classmethod
    def of(cls, accept: bytes | None) -> "Accepts":
        if accept is None or accept == _USUAL:
            return _BOTH
        json = sse = False
        for part in accept.lower().split(b","):
            kind = part.partition(b";")[0].strip()
            json = json or kind in (b"application/json", b"application/*", b"*/*")
            sse = sse or kind in (b"text/event-stream", b"text/*", b"*/*")
        return cls(json, sse)


_USUAL = b"application/json, text/event-stream"  # what SDKs send
_BOTH = Accepts(json=True, sse=True)


class PostReplyChannel:
    """The answer to one POST: JSON if nothing comes before the result, else an event stream. See `AnswerChannel`."""

    is_alone = False
    __slots__ = ("_json", "_new", "_pump", "_request", "_stream", "_written", "can_ask")

    def __init__(self, request: Request, accepts: Accepts, stream: Callable[[], Stream]) -> None:
        self._request = request
        self._json = accepts.json
        self._new = stream
        self._pump: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._written = 0
        self.can_ask = accepts.sse and (request.streams or not accepts.json)

    def send(self, message: Mapping[str, Any]) -> None:
        if not self.can_ask:
            return  # a client that accepts no stream gets the result only
        self._begun().add(message)

    def keep_alive(self) -> None:
        """Begin the stream if nothing was sent yet, and send a comment: the call takes long."""
        if self.can_ask:
            self._begun().comment()

    def _begun(self) -> Stream:
        if self._stream is None:
            self._stream = self._new()
            self._stream.expect_reader()
            self._pump = asyncio.get_running_loop().create_task(self._write(self._stream), name="answer stream")
        return self._stream

    async def keep_up(self) -> None:
        if self._stream is not None:
            await self._stream.keep_up()

    async def _write(self, stream: Stream) -> None:
        await self._request.begin_stream()
        if first := stream.first():
            await self._request.chunk(first)
        async for event in stream.after(0, until_whole=True):
            await self._request.chunk(event)
            self._written += event is not COMMENT
        if stream.cut_off and stream.id is None:
            log.info("closed a client's connection: it does not keep up with the answer to its call")
            self._request.hang_up()
        else:
            await self._request.end_stream()  # one that was cut off is resumed, as far as it is kept

    @property
    def is_stream(self) -> bool:
        """Has an event stream begun?"""
        return self._pump is not None

    @property
    def takes_json(self) -> bool:
        return self._json

    async def finish(self, message: dict[str, Any] | list[dict[str, Any]], status: int = 200) -> None:
        """Send the answer, or those of a batch as JSON, after all messages before it."""
        if self._request.revoked:  # the call took this cancellation for that of its session's end
            self.drop()
            raise asyncio.CancelledError
        if self._pump is None and self._json:
            await self._request.reply_json(status, message)
            return
        try:
            stream = self._begun()
            for each in message if isinstance(message, list) else [message]:
                stream.add(each)
            stream.finish()
            assert self._pump is not None
            await asyncio.shield(self._pump)
        except BaseException:
            self.drop()
            raise

    def cancelled(self) -> Mapping[str, Any] | None:
        task = asyncio.current_task()
        if self._request.revoked or task is None or not task.cancelling():
            self.drop()
            raise
        task.uncancel()
        return REQUEST_CANCELLED

    async def was_read(self) -> bool:
        """Not if the stream was cut off, or if another request resumed it."""
        whole = self._stream is None or self._written == self._stream.last
        return whole and await self._request.was_read()

    def drop(self) -> None:
        """Give up: the client is gone."""
        if self._pump is not None:
            self._pump.cancel()
        if self._stream is not None:
            self._stream.expect_reader(False)
            self._stream.finish()


def event_of(message: Mapping[str, Any]) -> bytes:
    """A message as an event that can't be resumed."""
    return b"event: message\ndata: %s\n\n" % encode_known(dict(message))
