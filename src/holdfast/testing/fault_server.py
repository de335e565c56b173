"""An HTTP server with planned faults on a loopback port, in either era, with answers as JSON or event streams.

It counts effects by call id, so that a test can prove "executed exactly once". `fault_exchange.py` handles one request,
`fault_sessions.py` creates the answers.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

from holdfast.testing.fault_exchange import Answers, Behaviour, Exchange, Request, read_request
from holdfast.testing.fault_plan import LOST_SESSION, Fault, Planned, Refusal
from holdfast.testing.fault_sessions import Message, Sessions


class FaultServer(Behaviour):
    """`async with FaultServer(era="2025") as server: server.plan(Fault.CLOSE); Link(server.url)`.

    `answers` says whether results come as JSON or as event streams, which are `resumable` or not; `get_stream` whether
    2025 clients may open the server's own stream. With `bearer` every request needs that token. `lost` is the answer to
    a request with an unknown session. `path` is the endpoint's.
    """

    def __init__(
        self,
        *,
        era: Literal["2025", "2026", "both"] = "2025",
        answers: Answers = "json",
        resumable: bool = False,
        get_stream: bool = True,
        bearer: str | None = None,
        lost: Refusal = LOST_SESSION[0],
        path: str = "/mcp",
    ) -> None:
        super().__init__(Sessions(era), answers, resumable, get_stream, bearer, lost)
        self.path = path
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def effects(self) -> Mapping[str, int]:
        """How often each tool was executed, by the key of its call."""
        return self.sessions.effects

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse connections and abort open ones, until `listen`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.cut()

    async def cut(self) -> None:
        """Close every connection."""
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def restart(self) -> None:
        """Simulate a restart that loses the sessions; the counts of effects are kept."""
        await self.refuse()
        self.sessions.sessions.clear()
        await self.listen()

    async def close(self) -> None:
        """Stop serving and abort every connection."""
        self.sessions.release.set()
        await self.refuse()

    def plan(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        times: int = 1,
        effect: bool = False,
        refusal: Refusal | None = None,
        status: int = 500,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Plan a fault for the next `times` requests of `method`. Plans apply in order.

        With `effect` the call is executed all the same. `Fault.STATUS` answers with `status`, `headers` and `body`, or
        with those of a `refusal`.
        """
        if refusal is not None:
            status, headers, body = refusal.status, refusal.headers, refusal.body
        self.planned.append(Planned(fault, method, times, effect, status, headers or {}, body))

    def lift(self) -> None:
        """Remove all plans, and release requests that hang."""
        self.planned.clear()

    def push(self, message: Message) -> int:
        """Send a message on every open server stream. Returns how many there are."""
        for queue in self.open_streams:
            queue.put_nowait(message)
        return len(self.open_streams)

    def drop_streams(self) -> None:
        """Close every open server stream."""
        for queue in self.open_streams:
            queue.put_nowait(None)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self.open_streams)

    async def intercept(self, request: Request) -> Refusal | None:
        """Called for each request. Override it to delay or refuse a request, or to plan a fault for it."""
        return None

    # One connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                refusal = await self.intercept(request)
                exchange = Exchange(self, request, reader, writer)
                if not (await exchange.serve() if refusal is None else exchange.refuse(refusal)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
