"""The admin socket of a gateway process: one request a line, as JSON.

    {"get": "snapshot", "sessions": 50}      one line: {"snapshot": {…}}; may be sent again
    {"get": "events", "kinds": ["BackendChanged"], "session": "…", "backend": "…", "caller": "…"}
                                             {"following": {…}}, then lines {"event": {…}}, and {"lost": n}

Whatever a reader does, no call waits for it: it has a task of its own, and a bounded queue of events.
"""

import asyncio
import json
import logging

from holdfast.core.values import members
from holdfast.gateway.admin.event_queue import EventQueue
from holdfast.gateway.admin.place import listening, remove
from holdfast.gateway.admin.shown import Wanted, line_of
from holdfast.gateway.admin.snapshot import SESSIONS, Snapshots
from holdfast.observers import add_observer, remove_observer

log = logging.getLogger("holdfast.gateway")

READERS = 32  # at once; more are hung up on
REQUEST_BYTES = 4096
BUFFER_BYTES = 64 * 1024  # of the transport, beside the queue
CLOSE_SECONDS = 2.0  # for readers' tasks to take their cancellation


class AdminSocket:
    """The admin socket of one gateway. Without a reader it costs nothing but the socket."""

    def __init__(self, owner: str, snapshots: Snapshots) -> None:
        self._owner = owner
        self._snapshots = snapshots
        self._server: asyncio.Server | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self.path: str | None = None
        """Where it is; None where there is none."""

    async def open(self) -> None:
        """Listen, if this machine can: a gateway serves its clients without it, too."""
        found = listening(self._owner)
        if found is None:
            return
        sock, path = found
        try:
            self._server = await asyncio.start_unix_server(self._accept, sock=sock, limit=REQUEST_BYTES)
        except BaseException:
            sock.close()
            remove(path)
            raise
        self.path = str(path)

    async def close(self) -> None:
        """Hang up on all readers, and remove the socket."""
        server, self._server = self._server, None
        if server is None or self.path is None:
            return
        server.close()
        remove(self.path)
        self.path = None
        for task in tuple(self._readers):
            task.cancel()
        if self._readers:
            await asyncio.wait(tuple(self._readers), timeout=CLOSE_SECONDS)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._readers) >= READERS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="admin reader")
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        rates, is_measured = self._snapshots.rates, False
        try:
            while line := await reader.readline():
                if not is_measured and b"snapshot" in line:  # calls are measured from its first snapshot on
                    rates.add_reader()
                    is_measured = True
                await self._answer(line, reader, writer)
        except ValueError:  # a line that is too long
            log.info("admin socket: a request is longer than %d bytes", REQUEST_BYTES)
        except OSError as error:
            log.debug("admin socket: a reader is gone: %s", error)
        except Exception:
            log.exception("admin socket: a request failed")
        finally:
            if is_measured:
                rates.remove_reader()
            writer.transport.abort()

    async def _answer(self, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = members(json.loads(line))
            sessions, what = request.get("sessions", SESSIONS), request.get("get")
            if what == "snapshot" and isinstance(sessions, int):
                writer.write(line_of({"snapshot": await self._snapshots.take(sessions)}))
            elif what == "events":
                await self._follow(Wanted.parse(request), reader, writer)
            else:
                raise ValueError("get must be 'snapshot' or 'events', and sessions a number")
        except (ValueError, RecursionError) as error:
            writer.write(line_of({"error": str(error)[:200]}))
        await writer.drain()

    async def _follow(self, wanted: Wanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send events until the reader hangs up."""
        queue = EventQueue(wanted)
        add_observer(queue)
        sending = asyncio.get_running_loop().create_task(self._send(queue, writer), name="admin events")
        hanging_up = asyncio.get_running_loop().create_task(reader.read(), name="admin reader's end")
        try:
            await asyncio.wait((sending, hanging_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            remove_observer(queue)
            for task in (sending, hanging_up):
                task.cancel()
            await asyncio.wait((sending, hanging_up))
            writer.transport.abort()
        for task in (sending, hanging_up):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _send(self, queue: EventQueue, writer: asyncio.StreamWriter) -> None:
        writer.write(line_of({"following": {"process": self._owner}}))
        while True:
            await writer.drain()
            writer.write(await queue.take())
