"""A channel to a program: each line of JSON on stdin and stdout is a message. One run of the program is one session.

It starts the program without a shell and with a safe part of this process's environment, and reports why it ended.
"""

import secrets
from collections.abc import Callable

from holdfast.events import ChildEnded, ChildStarted, ChildStderr
from holdfast.links.codec import decode, decode_exactly, encode, encode_known
from holdfast.links.limits import Limits, too_large
from holdfast.links.reporter import LinkReporter
from holdfast.links.target import CommandTarget
from holdfast.links.wires.base import Message, Resolved
from holdfast.links.wires.duplex import Ending, Unreadable
from holdfast.links.wires.stdio.child import Child, start
from holdfast.links.wires.stdio.command import environment, failed_to_start, find, masked


class StdioChannel:
    """See `Channel`."""

    def __init__(
        self, name: str, target: CommandTarget, limits: Limits, reporter: LinkReporter, known_json: bool = False
    ) -> None:
        self._name = name
        self._target = target
        self._limits = limits
        self._reporter = reporter
        self._known_json = known_json
        self._child: Child | None = None
        self._shown = target.command

    async def open(self, resolved: Resolved, answered: Callable[[Message], bool]) -> None:
        target = self._target
        env = environment(resolved.env)
        self._shown = masked(target.command, target.args, resolved.env)
        file = find(target.command, target.args, env, target.cwd, self._name)
        child = Child(
            self._limits.message_bytes,
            secrets.token_hex(16),
            self._on_stderr,
            self._reporter.strayed,
            decode_exactly if self._known_json else decode,
            answered,
        )
        try:
            await start(child, file, target.args, env, target.cwd)
        except OSError as error:
            raise failed_to_start(error, file, self._shown, self._name) from error
        self._child = child
        self._reporter.event(ChildStarted, pid=child.pid)

    def _on_stderr(self, line: str) -> None:
        child = self._child
        self._reporter.event(ChildStderr, pid=child.pid if child is not None else 0, line=line)

    async def write(self, message: Message, sent: Callable[[], None]) -> None:
        line = (encode_known if self._known_json else encode)(message, self._name) + b"\n"
        if len(line) > self._limits.message_bytes:
            raise too_large(len(line), self._limits.message_bytes, self._name)
        if self._child is None:
            raise ConnectionResetError
        await self._child.write(line, sent)

    async def read(self) -> Message | Unreadable:
        assert self._child is not None
        return await self._child.read()

    async def close(self) -> None:
        child = self._child
        if child is None:
            return
        expected = not child.ended.is_set()
        await child.close(self._limits.exit)
        self._reporter.event(ChildEnded, pid=child.pid, exit_code=child.exit_code, expected=expected)

    async def last_words(self) -> Ending:
        if self._child is None:
            return Ending("the program was not started")
        ending = await self._child.last_words()
        return ending._replace(what=f"{ending.what}; ran: {self._shown}")
