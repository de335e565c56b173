"""A channel to a server object in this process, without sockets or encoding. One run of the server is one session.

The server runs in a task of its own, in which everything that the SDK opens is entered and left. An error of the server
appears as the end of the channel.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, cast

from mcp.server import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from holdfast.errors import ConnectFailed, UsageError
from holdfast.links.background import BackgroundTasks
from holdfast.links.target import ObjectTarget
from holdfast.links.wires.base import Message, Resolved
from holdfast.links.wires.duplex import Ending, Unreadable

BACKLOG = 256  # messages that the server may send ahead; beyond that it waits


class LocalChannel:
    """See `Channel`."""

    def __init__(self, name: str, target: ObjectTarget, background: BackgroundTasks, close_seconds: float) -> None:
        self._name = name
        self._target = target
        self._background = background
        self._close_seconds = close_seconds
        self._incoming: asyncio.Queue[Message | Unreadable | None] = asyncio.Queue(BACKLOG)
        self._stop = asyncio.Event()
        self._outgoing: Any = None
        self._run: asyncio.Task[None] | None = None
        self._why = "the server's run ended"

    async def open(self, resolved: Resolved, answered: Callable[[Message], bool]) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming, self._stop = asyncio.Queue(BACKLOG), asyncio.Event()
        self._run = self._background.start(self._serve(started), f"server {self._name}")
        try:
            await started
        except Exception as error:
            raise ConnectFailed(
                f"the server object {self._name!r} did not start: {error}", server=self._name, phase="open"
            ) from error

    async def _serve(self, started: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                server = await _lowlevel(self._target.server, stack)
                (read, write), (server_read, server_write) = await stack.enter_async_context(
                    create_client_server_memory_streams()
                )
                self._outgoing = write
                run = asyncio.get_running_loop().create_task(
                    server.run(server_read, server_write, server.create_initialization_options())
                )
                pump = asyncio.get_running_loop().create_task(self._pump(read))
                stop = asyncio.get_running_loop().create_task(self._stop.wait())
                started.set_result(None)
                try:
                    await asyncio.wait((run, stop), return_when=asyncio.FIRST_COMPLETED)
                    if run.done() and not run.cancelled() and (error := run.exception()) is not None:
                        self._why = f"the server's run ended: {error!r:.200}"
                finally:
                    self._outgoing = None
                    for task in (run, pump, stop):
                        task.cancel()
                    await asyncio.wait((run, pump, stop), timeout=self._close_seconds)
        except Exception as error:
            self._why = f"the server's run ended: {error!r:.200}"
            if not started.done():
                started.set_exception(error)
        finally:
            if not started.done():
                started.cancel()
            self._outgoing = None
            self._finish()

    def _finish(self) -> None:
        while self._incoming.full():
            self._incoming.get_nowait()
        self._incoming.put_nowait(None)

    async def _pump(self, read: Any) -> None:
        async for item in read:
            if isinstance(item, SessionMessage):
                await self._incoming.put(_read(item.message))

    async def write(self, message: Message, sent: Callable[[], None]) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            raise ConnectionResetError(self._why)
        try:
            typed = _typed(message)
        except ValueError as error:
            raise UsageError(
                f"the parameters of {message.get('method')!r} for {self._name!r} are not JSON: {error}"[:400],
                server=self._name,
            ) from error
        try:
            await outgoing.send(SessionMessage(typed))
        except Exception as error:  # anyio's closed and broken streams
            raise ConnectionResetError(self._why) from error
        sent()

    async def read(self) -> Message | Unreadable:
        message = await self._incoming.get()
        if message is None:
            raise EOFError
        return message

    async def close(self) -> None:
        self._stop.set()
        if self._run is not None:
            if self._outgoing is None:
                self._run.cancel()  # it has not started, and may never
            await asyncio.wait((self._run,), timeout=self._close_seconds)
            self._run.cancel()

    async def last_words(self) -> Ending:
        return Ending(self._why)


async def _lowlevel(server: Any, stack: AsyncExitStack) -> Server[Any]:
    """The SDK's low-level server inside a high-level one.
    Neither MCPServer (`_lowlevel_server`) nor FastMCP (`_mcp_server`, `_lifespan_manager`) has a public name for it;
    the SDK's own clients use these names too.
    """
    if isinstance(server, Server):
        return cast("Server[Any]", server)
    if hasattr(server, "_lifespan_manager"):
        await stack.enter_async_context(server._lifespan_manager())  # noqa: SLF001
    return getattr(server, "_lowlevel_server", None) or server._mcp_server  # noqa: SLF001


def _typed(message: Message) -> JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError:
    if "method" not in message:
        if "error" in message:
            return JSONRPCError.model_validate(message)
        return JSONRPCResponse(jsonrpc="2.0", id=message["id"], result=message["result"])
    if "id" in message:
        return JSONRPCRequest(jsonrpc="2.0", id=message["id"], method=message["method"], params=message.get("params"))
    return JSONRPCNotification(jsonrpc="2.0", method=message["method"], params=message.get("params"))


def _read(message: JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError) -> Message | Unreadable:
    try:
        return _plain(message)
    except ValueError:  # pydantic's: an error's data is any object of the server's code
        return Unreadable((message.id,) if isinstance(message, JSONRPCError) and message.id is not None else (), False)


def _plain(message: JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError) -> Message:
    if isinstance(message, JSONRPCResponse):
        return {"jsonrpc": "2.0", "id": message.id, "result": message.result}
    if isinstance(message, JSONRPCError):
        # Encoded as on a pipe. Other messages were made plain JSON by the SDK: see decision 12.
        error = message.error.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {"jsonrpc": "2.0", "id": message.id, "error": error}
    plain: Message = {"jsonrpc": "2.0", "method": message.method}
    if message.params is not None:
        plain["params"] = message.params
    if isinstance(message, JSONRPCRequest):
        plain["id"] = message.id
    return plain
