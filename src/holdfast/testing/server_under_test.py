"""The declaration of a server for `server_doctor`: how to start it, and its tools; and its processes and clients.

Its processes never outlive the test. `server_doctor.py` decides what an answer means.
"""

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from holdfast.core.values import members
from holdfast.errors import ConfigError, ErrorAnswer, HoldfastError, StartTimeout, UsageError
from holdfast.links import HttpTarget, Limits, Link, Options
from holdfast.links.wires.stdio.warden import warden

ToolCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments; the session's handle is added to them."""
Credential: TypeAlias = str | Mapping[str, str]
"""A bearer token, or headers."""
EraName: TypeAlias = Literal["2025", "2026"]
ERAS: tuple[EraName, ...] = ("2025", "2026")
POLL_SECONDS = 0.01  # seconds between two checks whether a server is up
TAIL_BYTES = 4_000  # bytes of a server's stderr that are shown in an error
CLOSE_SECONDS = 2.0  # to end a session of 2025 on a server that may be dead


@dataclass(frozen=True, slots=True)
class Expiry:
    """How to test expiry: one more replica is started with this environment, in which a session expires after `seconds`
    without use."""

    env: Mapping[str, str]
    seconds: float


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ServerUnderTest:
    """What the checks need to know about a server. Sessions are named by a handle in an argument of its tools."""

    command: Sequence[str]
    """Serves MCP over HTTP in the foreground; "{port}" stands for the port, here or in `env`."""
    create: str | ToolCall
    """The tool that begins a session and returns its handle."""
    write: Callable[[int], ToolCall]
    """The n-th write to a session, from 0, which must be permanently visible in the state."""
    read: str | ToolCall
    count: Callable[[Any], int]
    """Returns how many writes the answer to `read` shows, at first 0.
    Must raise if it shows an incomplete write. It is called with the structured content of the answer, else the JSON in
    its text, else the text.
    """
    end: str | None = None
    """The tool that ends a session."""
    argument: str = "session_id"
    """The name of the argument with the handle."""
    handle: Callable[[Any], str] | None = None
    """Returns the handle in the answer to `create`, if it is neither the text nor a member with the argument's name."""
    slow: Callable[[int], ToolCall] | None = None
    """A slow write, which the restart interrupts; by default `write`."""
    credentials: tuple[Credential, Credential] | None = field(default=None, repr=False)
    """Credentials of two principals."""
    expiry: Expiry | Callable[[str], Awaitable[object]] | None = None
    """A replica on which sessions expire quickly, or a function that expires the session of a handle."""
    env: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    """Added to the test's environment for all replicas, for example to name the store that they share."""
    cwd: str | Path | None = None
    path: str = "/mcp"
    eras: Sequence[EraName] = ERAS
    start_seconds: float = 30.0
    answer_seconds: float = 30.0
    """Seconds after which a call counts as unanswered."""
    recovery_seconds: float = 10.0
    """Seconds after a restart within which a session must be writable again:
    an interrupted turn may hold it for a while.
    """

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise ConfigError(
                f"command={self.command!r:.80} is not a list of strings",
                remedy="give command=[sys.executable, 'server.py', '{port}']; there is no shell to split it",
            )
        if not any("{port}" in part for part in (*self.command, *self.env.values())):
            raise ConfigError(
                "neither command= nor env= has a place for the port, and several replicas are started",
                remedy="write '{port}' where the server takes its port, as in env={'PORT': '{port}'}",
            )
        if not self.eras or any(era not in ERAS for era in self.eras):
            raise ConfigError(f"eras={self.eras!r:.80}", remedy="give '2025', '2026' or both")

    def handle_in(self, value: Any) -> str | None:
        """The handle in `value`, which the tool `create` answered."""
        if self.handle is not None:
            return self.handle(value)
        found = cast("dict[str, Any]", value).get(self.argument) if isinstance(value, dict) else value
        return found if isinstance(found, str) and found else None


# Processes


class Replica:
    """One process of the server, in a group of its own, known to the warden."""

    def __init__(self, server: ServerUnderTest, env: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._more = dict(env or {})
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._server.path}"

    async def start(self) -> None:
        """Start it on a free port, and wait until it accepts connections."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        ours = {**self._server.env, **self._more}
        env = {name: value.replace("{port}", str(self.port)) for name, value in ours.items()}
        command = [part.replace("{port}", str(self.port)) for part in self._server.command]
        warden.start()
        with tempfile.TemporaryFile("a+b") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    env={**os.environ, **env, **warden.cookies()},
                    cwd=self._server.cwd,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"{command[0]!r:.200} can't be started: {error}", remedy="see command=") from error
            warden.know(self._process.pid)
            try:
                async with asyncio.timeout(self._server.start_seconds):
                    while not await self.listens():
                        if self._process.returncode is not None:
                            raise TimeoutError
                        await asyncio.sleep(POLL_SECONDS)
            except TimeoutError:
                code = self._process.returncode
                await self.kill()
                output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
                what = f"ended with {code}" if code is not None else "accepted no connection in time"
                raise StartTimeout(
                    f"the server under test {what}: {' '.join(command)[:300]}",
                    exit_code=code if code is not None else 0,
                    stderr_tail=output.read().decode(errors="replace"),
                    remedy="start it by hand with the same command and environment",
                ) from None

    async def listens(self) -> bool:
        """Whether it accepts connections. This is known at once, while the end of a process may be reported later."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def kill(self) -> None:
        """Send SIGKILL to its whole process group, like a crash of the machine."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:  # pragma: no cover
                process.kill()
        await process.wait()
        warden.forget(process.pid)


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncGenerator[None]:
    """Run all processes until the end of the block."""
    try:
        started = await asyncio.gather(*(each.start() for each in replicas), return_exceptions=True)
        for failure in started:
            if failure is not None:
                raise failure
        yield
    finally:
        await asyncio.gather(*(asyncio.shield(each.kill()) for each in replicas))


# Calls


class Outcome(Enum):
    """The outcome of a call."""

    DONE = "done"
    REFUSED = "refused"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its value, its text, and the complete result."""

    outcome: Outcome
    words: str
    value: Any = None
    whole: Any = None

    @property
    def done(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def refused(self) -> bool:
        return self.outcome is Outcome.REFUSED

    def without(self, handle: str) -> str:
        """The answer without the handle, for comparing two answers that must be equal."""
        return json.dumps(self.whole, sort_keys=True).replace(handle, "…")

    def __str__(self) -> str:
        words = " ".join(self.words.split())
        return f"{self.outcome.value}: {words[:160]}{'…' if len(words) > 160 else ''}"


class Client:
    """One client of one replica, in one era, as one principal."""

    def __init__(self, server: ServerUnderTest, replica: Replica, era: EraName, credential: Credential | None) -> None:
        self.server = server
        headers = {"authorization": f"Bearer {credential}"} if isinstance(credential, str) else credential
        limits = Limits(start=server.answer_seconds, close=CLOSE_SECONDS, replays=0)
        self._link = Link(
            HttpTarget(replica.url, headers=headers, proxy=""),
            Options(era=era, stateful=False, stream=False, limits=limits),
            name=f"the server under test on port {replica.port}",
        )

    async def close(self) -> None:
        with suppress(HoldfastError):
            await self._link.close()

    async def call(self, call: str | ToolCall, handle: object = None) -> Answer:
        """Call a tool, with the handle among its arguments. The call is never repeated."""
        name, arguments = (call, dict[str, Any]()) if isinstance(call, str) else call
        given = dict(arguments) if handle is None else {**arguments, self.server.argument: handle}
        params = {"name": name, "arguments": given}
        try:
            result = await self._link.request("tools/call", params, timeout=self.server.answer_seconds)
        except ErrorAnswer as error:
            whole = {"code": error.code, "message": error.message, "data": error.data}
            return Answer(Outcome.REFUSED, error.message, whole=whole)
        except UsageError:
            raise
        except HoldfastError as error:
            return Answer(Outcome.NO_ANSWER, f"{type(error).__name__}: {error.what}")
        whole = {name: result.get(name) for name in ("isError", "content", "structuredContent")}
        words = "\n".join(str(members(part).get("text", "")) for part in _parts(result))
        outcome = Outcome.REFUSED if result.get("isError") is True else Outcome.DONE
        return Answer(outcome, words, _value(result, words), whole)


def _parts(result: Mapping[str, Any]) -> list[Any]:
    content = result.get("content")
    return cast("list[Any]", content) if isinstance(content, list) else []


def _value(result: Mapping[str, Any], words: str) -> Any:
    structured = result.get("structuredContent")
    if structured is not None:
        found = members(structured)
        return found["result"] if found.keys() == {"result"} else structured
    with suppress(ValueError):
        parsed = json.loads(words)
        if isinstance(parsed, dict | list):
            return cast("Any", parsed)
    return words
