"""Batches: several messages in one body, as clients of 2025-03-26 may send them, and their answers in one array.

The calls of a batch run at once. Where something has to be sent before the last answer, each answer is an event.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.eras import Era
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.fronts.http.post_reply import PostReplyChannel
from holdfast.gateway.fronts.http.request import Request
from holdfast.gateway.fronts.messages import Message, checked
from holdfast.gateway.fronts.pipeline import Pipeline
from holdfast.gateway.fronts.refusals import INVALID_REQUEST, UNAVAILABLE, Malformed, refusal
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.codec import weight

VERSION = "2025-03-26"
"""The only revision that has batches."""
MESSAGES = 64  # of one batch: their calls run at once, and count as one request of their caller


def parts_of(found: list[Any], version: str) -> list[Message | Malformed]:
    """The messages of a batch of a client that speaks a version."""
    if version != VERSION:
        raise Malformed(f"batches are served to clients of {VERSION} only")
    if not 0 < len(found) <= MESSAGES:
        raise Malformed(f"a batch has between 1 and {MESSAGES} messages, not {len(found)}")
    return [_part(each) for each in found]


def _part(found: object) -> Message | Malformed:
    try:
        message = checked(found)
    except Malformed as malformed:
        return malformed
    if message.method == "initialize":
        return Malformed("initialize is sent alone, not in a batch", message.body)
    if message.has_2026_envelope:
        return Malformed("2026 has no batches", message.body)
    return message


def answers_to(parts: list[Message | Malformed]) -> int:
    """How many of these get an answer."""
    refused = sum(isinstance(part, Malformed) and not part.is_answer for part in parts)
    return refused + sum(isinstance(part, Message) and part.is_request for part in parts)


class BatchReply:
    """The answers to one batch. `held` is the number of bytes of them that may wait for the last one."""

    def __init__(self, channel: PostReplyChannel, expected: int, held: int) -> None:
        self.channel = channel
        self.expected = expected
        self._most = held
        self._waiting: deque[dict[str, Any]] = deque()
        self._held = 0

    async def add(self, message: dict[str, Any]) -> None:
        """Add an answer."""
        self.expected -= 1
        size = weight(message)
        if self._held + size > self._most and not self.channel.can_ask:
            message = {"jsonrpc": "2.0", "id": message["id"], "error": _TOO_MUCH}
            size = 0
        self._waiting.append(message)
        self._held += size
        if self.channel.is_stream or self._held > self._most:
            while len(self._waiting) > (not self.expected):  # the last answer ends the stream
                self.channel.send(self._waiting.popleft())
                await self.channel.keep_up()

    async def finish(self) -> None:
        """Send what has not been sent, once every answer is there."""
        if not self.channel.is_stream and self.channel.takes_json:
            await self.channel.finish(list(self._waiting))
            return
        while len(self._waiting) > 1:
            self.channel.send(self._waiting.popleft())
            await self.channel.keep_up()
        await self.channel.finish(self._waiting.popleft())


_TOO_MUCH = {
    "code": UNAVAILABLE,
    "message": "the call was made, but the answers of this batch are too large to be sent together: accept "
    "text/event-stream, or send fewer calls in a batch",
}


class BatchedCall:
    """The way back to the client for one call of a batch; an `AnswerChannel`."""

    is_alone = False
    __slots__ = ("_reply", "can_ask")

    def __init__(self, reply: BatchReply) -> None:
        self._reply = reply
        self.can_ask = reply.channel.can_ask

    def send(self, message: Mapping[str, Any]) -> None:
        self._reply.channel.send(message)

    async def keep_up(self) -> None:
        await self._reply.channel.keep_up()

    def cancelled(self) -> Mapping[str, Any] | None:
        return self._reply.channel.cancelled()

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        await self._reply.add(message)

    async def was_read(self) -> bool:
        return False  # known for the whole batch, at its end


class Batch:
    """The requests of one batch."""

    def __init__(
        self, pipeline: Pipeline, request: Request, session: GatewaySession, channel: PostReplyChannel, held: int
    ) -> None:
        self._pipeline = pipeline
        self._request = request
        self._session = session
        self._channel = channel
        self._held = held
        self._contexts: list[RequestContext] = []

    async def answer(self, parts: list[Message | Malformed], handle: Callable[[Message], None]) -> None:
        """Answer all requests; `handle` takes each notification and each answer of the client's."""
        expected = answers_to(parts)
        reply = BatchReply(self._channel, expected, self._held)
        try:
            async with asyncio.TaskGroup() as calls:
                for part in parts:
                    if isinstance(part, Malformed):
                        if not part.is_answer:
                            await reply.add(refusal(part.id, part.error))
                    elif part.is_request:
                        calls.create_task(self._call(part, reply))
                        await asyncio.sleep(0)  # a later notification may cancel it
                    else:
                        handle(part)
        except BaseException:
            self._channel.drop()
            raise
        if not expected:
            await self._request.reply(202)
            return
        await reply.finish()
        if await self._channel.was_read():
            for context in self._contexts:
                context.reported()

    async def _call(self, message: Message, reply: BatchReply) -> None:
        id, session = message.id, self._session
        assert id is not None
        if id in session.calls:
            what = f"a request with the id {id!r:.80} is under way already"
            await reply.add(refusal(id, {"code": INVALID_REQUEST, "message": what}))
            return
        channel = BatchedCall(reply)
        context = RequestContext(session.principal, Era.Y2025, session, session.client, self._request, channel)
        session.begin_call(id, channel)
        try:
            work = self._pipeline.methods.answer(context, str(message.method), message.params)
            answer = await self._pipeline.answer(context, channel, message, work)
        finally:
            session.end_call(id, channel)
        if answer is not None:
            if context.reporting is not None:
                self._contexts.append(context)
            await channel.finish(answer.message)
