"""A wire over a pair of message streams: an object in this process, or a child's pipes. Answers are matched by id.

It owns the calls that wait. It refuses to lose one: when the streams end, every waiting call learns it at once.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast

from holdfast.core.outcome import Broke, Seen
from holdfast.links.owner import Owner
from holdfast.links.wire import Dropped, Generation, Lost, Message, Patience, Receive, Reply, Resolved


class Channel(Protocol):
    """Two streams of messages to one server."""

    async def open(self, resolved: Resolved) -> None: ...
    async def write(self, message: Message) -> None:
        """ConnectionError if the other end is gone and nothing was written."""
        ...

    async def read(self) -> Message:
        """The next message; EOFError when there will be none."""
        ...

    async def close(self) -> None: ...

    def last_words(self) -> str:
        """What is known about why it ended, for people."""
        ...


class DuplexWire:
    """See `Wire`. The connection is the session: it has no id, and nothing outlives it."""

    child = True

    def __init__(self, channel: Channel, owner: Owner, broke: Broke = Broke.AFTER_SEND) -> None:
        self._channel = channel
        self._owner = owner
        self._broke = broke
        self._waiting: dict[str | int, _Waiting] = {}
        self._unasked: Receive | None = None
        self._ended: Lost | None = None
        self._open = False
        self._reader: asyncio.Task[None] | None = None

    async def open(self, resolved: Resolved) -> None:
        await self._channel.open(resolved)
        self._open = True
        self._reader = self._owner.start(self._read(), "reader")

    async def close(self) -> None:
        self._open = False
        await self._channel.close()
        if self._reader is not None:
            self._reader.cancel()
        self._end("the link was closed")

    def dress(self, generation: Generation, resolved: Resolved) -> None:
        """Nothing rides along on a stream."""

    async def send(
        self, generation: Generation, message: Message, headers: Mapping[str, str], patience: Patience, receive: Receive
    ) -> Reply:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(loop.create_future(), receive)
        if not self._open:
            return self._broken(generation, Broke.CONNECT, self._channel.last_words())
        self._waiting[message["id"]] = waiting
        sent = False
        try:
            async with asyncio.timeout_at(patience.next(loop.time())) as timer:
                waiting.alive = lambda: timer.reschedule(patience.next(loop.time()))
                await self._channel.write(message)
                sent = True
                answer = await waiting.answer
        except ConnectionError as error:
            return self._broken(generation, self._broke if sent else Broke.CONNECT, str(error))
        except TimeoutError:
            return self._broken(generation, Broke.NO_ANSWER_IN_TIME if sent else Broke.CONNECT, "no answer in time")
        finally:
            self._waiting.pop(message["id"], None)
        return self._answered(generation, answer)

    def _answered(self, generation: Generation, answer: Message) -> Reply:
        error = answer.get("error")
        if isinstance(error, dict):
            known = cast("dict[str, Any]", error)
            code = known.get("code")
            seen = Seen(
                era=generation.era,
                code=code if isinstance(code, int) else 0,
                text=str(known.get("message", "")),
                data=known.get("data"),
            )
            return Reply(answer, seen, what=seen.text)
        if isinstance(answer.get("result"), dict):
            return Reply(answer)
        return self._broken(generation, Broke.NOT_AN_ANSWER, "the answer has neither result nor error")

    async def tell(self, generation: Generation, message: Message, seconds: float) -> Reply:
        if not self._open:
            return self._broken(generation, Broke.CONNECT, self._channel.last_words())
        try:
            async with asyncio.timeout(seconds):
                await self._channel.write(message)
        except (ConnectionError, TimeoutError) as error:
            return self._broken(generation, Broke.CONNECT, str(error) or "not taken in time")
        return Reply()

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        self._unasked, self._ended = receive, lost
        if not self._open:
            lost(Seen(era=generation.era, broke=self._broke))

    async def end(self, generation: Generation, seconds: float) -> Reply:
        return Reply()  # closing the streams ends it

    async def _read(self) -> None:
        try:
            while True:
                message = await self._channel.read()
                await self._deliver(message)
        except (EOFError, ConnectionError):
            pass
        finally:
            was_open, self._open = self._open, False
            self._end(self._channel.last_words())
            if was_open and self._ended is not None:
                self._ended(Seen(broke=self._broke))

    async def _deliver(self, message: Message) -> None:
        if "method" not in message:
            waiting = self._waiting.get(message.get("id", ""))
            if waiting is not None:
                if not waiting.answer.done():
                    waiting.answer.set_result(message)
                return
        else:
            for waiting in tuple(self._waiting.values()):
                waiting.alive()
        if self._unasked is not None:
            await self._unasked(message)
        elif self._waiting:
            await next(iter(self._waiting.values())).receive(message)

    def _end(self, why: str) -> None:
        for waiting in tuple(self._waiting.values()):
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionResetError(why))

    def _broken(self, generation: Generation, broke: Broke, what: str) -> Reply:
        return Reply(seen=Seen(era=generation.era, broke=broke, text=what), what=what)


class _Waiting:
    __slots__ = ("alive", "answer", "receive")

    def __init__(self, answer: asyncio.Future[Message], receive: Receive) -> None:
        self.answer = answer
        self.receive = receive
        self.alive = lambda: None
