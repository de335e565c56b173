"""A wire over a pair of message streams: an object in this process, or a program's pipes. Answers match by id.

It keeps the waiting calls. When the streams end, every waiting call ends at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from holdfast.core.verdicts import Broke, Seen, Verdict
from holdfast.links.background import BackgroundTasks
from holdfast.links.codec import weight
from holdfast.links.wires.base import Dropped, Generation, Lost, Message, Patience, Receive, Reply, Resolved, Resumption

WORDS = 1_000  # of progress queued for a slow callback
WORDS_BYTES = 1024 * 1024  # of those behind the first: only the latest progress matters to a caller


class Ending(NamedTuple):
    """Why a channel ended."""

    what: str
    exit_code: int | None = None
    stderr_tail: str | None = None


class Unreadable(NamedTuple):
    """Stands for a message that is over the limit or not JSON.
    `ids` are the possible values of its id, the likeliest first.
    """

    ids: tuple[str | int, ...]
    oversize: bool


class Channel(Protocol):
    """Two streams of messages to one server."""

    async def open(self, resolved: Resolved, answered: Callable[[Message], bool]) -> None:
        """Open the channel. `answered` is called with answers in order, and returns False if no call waits for one."""
        ...

    async def write(self, message: Message, sent: Callable[[], None]) -> None:
        """Send a message. Calls `sent` when it can no longer be withdrawn, and waits until the other end keeps up.
        Raises ConnectionError if the other end is gone.
        """
        ...

    async def read(self) -> Message | Unreadable:
        """Return the next message. Raises EOFError at the end."""
        ...

    async def close(self) -> None: ...

    async def last_words(self) -> Ending:
        """Why the channel ended, once that is completely known; in bounded time."""
        ...


class DuplexWire:
    """A `Wire` whose connection is the session: it has no id, and its state ends with it."""

    owns_server = True

    def __init__(self, channel: Channel, background: BackgroundTasks, broke: Broke = Broke.AFTER_SEND) -> None:
        self._channel = channel
        self._background = background
        self._broke = broke
        self._waiting: dict[str | int, _Waiting] = {}
        self._unasked: Receive | None = None
        self._ended: Lost | None = None
        self._open = False
        self._reader: asyncio.Task[None] | None = None

    async def open(self, resolved: Resolved) -> None:
        await self._channel.open(resolved, self._answer)
        self._open = True
        self._reader = self._background.start(self._read(), "reader")

    async def close(self) -> None:
        self._open = False
        await self._channel.close()
        if self._reader is not None:
            self._reader.cancel()
        self._end()

    def apply_credentials(self, generation: Generation, resolved: Resolved) -> None:
        """Messages on a stream carry no headers."""

    async def send(
        self,
        generation: Generation,
        message: Message,
        headers: Mapping[str, str],
        patience: Patience,
        receive: Receive,
        resumption: Resumption | None = None,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(receive)
        if not self._open:
            return self._broken(generation, Broke.CONNECT, await self._channel.last_words())
        self._waiting[message["id"]] = waiting
        try:
            async with asyncio.timeout_at(patience.next(loop.time())) as timer:
                patience.attach(timer)
                try:
                    await self._channel.write(message, waiting.mark_sent)
                    while True:
                        item = await waiting.get()
                        if not isinstance(item, dict) or "method" not in item:
                            break
                        # Progress of this call is handled in its caller's task, where it can't block the reader.
                        timer.reschedule(patience.until)
                        await receive(item)
                        timer.reschedule(patience.next(loop.time()))
                finally:
                    patience.attach(None)
        except ConnectionError:
            broke = self._broke if waiting.sent else Broke.CONNECT
            return self._broken(generation, broke, await self._channel.last_words())
        except TimeoutError:
            why = (await self._channel.last_words())._replace(what="no answer in time", exit_code=None)
            return self._broken(generation, Broke.NO_ANSWER_IN_TIME, why)
        finally:
            self._waiting.pop(message["id"], None)
        if item is None:
            return self._broken(generation, self._broke, await self._channel.last_words())
        if isinstance(item, Unreadable):
            if item.oversize:
                return self._broken(generation, Broke.TOO_LARGE, Ending("the answer is over the cap"))
            return self._broken(generation, Broke.NOT_AN_ANSWER, Ending("the answer is not valid JSON"), 200)
        return self._answered(generation, item)

    def _answered(self, generation: Generation, answer: Message) -> Reply:
        error = answer.get("error")
        if isinstance(error, dict):
            known = cast("dict[str, Any]", error)
            code = known.get("code")
            seen = Seen(
                era=generation.era,
                code=code if isinstance(code, int) else -32603,
                text=str(known.get("message", "")),
                data=known.get("data"),
            )
            return Reply(answer, seen, what=seen.text)
        if isinstance(answer.get("result"), dict):
            return Reply(answer)
        return self._broken(generation, Broke.NOT_AN_ANSWER, Ending("the answer has neither result nor error"))

    async def deliver(self, generation: Generation, message: Message, seconds: float) -> Reply:
        if not self._open:
            return self._broken(generation, Broke.CONNECT, await self._channel.last_words())
        try:
            async with asyncio.timeout(seconds):
                await self._channel.write(message, lambda: None)
        except ConnectionError:
            return self._broken(generation, Broke.CONNECT, await self._channel.last_words())
        except TimeoutError:
            return self._broken(generation, Broke.CONNECT, Ending("not taken in time"))
        return Reply()

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        self._unasked, self._ended = receive, lost
        if not self._open:
            lost(Seen(era=generation.era, broke=self._broke), Verdict.UNKNOWN)

    async def end(self, generation: Generation, seconds: float) -> Reply:
        return Reply()  # closing the streams ends it

    async def _read(self) -> None:
        try:
            while True:
                message = await self._channel.read()
                if isinstance(message, Unreadable):
                    self._deliver_unreadable(message)
                else:
                    await self._deliver(message)
        except (EOFError, ConnectionError):
            pass
        finally:
            was_open, self._open = self._open, False
            self._end()
            if was_open and self._ended is not None:
                self._ended(Seen(broke=self._broke), Verdict.UNKNOWN)

    def _answer(self, message: Message) -> bool:
        id = message.get("id")
        waiting = self._waiting.get(id) if isinstance(id, str | int) else None
        if waiting is None:
            return False
        waiting.put(message)
        return True

    async def _deliver(self, message: Message) -> None:
        if "method" not in message:
            if self._answer(message):
                return
        elif message["method"] == "notifications/progress":
            params = message.get("params")
            token = cast("Message", params).get("progressToken") if isinstance(params, dict) else None
            waiting = self._waiting.get(token) if isinstance(token, str | int) else None
            if waiting is not None:
                waiting.put(message)
                return
        if self._unasked is not None:
            await self._unasked(message)
        elif self._waiting:
            await next(iter(self._waiting.values())).receive(message)

    def _deliver_unreadable(self, message: Unreadable) -> None:
        for id in message.ids:
            waiting = self._waiting.get(id)
            if waiting is not None:
                waiting.put(message)
                return
        if message.oversize and len(self._waiting) == 1:  # its id is unknown, but only one call waits
            next(iter(self._waiting.values())).put(message)

    def _end(self) -> None:
        for waiting in tuple(self._waiting.values()):
            waiting.put(None)

    def _broken(self, generation: Generation, broke: Broke, why: Ending, status: int | None = None) -> Reply:
        seen = Seen(era=generation.era, broke=broke, text=why.what, status=status)
        return Reply(seen=seen, what=why.what, exit_code=why.exit_code, stderr_tail=why.stderr_tail)


class _Waiting:
    """A waiting call: its progress, then its answer, or None if there will be none."""

    __slots__ = ("_inbox", "_size", "receive", "sent")

    def __init__(self, receive: Receive) -> None:
        self._inbox: asyncio.Queue[tuple[Message | Unreadable | None, int]] = asyncio.Queue()
        self._size = 0
        self.receive = receive
        self.sent = False

    def mark_sent(self) -> None:
        self.sent = True

    def put(self, item: Message | Unreadable | None) -> None:
        # Progress beyond the bound is dropped; the answer always has room.
        size = 0
        if not self._inbox.empty() and isinstance(item, dict) and "method" in item:
            size = weight(item)
            if self._inbox.qsize() >= WORDS or self._size + size > WORDS_BYTES:
                return
        self._size += size
        self._inbox.put_nowait((item, size))

    async def get(self) -> Message | Unreadable | None:
        item, size = await self._inbox.get()
        self._size -= size
        return item
