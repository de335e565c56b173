"""Types of the functions that handle a server's requests, notifications and progress."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Params: TypeAlias = Mapping[str, Any] | None
OnRequest: TypeAlias = Callable[[str, Params, str | int], Awaitable[dict[str, Any]]]
"""Answers a server's request (sampling, elicitation, roots): method, params, the request's id. Raises `ErrorAnswer` to
answer with an error of its own."""
OnNotification: TypeAlias = Callable[[str, Params], None]
"""Handles a server's notification, in the order of arrival. Must not block."""
OnResumeToken: TypeAlias = Callable[[str], Awaitable[None]]
"""Called with the id of an event of an answer's stream, from which the answer can be resumed."""
OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]


class RawProgress:
    """An `OnProgress` that wants the parameters of a progress notification as they came. Where `pass_on` returns
    something to wait for, the stream is read no further meanwhile."""

    def __init__(self, pass_on: Callable[[Mapping[str, Any]], Awaitable[None] | None]) -> None:
        self._pass_on = pass_on

    async def take(self, params: Mapping[str, Any]) -> None:
        """Pass on the parameters of one notification."""
        if (passed := self._pass_on(params)) is not None:
            await passed

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        await self.take({"progress": progress, "total": total, "message": message})


@dataclass(frozen=True, slots=True)
class CallHandlers:
    """Handlers for messages on one call's own stream, used instead of the link's. Only HTTP has such streams."""

    on_request: OnRequest | None = None
    on_notification: OnNotification | None = None
    keep_up: Callable[[], Awaitable[None]] | None = None
    """Waits until enough of the received messages are handled; meanwhile the stream is not read."""
