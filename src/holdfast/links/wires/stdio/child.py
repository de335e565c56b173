"""One child process with its whole process group: its pipes and its termination.

It keeps the unread messages, within limits, and ends the process in three steps: close stdin, terminate, kill.
`lines.py` splits its stdout into messages, `stderr.py` keeps the end of its stderr.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast

from holdfast.links.codec import Decode, decode
from holdfast.links.wires.base import Message
from holdfast.links.wires.duplex import Ending, Unreadable
from holdfast.links.wires.stdio.lines import Lines
from holdfast.links.wires.stdio.program import Program
from holdfast.links.wires.stdio.stderr import TAIL_BYTES, StderrTail
from holdfast.links.wires.stdio.warden import COOKIE, kill_by_cookie, warden

BACKLOG = 1_000  # unread messages; beyond it the child's stdout is not read until some are taken
BACKLOG_BYTES = 1024 * 1024  # of their lines, with the same effect; at most one more message is held
LINGER = 0.5  # seconds to wait for the exit code and the last output of a dead child while a grandchild holds the pipe


class Child(asyncio.SubprocessProtocol):
    """A child process. It has one reader and any number of writers."""

    def __init__(
        self,
        cap: int,
        cookie: str,
        on_stderr: Callable[[str], None],
        on_stray: Callable[[str], None],
        decode: Decode = decode,
        answered: Callable[[Message], bool] | None = None,
    ) -> None:
        self.pid = 0
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self.cookie = cookie
        self._answered = answered
        self._lines = Lines(cap, decode, self._take, on_stray)
        self._stderr = StderrTail(on_stderr)
        self._transport: asyncio.SubprocessTransport | Program | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self._messages: deque[tuple[Message | Unreadable, int]] = deque()
        self._backlog = 0  # bytes of their lines
        self._reader: asyncio.Future[None] | None = None
        self._paused = False
        self._writers: set[asyncio.Future[None]] = set()
        self._writing_paused = False
        self._eof = False
        self._input_refused = False
        self._closing = False
        self._stderr_ended = asyncio.Event()

    # Called by the event loop

    def connection_made(self, transport: "asyncio.BaseTransport | Program") -> None:
        self._transport = cast("asyncio.SubprocessTransport | Program", transport)
        self.pid = self._transport.get_pid()
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr.feed(data)
            return
        self._lines.feed(data)
        behind = len(self._messages) > BACKLOG or self._backlog > BACKLOG_BYTES
        if behind and not self._paused and self._stdout is not None:
            self._paused = True
            self._stdout.pause_reading()
        if self._messages:
            self._wake()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._eof = True
            self._wake()
        elif fd == 2:
            self._stderr_ended.set()
        elif fd == 0 and not self._closing:
            # It does not read any more: what was written may be lost, and no answer will come.
            self._input_refused = True
            self._free_writers()
            asyncio.get_running_loop().call_later(LINGER, self._give_up_on_stdout)

    def process_exited(self) -> None:
        assert self._transport is not None
        self.exit_code = self._transport.get_returncode()
        self.ended.set()
        self._free_writers()
        # Its stdout ends now, unless a grandchild holds it open.
        asyncio.get_running_loop().call_later(LINGER, self._give_up_on_stdout)

    def _give_up_on_stdout(self) -> None:
        self._eof = True
        self._wake()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._free_writers()

    # Reading

    def _take(self, message: Message | Unreadable, size: int) -> None:
        if isinstance(message, dict) and self._answered is not None and "method" not in message:
            # An answer is passed directly to its call if no earlier message waits to be read.
            idle = not self._messages and self._reader is not None and not self._reader.done()
            if idle and self._answered(message):
                return
        self._messages.append((message, size))
        self._backlog += size

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> Message | Unreadable:
        """Return the next message. Raises EOFError at the end."""
        while not self._messages:
            if self._paused and self._stdout is not None:
                self._paused = False
                self._stdout.resume_reading()
            if self._eof:
                await self._gone(LINGER)  # so that its exit code is known
                raise EOFError
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message, size = self._messages.popleft()
        self._backlog -= size
        return message

    # Writing

    async def write(self, line: bytes, sent: Callable[[], None]) -> None:
        """Write a line and wait until the child keeps up. Raises ConnectionError if it has ended."""
        while self._writing_paused and not self.ended.is_set() and not self._input_refused:
            await self._room()  # a child that does not read must not let our memory fill with messages to it
        if self.ended.is_set() or self._input_refused or self._stdin is None or self._stdin.is_closing():
            raise ConnectionResetError
        sent()
        self._stdin.write(line)
        if self._writing_paused:
            await self._room()
            if self._input_refused:
                raise ConnectionResetError

    async def _room(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._writers.add(waiter)
        try:
            await waiter
        finally:
            self._writers.discard(waiter)

    def _free_writers(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)

    # The end

    async def last_words(self) -> Ending:
        if (
            self.ended.is_set()
            or self._eof
            or self._input_refused
            or (self._stdin is not None and self._stdin.is_closing())
        ):
            await self._gone(LINGER)
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await self._stderr_ended.wait()
        code = self.exit_code
        if code is None:
            what = "the program closed its stdout" if self._eof else "the program runs"
        elif code < 0:
            what = f"the program was killed by {_signal_name(-code)}"
        else:
            what = f"the program ended with exit code {code}"
        self._stderr.finish()
        lines = list(self._stderr.lines) or [f"(on stdout) {line}" for line in self._lines.printed]
        return Ending(what, code, "\n".join(lines)[-TAIL_BYTES:] or None)

    async def close(self, exit_seconds: float) -> None:
        """End it and everything it started: close stdin, then terminate, then kill."""
        self._closing = True
        if self._stdin is not None:
            self._stdin.close()
        if not await self._gone(exit_seconds):
            _signal_group(self.pid, self._transport, signal.SIGTERM)
            if not await self._gone(exit_seconds):
                _signal_group(self.pid, self._transport, signal.SIGKILL)
                await self._gone(exit_seconds)
        if _group_lives(self.pid):
            _signal_group(self.pid, self._transport, signal.SIGTERM)
            for _ in range(10):
                await asyncio.sleep(exit_seconds / 40)
                if not _group_lives(self.pid):
                    break
            else:
                _signal_group(self.pid, self._transport, signal.SIGKILL)
        if isinstance(self._transport, Program):
            await self._transport.end_descendants(exit_seconds / 4)
        await kill_by_cookie(self.cookie, exit_seconds / 4)
        warden.forget(self.pid)
        if self._transport is not None:
            self._transport.close()
        # The transport reports the ends of its pipes one iteration of the event loop later.
        await asyncio.sleep(0)

    async def _gone(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True


def _signal_group(pid: int, transport: "asyncio.SubprocessTransport | Program | None", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, number)
        elif transport is not None:
            transport.send_signal(number)


def _group_lives(pid: int) -> bool:
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def start(child: Child, file: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    """Start it in a process group and session of its own, registered with the warden.
    Raises OSError from the system.
    """
    env = {**env, **warden.cookies(), COOKIE: child.cookie}
    if os.name != "posix":
        await asyncio.get_running_loop().subprocess_exec(lambda: child, file, *args, env=env, cwd=cwd)
        return
    program = await _started(child, file, args, env, cwd)
    warden.know(program.get_pid())


async def _started(
    child: Child, file: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, tries: int = 2
) -> Program:
    """Start it through the warden; try once more if the warden was killed meanwhile."""
    warden.start()
    program = Program(child)
    try:
        await program.start(file, args, env, cwd)
    except BaseException as error:
        program.close()
        await asyncio.sleep(0)  # the pipes close one iteration later
        if isinstance(error, BrokenPipeError) and tries > 1:
            return await _started(child, file, args, env, cwd, tries - 1)
        raise
    return program
