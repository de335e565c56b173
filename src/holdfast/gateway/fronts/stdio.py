"""`holdfast serve --stdio`: the gateway for a client that launches a command. One line a message, both eras.

It owns stdin and stdout, and one client's session. It refuses to write anything but messages to stdout.
"""

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import PROTOCOL_VERSION, UNSUPPORTED_VERSION, Era
from holdfast.core.models import Principal
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.gateway.config.file import Config
from holdfast.gateway.dispatch import RequestContext
from holdfast.gateway.fronts.handshake import BadHandshake, client_of, discovery, handshake
from holdfast.gateway.fronts.stdio_output import OutPipe
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.gateway import CUT_SECONDS, Gateway
from holdfast.gateway.sessions.session import Client, Session
from holdfast.links.codec import decode_exactly, encode_known
from holdfast.links.wires.stdio.child import ID_WITHIN, ids_in
from holdfast.stores import open_store

log = logging.getLogger("holdfast.gateway")

LOCAL = Principal("local")
"""Whoever started us is the operating system's word: authenticated."""
CHUNK = 64 * 1024
CANCELLED = -32800


class StdioFront:
    """One client over two pipes. It is also the voice of each of its calls."""

    can_ask = True
    is_alone = True

    def __init__(self, gateway: Gateway, out: int) -> None:
        self.closing = False
        """Nothing is taken of the client any more."""
        self._gateway = gateway
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._out = OutPipe(out, gateway.settings.clients, self.stop)
        self._session: Session | None = None
        self._calls: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: asyncio.Task[None] | None = None
        self._initializing: asyncio.Task[None] | None = None

    def say(self, message: Mapping[str, Any]) -> None:
        self._out.put(encode_known(dict(message)) + b"\n")

    async def keep_up(self) -> None:
        await self._out.keep_up()

    @property
    def backlog(self) -> int:
        """Bytes that the client has not taken."""
        return self._out.waiting

    def stop(self) -> None:
        """Take no more of what the client sends: calls under way get their time, then `run` returns. Where it ends
        already, wait for no call: clients that closed our stdin kill us soon after they asked us to end."""
        if self._stop.is_set() or self.closing:
            self._hurry.set()
        self._stop.set()

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Until the client closes our stdin, or no longer takes what we say."""
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
        skipped: tuple[str | int, ...] | None = None  # what may be the id of the line that is too long
        while chunk := await reader.read(CHUNK):
            await self._out.keep_up()  # whoever reads no answers gets no more of them
            buffer += chunk
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end]).strip()
                del buffer[: end + 1]
                if skipped is not None or len(line) > cap:
                    self._refuse_long((*ids_in(line[-ID_WITHIN:]), *(skipped or ids_in(line[:ID_WITHIN]))), cap)
                    skipped = None
                elif line:
                    self._take(line)
            if len(buffer) > cap:
                skipped = skipped or ids_in(buffer[:ID_WITHIN])
                del buffer[:-ID_WITHIN]

    def _refuse_long(self, ids: tuple[str | int, ...], cap: int) -> None:
        """The line is not read, the session goes on: whoever waits for this answer must not wait for ever."""
        id = next((id for id in ids if id not in self._calls), None)
        self._refuse(id, -32600, f"a message has at most {cap} bytes")

    def _take(self, line: bytes) -> None:
        try:
            message = decode_exactly(line)
        except ValueError as error:
            self._refuse(None, -32700, f"this line is not valid JSON: {error}"[:200])
            return
        if not isinstance(message, dict) or cast("dict[str, Any]", message).get("jsonrpc") != "2.0":
            self._refuse(None, -32600, "a message is an object with jsonrpc 2.0")
            return
        known = cast("dict[str, Any]", message)
        method, id = known.get("method"), known.get("id")
        params = known.get("params")
        meta = cast("dict[str, Any]", params).get("_meta") if isinstance(params, dict) else None
        if method is None:
            if self._session is None or not self._session.answered(known):
                log.info("an answer that nobody waits for")
        elif (
            not isinstance(method, str)
            or (params is not None and not isinstance(params, dict))
            or (meta is not None and not isinstance(meta, dict))
        ):
            what = "method is a string, params and _meta are objects"
            self._refuse(id if isinstance(id, str | int) else None, -32600, what)
        elif "id" not in known:
            self._notified(method, cast("dict[str, Any]", params or {}))
        elif isinstance(id, bool) or not isinstance(id, str | int) or id in self._calls:
            self._refuse(None, -32600, "an id is a string or a whole number, and is used once at a time")
        else:
            task = asyncio.get_running_loop().create_task(self._call(id, method, cast("dict[str, Any]", params or {})))
            self._calls[id] = task
            self._tasks.add(task)
            if method == "initialize":
                self._initializing = task
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, id: Any, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message} | ({"data": data} if data is not None else {})
        self.say({"jsonrpc": "2.0", "id": id, "error": error})

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/cancelled":
            id = params.get("requestId")
            task = self._calls.get(id) if isinstance(id, str | int) else None
            if task is not None:
                task.cancel()
        elif method == "notifications/roots/list_changed" and self._session is not None:
            self._session.roots_changed()

    async def _call(self, id: Any, method: str, params: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        context, session = RequestContext(LOCAL, Era.Y2025, reply_channel=self), None
        try:
            if method != "initialize" and self._session is None and self._initializing is not None:
                await asyncio.wait((self._initializing,))  # a script sends all its lines at once
            session = self._session
            if session is not None:
                session.reply_channels.append(self)
            answer["result"] = await self._answer(context, method, params)
        except HoldfastError as error:
            answer["error"] = rpc_error(error)
        except _Refusal as refusal:
            answer["error"] = refusal.error
        except asyncio.CancelledError:
            answer["error"] = (
                rpc_error(_gone()) if self.closing else {"code": CANCELLED, "message": "Request cancelled"}
            )
        except Exception:
            log.exception("a request could not be answered")
            answer["error"] = {"code": -32603, "message": "Internal error"}
        finally:
            if session is not None:
                session.reply_channels.remove(self)
            self._calls.pop(id, None)
        self.say(answer)
        if context.reporting is not None and await self._out.flush():
            context.reported()

    async def _answer(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        meta = params.get("_meta")
        if isinstance(meta, dict) and PROTOCOL_VERSION in meta:
            return await self._answer_2026(context, method, params)
        if method == "initialize":
            return await self._initialize(params)
        if self._session is None:
            raise _Refusal(-32600, "initialize first")
        session = await self._gateway.sessions.find(self._session.id, LOCAL)
        if session is None:
            self._session = None
            raise _Refusal(-32001, "the session has ended, and what it kept is gone: initialize again")
        context.session, context.client = session, session.client
        return await self._gateway.methods.answer(context, method, params)

    async def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._session is not None:
            raise _Refusal(-32600, "initialized already")
        try:
            client = client_of(params)
        except BadHandshake as error:
            raise _Refusal(-32602, str(error)) from None
        session = self._session = await self._gateway.sessions.begin(LOCAL, client)
        session.streams = self._gateway.sessions.new_streams()
        self._pushing = asyncio.get_running_loop().create_task(self._push(session.streams), name="push")
        session.listen()
        return handshake(self._gateway, client)

    async def _push(self, streams: Streams) -> None:
        """What the session says unasked."""
        async for event in streams.own.after(0):
            data = event.partition(b"data: ")[2].rstrip(b"\n")
            self.say(decode_exactly(data))

    async def _answer_2026(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        checked = classify_inbound_request({"method": method, "params": params})
        if isinstance(checked, InboundLadderRejection):
            raise _Refusal(checked.code, checked.message, checked.data)
        if method == "server/discover":
            await self._gateway.settled()
            if (steered := self._gateway.steers(checked.client_info, checked.protocol_version)) is not None:
                raise _Refusal(UNSUPPORTED_VERSION, *steered)
            return discovery(self._gateway)
        client = Client(checked.client_info or {}, checked.client_capabilities or {}, checked.protocol_version)
        context.era, context.client = Era.Y2026, client
        return await self._gateway.methods.answer(context, method, params)

    async def _close(self) -> None:
        self.closing = True
        drain = self._gateway.settings.sessions.drain
        if not self._out.is_broken:  # what was asked before the pipe closed is answered
            await self._settled(drain)
        if self._tasks:
            log.warning("%d requests are cut: the client is gone, or ends us", len(self._tasks))
        self._gateway.hurry()
        await self._settled(CUT_SECONDS, hurried=True)
        for task in tuple(self._tasks):
            task.cancel()
        await self._settled(CUT_SECONDS, hurried=True)
        if self._session is not None:
            await self._gateway.sessions.end(self._session, "ended by its client")
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.wait((self._pushing,), timeout=1.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._out.flush(), drain)
        self._out.close()

    async def _settled(self, seconds: float, *, hurried: bool = False) -> None:
        """Until every request is answered, the time is over, or somebody is in a hurry."""
        hurry = asyncio.get_running_loop().create_task(self._hurry.wait(), name="hurry")
        until = time.monotonic() + seconds
        try:
            while self._tasks and (left := until - time.monotonic()) > 0 and (hurried or not hurry.done()):
                waiting = self._tasks if hurried else {*self._tasks, hurry}
                await asyncio.wait(tuple(waiting), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            await asyncio.wait((hurry,))


def _gone() -> HoldfastError:
    return Unavailable("the gateway is going down", remedy="start it again")


class _Refusal(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: dict[str, Any] = {"code": code, "message": message} | ({"data": data} if data is not None else {})


async def serve_stdio(config: Config, keys: Sequence[str] | None = None) -> None:
    """Serve whoever started us, until stdin ends or SIGTERM comes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
        raise ConfigError(
            "stdin is not a pipe, so no client can speak there", remedy="let the client start this command"
        )
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever prints by mistake must not break the protocol
    try:
        settings = config.settings
        url = settings.store if settings.store is not None else "memory:"  # the session ends with the pipe
        async with open_store(url, keys=keys) as store:
            gateway = Gateway(config, store)
            async with gateway.running():
                front = StdioFront(gateway, out)
                for name in ("SIGTERM", "SIGINT", "SIGHUP"):  # there is nobody to read a configuration anew for
                    loop.add_signal_handler(getattr(signal, name), front.stop)
                await front.run(reader)
    finally:
        transport.close()
        os.close(out)
