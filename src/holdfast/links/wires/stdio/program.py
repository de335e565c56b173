"""A program started by the warden: its three pipes, its leash, its exit code. POSIX only.

It owns the descriptors, on any event loop: its pipes are not inherited by other processes, so that their ends are
noticed (uvloop's subprocesses keep copies of theirs). The program is not a child of this process, so the host's child
watcher and signal handlers are not involved.
"""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from holdfast.links.wires.stdio.warden import warden

START_SECONDS = 10.0  # a keeper needs milliseconds to start a program; after this time the machine hangs
MAX_REQUEST = 16 * 1024 * 1024  # bytes of arguments and environment; Linux takes a fraction of it
WORD_BYTES = 64  # bytes of one message from a keeper


class Listener(Protocol):
    """The receiver of a program's events: `Child`."""

    def connection_made(self, transport: "Program") -> None: ...

    def pipe_data_received(self, fd: int, data: bytes) -> None: ...

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None: ...

    def process_exited(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Program:
    """The part of a subprocess's transport that `Child` needs."""

    def __init__(self, child: Listener) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._leash: socket.socket | None = None
        self._rest = b""
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._pid = 0
        self._returncode: int | None = None
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self.let_go = asyncio.Event()
        """Set when the keeper has ended, and so everything that the program started."""

    async def start(self, file: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        """Start it. Raises OSError from the system."""
        theirs = await self._open_pipes()
        try:
            request = _request(file, args, env, cwd)
            self._leash = warden.leash(*theirs)
        finally:
            for number in theirs:
                os.close(number)
        self._loop.add_reader(self._leash, self._read_leash)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._loop.sock_sendall(self._leash, request)
                await self._started
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"nothing was started within {START_SECONDS:g} s") from None

    async def _open_pipes(self) -> list[int]:
        """Create the pipes; returns the program's ends, while ours become transports."""
        theirs: list[int] = []
        try:
            for number in range(3):
                reading, writing = os.pipe()
                ours, other = (writing, reading) if number == 0 else (reading, writing)
                theirs.append(other)
                protocol = _Pipe(self._child, number)
                opened = os.fdopen(ours, "wb" if number == 0 else "rb", 0)
                if number == 0:
                    self._pipes[0], _ = await self._loop.connect_write_pipe(lambda each=protocol: each, opened)
                else:
                    self._pipes[number], _ = await self._loop.connect_read_pipe(lambda each=protocol: each, opened)
        except BaseException:
            for number in theirs:
                os.close(number)
            raise
        return theirs

    def _read_leash(self) -> None:
        """Read messages of the keeper, or its end."""
        assert self._leash is not None
        try:
            data = self._leash.recv(WORD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"exited":
                if self._pid:  # otherwise its start was cancelled
                    self._exited(int(number))
            elif not self._started.done() and word == b"started":
                self._pid = int(number)
                self._child.connection_made(self)  # first, because its end may be reported next
                self._started.set_result(None)
            elif not self._started.done():
                self._started.set_exception(OSError(int(number), os.strerror(int(number))))
        if not data:
            self._lost()

    def _lost(self) -> None:
        """The keeper has ended, normally or because it was killed."""
        self._drop()
        if not self._started.done():
            self._started.set_exception(BrokenPipeError("the warden is gone"))
            self._started.exception()  # if the start was cancelled, nothing else retrieves it
        elif self._pid and self._returncode is None:  # its end could not be noticed any more, so end it now
            self.send_signal(signal.SIGKILL)
            self._exited(-signal.SIGKILL)

    def _exited(self, code: int) -> None:
        if self._returncode is None:
            self._returncode = code
            self._child.process_exited()

    def _drop(self) -> None:
        leash, self._leash = self._leash, None
        if leash is not None:
            self._loop.remove_reader(leash)
            leash.close()
        self.let_go.set()

    # As a subprocess's transport

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._returncode

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._pipes.get(fd)

    def send_signal(self, number: int) -> None:
        if not self._pid:
            return  # group 0 is this process's own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    async def end_descendants(self, seconds: float) -> None:
        """Terminate, then kill, all that is left below the keeper, and release it."""
        if self._leash is None:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(2 * seconds):
                await self._loop.sock_sendall(self._leash, b"end %f" % seconds)
                await self.let_go.wait()

    def close(self) -> None:
        """Let the keeper kill whatever is left."""
        for transport in self._pipes.values():
            transport.close()
        self._drop()


class _Pipe(asyncio.Protocol):
    """Our end of a pipe; what it reads is passed to the child under the descriptor's number."""

    def __init__(self, child: Listener, number: int) -> None:
        self._child = child
        self._number = number

    def data_received(self, data: bytes) -> None:
        self._child.pipe_data_received(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.pipe_connection_lost(self._number, exc)

    def pause_writing(self) -> None:
        self._child.pause_writing()

    def resume_writing(self) -> None:
        self._child.resume_writing()


def _request(file: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> bytes:
    entries = [f"{name}={value}" for name, value in env.items()]
    parts = [file, str(Path(cwd or ".").absolute()), str(len(args)), *args, *entries]
    for part in parts:
        if "\0" in part:
            raise ValueError("embedded null byte")
    body = b"\0".join(os.fsencode(part) for part in parts)
    if len(body) > MAX_REQUEST:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return b"%08d" % len(body) + body
