"""`holdfast serve --stdio`: the gateway for a client that launches it. One message a line, in both eras.

Only messages are written to stdout; what else prints there goes to stderr.
"""

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import Era
from holdfast.core.models import Principal
from holdfast.errors import ConfigError, Unavailable
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.config.file import Config
from holdfast.gateway.fronts.batches import answers_to, parts_of
from holdfast.gateway.fronts.http.streams import Streams
from holdfast.gateway.fronts.listens import Subscription
from holdfast.gateway.fronts.messages import Message, checked, decoded
from holdfast.gateway.fronts.pipeline import REQUEST_CANCELLED, AnswerChannel, Pipeline
from holdfast.gateway.fronts.refusals import (
    INVALID_REQUEST,
    PARSE_ERROR,
    SESSION_NOT_FOUND,
    Malformed,
    Refused,
    refusal,
)
from holdfast.gateway.fronts.stdio_batches import BatchedLine, BatchedLines
from holdfast.gateway.fronts.stdio_output import OutPipe
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import with_info
from holdfast.gateway.observing import observing
from holdfast.gateway.process.lifecycle import CUT_SECONDS
from holdfast.gateway.process.place import make_room
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.codec import decode_exactly, encode_known
from holdfast.links.target import CommandTarget
from holdfast.links.wires.stdio.lines import ID_WITHIN, ids_in
from holdfast.stores import open_store

log = logging.getLogger("holdfast.gateway")

LOCAL = Principal("local")
"""The user who started this process. The operating system has authenticated them."""
CHUNK = 64 * 1024


class StdioFront:
    """Serves one client over two pipes. It is also the `AnswerChannel` of each of the client's calls."""

    can_ask = True
    is_alone = True

    def __init__(self, gateway: Gateway, out: int) -> None:
        self.closing = False
        """No more messages are read from the client."""
        self._gateway = gateway
        self._pipeline = Pipeline(gateway, "pipe")
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._out = OutPipe(out, gateway.settings.clients, self.stop)
        self._session: GatewaySession | None = None
        self._calls: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: asyncio.Task[None] | None = None
        self._initializing: asyncio.Task[None] | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        self._out.put(encode_known(dict(message)) + b"\n")

    def send_batch(self, messages: list[dict[str, Any]]) -> None:
        self._out.put(b"[%s]\n" % b",".join(encode_known(each) for each in messages))

    async def keep_up(self) -> None:
        await self._out.keep_up()

    def cancelled(self) -> Mapping[str, Any]:
        if self.closing:
            return rpc_error(Unavailable("the gateway is going down", remedy="start it again"))
        return REQUEST_CANCELLED

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        self.send(message)

    async def was_read(self) -> bool:
        return await self._out.flush()

    @property
    def backlog(self) -> int:
        """Bytes that the client has not taken."""
        return self._out.waiting

    def stop(self) -> None:
        """Read no more messages; `run` returns when the calls under way are answered or their time is over. Called
        again, or after stdin ended, it waits for no call: such clients kill the process soon after they asked it to
        end."""
        if self._stop.is_set() or self.closing:
            self._hurry.set()
        self._stop.set()

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the client closes stdin, or takes no more of what it is sent."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read(reader), name="read stdin")
        stopped = loop.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, stopped):
                task.cancel()
            await asyncio.wait((reading, stopped))
            await self._close()
        if not reading.cancelled():
            reading.result()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        cap, buffer = self._gateway.settings.listen.max_body, bytearray()
        skipped: tuple[str | int, ...] | None = None  # what may be the ids of a line that is too long
        while chunk := await reader.read(CHUNK):
            await self._out.keep_up()  # a client that reads no answers gets no more of them
            buffer += chunk
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end]).strip()
                del buffer[: end + 1]
                if skipped is not None or len(line) > cap:
                    self._refuse_long((*ids_in(line[-ID_WITHIN:]), *(skipped or ids_in(line[:ID_WITHIN]))), cap)
                    skipped = None
                elif line:
                    await self._take(line)
            if len(buffer) > cap:
                skipped = skipped or ids_in(buffer[:ID_WITHIN])
                del buffer[:-ID_WITHIN]

    def _refuse_long(self, ids: tuple[str | int, ...], cap: int) -> None:
        """Answer a line that is too long to be read, so that its client does not wait forever. The session goes on."""
        id = next((id for id in ids if id not in self._calls), None)
        self._refuse(id, INVALID_REQUEST, f"a message has at most {cap} bytes")

    async def _take(self, line: bytes) -> None:
        try:
            found = decoded(line, "this line")
            if isinstance(found, list):
                await self._take_batch(cast("list[Any]", found))
                return
            self._handle(checked(found), self)
        except Malformed as malformed:
            if malformed.is_answer:
                log.info("the client sent an answer that can't be read: %s", malformed)
            else:
                code = malformed.error["code"]
                self._refuse(malformed.id, code if code == PARSE_ERROR else INVALID_REQUEST, str(malformed))

    async def _take_batch(self, found: list[Any]) -> None:
        """Several messages in one line, whose answers are in one."""
        if self._session is None and self._initializing is not None:
            await asyncio.wait((self._initializing,))
        if self._session is None:
            raise Malformed("initialize first, in a line of its own")
        parts = parts_of(found, self._session.client.version)
        answers = BatchedLines(self, answers_to(parts), self._gateway.settings.clients.stream_bytes)
        for part in parts:
            if isinstance(part, Message):
                self._handle(part, BatchedLine(answers))
                await asyncio.sleep(0)  # a call that is cancelled before it began would have no answer
            elif not part.is_answer:
                answers.add(refusal(part.id, part.error))

    def _handle(self, message: Message, channel: AnswerChannel) -> None:
        id = message.id
        if message.method is None:
            if self._session is None or not self._session.questions.answer(message.body):
                log.debug("dropped an answer to a question that is not open: %r", id)
        elif id is None:
            self._pipeline.notify(self._session, self._calls, message)
        elif id in self._calls:
            # Without the id: the client would take it for the answer to the request that is under way.
            error = {"code": INVALID_REQUEST, "message": f"a request with the id {id!r:.80} is under way already"}
            self._start(channel.finish(refusal(None, error)))
        else:
            task = self._calls[id] = self._start(self._call(id, message, channel))
            if message.method == "initialize":
                self._initializing = task
            task.add_done_callback(lambda _: self._calls.pop(id, None) if self._calls.get(id) is task else None)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _refuse(self, id: str | int | None, code: int, message: str) -> None:
        self.send(refusal(id, {"code": code, "message": message}))

    async def _call(self, id: str | int, message: Message, channel: AnswerChannel) -> None:
        era = Era.Y2026 if message.has_2026_envelope else Era.Y2025
        context = RequestContext(LOCAL, era, reply_channel=channel)
        try:
            work = self._answer(context, id, message, channel)
            answer = await self._pipeline.answer(context, channel, message, work)
        finally:
            self._calls.pop(id, None)
        if answer is not None:
            await self._pipeline.deliver(context, channel, answer.message)

    async def _answer(
        self, context: RequestContext, id: str | int, message: Message, channel: AnswerChannel
    ) -> dict[str, Any]:
        """The result of a request, while its session, if there is one, has this way to its client."""
        if message.method != "initialize" and self._session is None and self._initializing is not None:
            await asyncio.wait((self._initializing,))  # a script sends all its lines at once
        session = self._session
        if session is not None:
            session.begin_call(id, channel)
        try:
            if message.has_2026_envelope:
                return await self._answer_2026(context, id, message)
            return await self._answer_2025(context, message)
        finally:
            if session is not None:
                session.end_call(id, channel)

    async def _answer_2025(self, context: RequestContext, message: Message) -> dict[str, Any]:
        if message.method == "initialize":
            return await self._initialize(context, message.params)
        if self._session is None:
            raise Refused(400, "initialize first")
        session = await self._gateway.sessions.find(self._session.id, LOCAL)
        if session is None:
            self._session = self._pipeline.observer.session = None
            what = "the session has ended, and what it kept is gone: initialize again"
            raise Refused(404, what, code=SESSION_NOT_FOUND)
        context.enter(session)
        context.identify(session.client)
        return await self._pipeline.methods.answer(context, str(message.method), message.params)

    async def _answer_2026(self, context: RequestContext, id: str | int, message: Message) -> dict[str, Any]:
        context.identify(self._pipeline.client_2026(message))
        if message.method == "server/discover":
            return await self._pipeline.discover(context)
        if message.method == "subscriptions/listen":
            return await self._listen(context, id, message.params)
        result = await self._pipeline.methods.answer(context, str(message.method), message.params)
        return with_info(self._gateway, result)

    async def _listen(self, context: RequestContext, id: str | int, params: dict[str, Any]) -> dict[str, Any]:
        subscription = Subscription(self._gateway, self._pipeline.methods.uris, context, id, params)
        async with contextlib.aclosing(subscription.messages()) as messages:
            async for message in messages:
                if "result" in message:
                    return message["result"]
                self.send(message)
                await self.keep_up()
        raise AssertionError("a listen ends with its result")

    async def _initialize(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        if self._session is not None:
            raise Refused(400, "initialized already")
        session, result = await self._pipeline.initialize(context, params)
        self._session = self._pipeline.observer.session = session
        self._pushing = asyncio.get_running_loop().create_task(self._push(session.notices.open_streams()), name="push")
        session.links.listen()
        return result

    async def _push(self, streams: Streams) -> None:
        """Send the session's messages that belong to no call."""
        async for event in streams.own.after(0):
            data = event.partition(b"data: ")[2].rstrip(b"\n")
            self.send(decode_exactly(data))

    async def _close(self) -> None:
        self.closing = True
        drain = self._gateway.settings.sessions.drain
        self._gateway.listeners.end()  # else they would be waited for as calls are
        if not self._out.is_broken:  # requests from before the pipe closed are answered
            await self._settled(drain)
        if self._tasks:
            log.warning("%d requests are cut: the client is gone, or has asked the gateway to end", len(self._tasks))
        self._gateway.lifecycle.cut()
        await self._settled(CUT_SECONDS, hurried=True)
        for task in tuple(self._tasks):
            task.cancel()
        await self._settled(CUT_SECONDS, hurried=True)
        if self._session is not None:
            await self._gateway.sessions.endings.end(self._session, "ended by its client")
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.wait((self._pushing,), timeout=1.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._out.flush(), drain)
        self._out.close()

    async def _settled(self, seconds: float, *, hurried: bool = False) -> None:
        """Wait until every request is answered, the time is over, or `stop` was called again."""
        hurry = asyncio.get_running_loop().create_task(self._hurry.wait(), name="hurry")
        until = time.monotonic() + seconds
        try:
            while self._tasks and (left := until - time.monotonic()) > 0 and (hurried or not hurry.done()):
                waiting = self._tasks if hurried else {*self._tasks, hurry}
                await asyncio.wait(tuple(waiting), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            await asyncio.wait((hurry,))


def _store_url(config: Config) -> str:
    """The store's URL. Where the file names none, memory is enough, as the session ends with the pipe; but a program
    that callers share needs a store in which another process sees that it runs."""
    shared = [
        name
        for name, entry in config.entries.items()
        if entry.policy.reuse in ("shared", "principal") and isinstance(entry.server.target, CommandTarget)
    ]
    if config.settings.store is None and shared:
        make_room(config)
        return config.store_url
    url = config.settings.store or "memory:"
    if shared and url.startswith("memory:"):
        log.warning("%s: other processes run it, too, each with a state of its own: `store` is memory:", shared[0])
    return url


async def serve_stdio(config: Config, keys: Sequence[str] | None = None) -> None:
    """Serve the client that started this process, until stdin ends or SIGTERM comes."""
    audit = config.settings.observe.audit
    if audit is not None and audit.to == "stdout":
        raise ConfigError("observe.audit.to is stdout, which is the client's here", remedy="name a file, or `store`")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
        raise ConfigError(
            "stdin is not a pipe, so no client can send anything there", remedy="let the client start this command"
        )
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what prints by mistake must not break the protocol
    try:
        async with (
            observing(config, None) as observers,
            open_store(_store_url(config), keys=keys, on_event=observers.sink) as store,
            observers.using(store),
        ):
            gateway = Gateway(config, store, sink=observers.sink, audit_room=observers.room)
            async with gateway.running():
                front = StdioFront(gateway, out)
                for name in ("SIGTERM", "SIGINT", "SIGHUP"):  # the configuration is not reloaded
                    loop.add_signal_handler(getattr(signal, name), front.stop)
                await front.run(reader)
    finally:
        transport.close()
        os.close(out)
