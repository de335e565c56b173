"""Questions of backends to a session's client: sent where the client listens, and answered in time or refused.

It owns the questions that wait for an answer, and the choice of the stream that carries one.
"""

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.core.methods import TASKS, is_foreign
from holdfast.core.questions import CAPABILITY
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer
from holdfast.gateway.sessions.notices import ClientNotices
from holdfast.gateway.tasks.session_tasks import SessionTasks

INTERNAL_ERROR = -32603
FOLLOWED = 256  # questions, and tasks of the client, whose progress is passed on


_OWN = "hf-"


def is_own_token(token: object) -> bool:
    """Is this the id or progress token of a question that a gateway sent?"""
    return isinstance(token, str) and token.startswith(_OWN)


class ReplyChannel(Protocol):
    """The way back to the client that made a call, while the call is under way."""

    can_ask: bool
    is_alone: bool
    """No other client is served: a program may wait for this one."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a notification or a request on the call's own stream, in order."""
        ...

    async def keep_up(self) -> None:
        """Wait until the client has taken most of what was sent."""
        ...


class Asker(NamedTuple):
    """The server that asks, and how the client's progress is sent to it."""

    server: str
    notify: Callable[[str, Mapping[str, Any]], Awaitable[None]]


class Questions:
    """The open questions of one session."""

    __slots__ = ("_capabilities", "_channels", "_notices", "_numbers", "_open", "_progress", "_seconds", "_tasks")

    def __init__(
        self,
        capabilities: Mapping[str, Any],
        notices: ClientNotices,
        tasks: SessionTasks,
        seconds: Callable[[], float],
    ) -> None:
        self._capabilities = capabilities
        """Of the client."""
        self._notices = notices
        self._tasks = tasks
        self._seconds = seconds
        """For an answer."""
        self._channels: list[ReplyChannel] = []
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._progress: OrderedDict[str, tuple[Asker, Any]] = OrderedDict()
        """Where the client's progress goes, and the server's token for it, by the token that the client got."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_channels(self) -> bool:
        return bool(self._channels)

    def open_channel(self, reply_channel: ReplyChannel) -> None:
        """The client can be asked on the stream of this call, from now on."""
        self._channels.append(reply_channel)

    def close_channel(self, reply_channel: ReplyChannel) -> None:
        self._channels.remove(reply_channel)

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        reply_channel: ReplyChannel | None,
        asker: Asker | None = None,
    ) -> dict[str, Any]:
        """Ask the client: on the stream of the call that the question is about, else of any call, else on its own."""
        seconds = self._seconds()
        if not _may_ask(method, self._capabilities):
            raise ErrorAnswer(
                f"{method}: the client has no such capability", message="Method not found", code=METHOD_NOT_FOUND
            )
        id = f"{_OWN}{next(self._numbers)}-{secrets.token_hex(4)}"
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            asked = dict(params) if asker is None else await self._tasks.question(asker.server, method, params)
            message["params"] = self._with_own_token(id, asked, asker)
        channel = self._channel(reply_channel)
        answered = self._open[id] = asyncio.get_running_loop().create_future()
        number, stream = 0, None
        try:
            if channel is not None:
                channel.send(message)
            elif (stream := self._notices.read_stream) is not None:
                stream.add(message)
                number = stream.last
            else:
                raise ErrorAnswer(
                    f"{method}: the client does not listen",
                    message="The client can't be asked now",
                    code=INTERNAL_ERROR,
                )
            async with asyncio.timeout(seconds):
                answer = await answered
        except TimeoutError:
            raise ErrorAnswer(
                f"{method}: no answer within {seconds:g} s",
                message="The client did not answer in time",
                code=INTERNAL_ERROR,
            ) from None
        except asyncio.CancelledError as error:
            reason = error.args[0] if error.args else None  # what the server gave, if it cancelled its question
            self._take_back(id, channel, reason if isinstance(reason, str) else "")
            raise
        finally:
            self._open.pop(id, None)
            if number and stream is not None:
                stream.forget(number)  # a client that resumes its stream must not be asked again
            if not answered.done() or answered.cancelled() or "task" not in members(answered.result().get("result")):
                self._progress.pop(id, None)  # the progress of a task goes on
        result = _result(method, answer)
        return result if asker is None else await self._tasks.answer(asker.server, method, result)

    def _with_own_token(self, id: str, params: dict[str, Any], asker: Asker | None) -> dict[str, Any]:
        """With a progress token of ours: two servers may have chosen the same."""
        meta = members(params.get("_meta"))
        if asker is None or "progressToken" not in meta:
            return params
        self._progress[id] = asker, meta["progressToken"]
        if len(self._progress) > FOLLOWED:
            self._progress.popitem(last=False)
        return {**params, "_meta": {**meta, "progressToken": id}}

    def progressed(self, params: Mapping[str, Any]) -> tuple[Asker, dict[str, Any]] | None:
        """Who gets the client's progress, and its parameters as that server knows them."""
        token = params.get("progressToken")
        known = self._progress.get(token) if isinstance(token, str) else None
        return None if known is None else (known[0], {**params, "progressToken": known[1]})

    def _take_back(self, id: str, channel: ReplyChannel | None, reason: str) -> None:
        """Notify the client where it was asked, or else on its own stream, that no answer is wanted any longer."""
        cancelled = {
            "method": "notifications/cancelled",
            "params": {"requestId": id, **({"reason": reason} if reason else {})},
        }
        if channel is not None and channel in self._channels:
            channel.send({"jsonrpc": "2.0", **cancelled})
        else:
            self._notices.push(cancelled)

    def _channel(self, wanted: ReplyChannel | None) -> ReplyChannel | None:
        if wanted is not None and wanted.can_ask:
            return wanted
        return next((each for each in reversed(self._channels) if each.can_ask), None)

    def answer(self, message: dict[str, Any]) -> bool:
        """Take a client's answer. False if no question waits for it (any more)."""
        id = message.get("id")
        waiting = self._open.get(id) if isinstance(id, str) else None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(message)
        return True


def _may_ask(method: str, declared: Mapping[str, Any]) -> bool:
    """May a client that declares this be sent a request of this method? What the protocol does not define, it answers
    itself."""
    if method.startswith(TASKS):
        return "tasks" in declared
    return CAPABILITY[method] in declared if method in CAPABILITY else is_foreign(method)


def _result(method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    error = answer.get("error")
    if not isinstance(error, dict):
        return members(answer.get("result"))
    known = cast("dict[str, Any]", error)
    code = known.get("code")
    refused = ErrorAnswer(
        f"{method} was refused by the client",
        message=str(known.get("message", "")),
        code=code if isinstance(code, int) else INTERNAL_ERROR,
        data=known.get("data"),
    )
    refused.answer = known
    raise refused
