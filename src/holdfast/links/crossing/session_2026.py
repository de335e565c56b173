"""A 2026 session over a 2025 server: its requests, and what a session of the server has in place of each request's own.

A server's questions become `input_required`, a request's log level becomes the session's, listens are answered here.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.core.eras import CLIENT_CAPABILITIES, INPUT_METHODS, LOG_LEVEL, Era
from holdfast.core.questions import asked_by_error, has
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer
from holdfast.links.calls.call import LISTEN
from holdfast.links.calls.handlers import CallHandlers, OnNotification, OnProgress, Params
from holdfast.links.crossing.listens import OF_LISTENS, Listens
from holdfast.links.crossing.open_questions import missing_capability
from holdfast.links.crossing.parked import ParkedCalls, WaitingCall
from holdfast.links.crossing.request import SessionRequest
from holdfast.links.crossing.shapes import LEVELS, error_for_2026
from holdfast.links.link import Link

URL: Mapping[str, Any] = {"elicitation": {"url": {}}}
LOG = "notifications/message"
_OF_RETRIES = frozenset({"inputResponses", "requestState"})
_ONLY_2025 = frozenset({"notifications/elicitation/complete", "notifications/tasks/status"})


class Session2026:
    """One session's."""

    def __init__(self, link: Link) -> None:
        self.parked = ParkedCalls(link.name)
        self.listens = Listens(link)
        self.deliver: OnNotification | None = None
        self._link = link
        self._levels: list[str] = []
        """The log levels of the requests under way."""
        self._level: str | None = None
        """The level that the server was asked for."""
        self._setting = asyncio.Lock()
        self._default = link.log_level

    async def request(self, request: SessionRequest) -> dict[str, Any]:
        """Answer a request of the session: here, or by the server."""
        method, params, headers = request.method, request.params, request.headers
        if method == LISTEN:
            return await self._listen(params, request.id)
        meta = members(params.get("_meta"))
        capabilities = members(meta.get(CLIENT_CAPABILITIES))
        level = meta.get(LOG_LEVEL, self._default)
        if level not in LEVELS:
            level = None
        is_known = self._link.era is not None  # a server that turns out to be of 2026 after all gets all
        if is_known:
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("mcp-param-")}
        asked = {name: value for name, value in params.items() if not is_known or name not in _OF_RETRIES}

        async def send(call: WaitingCall | None, on_progress: OnProgress | None, timeout: float | None) -> Any:
            if level is not None:
                await self._ask_for(level, timeout)
                self._levels.append(level)
            try:
                return await self._link.request(
                    method,
                    asked,
                    safe=request.safe,
                    headers=headers,
                    timeout=timeout,
                    on_progress=on_progress,
                    id=request.id,
                    sharer=request.sharer,
                    handlers=self._handlers(call, level),
                    resume=request.resume,
                    on_resume_token=request.on_resume_token,
                )
            finally:
                if level is not None:
                    self._levels.remove(level)

        async def work(call: WaitingCall) -> dict[str, Any]:
            return await send(call, call.follow(), None)

        try:
            if method not in INPUT_METHODS or self.deliver is None:
                return await send(None, request.on_progress, request.timeout)
            if is_known and "requestState" in params:
                return await self.parked.resume(request, capabilities)
            return await self.parked.run(request, capabilities, work)
        except ErrorAnswer as error:
            if self._link.era is Era.Y2026:  # after all
                raise
            urls = asked_by_error(error.code, error.data)
            if urls is None or method not in INPUT_METHODS:
                raise error_for_2026(method, error, params) from error
            if not has(capabilities, URL):
                raise missing_capability(method, URL, self._link.name) from error
            if any(members(each).get("action") != "accept" for each in members(params.get("inputResponses")).values()):
                raise error_for_2026(method, error, params) from error  # it was asked before, and declined
            return {"resultType": "input_required", "inputRequests": urls}  # nothing was executed: a retry is a call

    async def _listen(self, params: Mapping[str, Any], id: str | int | None) -> dict[str, Any]:
        if self._link.era is None:
            await self._link.open()
        if self._link.era is Era.Y2026:
            return await self._link.request(LISTEN, params, id=id)
        return await self.listens.listen(id, params)

    def _handlers(self, call: WaitingCall | None, level: str | None) -> CallHandlers | None:
        if self.deliver is None:  # somebody else takes what the server sends
            return None
        return CallHandlers(
            on_request=lambda method, params, _: self._ask(call, method, params),
            on_notification=lambda method, params: self._take(method, params, level),
        )

    async def _ask(self, call: WaitingCall | None, method: str, params: Params) -> dict[str, Any]:
        return await (self.parked.ask(method, params) if call is None else call.ask(method, params))

    async def ask(self, method: str, params: Params) -> dict[str, Any]:
        """Answer a question that came on no call's own stream."""
        return await self.parked.ask(method, params)

    async def _ask_for(self, level: str, timeout: float | None) -> None:
        """Ask the server for log messages of this level. It has one for its whole session, so we ask for the most
        verbose that any request wanted, and leave out what a request did not want."""
        handshake = self._link.handshake
        if handshake is None or "logging" not in handshake.capabilities:
            return
        async with self._setting:
            if self._level is not None and LEVELS.index(self._level) <= LEVELS.index(level):
                return
            with suppress(ErrorAnswer):  # then it sends what it sends
                await self._link.request("logging/setLevel", {"level": level}, timeout=timeout)
            self._level = level

    def _take(self, method: str, params: Params, level: str | None) -> None:
        """A notification on a call's own stream."""
        if method != LOG:
            self.take(method, params)
        elif level is not None and _reaches(params, level):
            self._pass_on(method, params)

    def take(self, method: str, params: Params) -> None:
        """Give a notification of the server to the session, as far as 2026 has it."""
        if method in OF_LISTENS:
            self.listens.take(method, params)
        elif method == LOG:
            if any(_reaches(params, level) for level in self._levels):
                self._pass_on(method, params)
        elif method not in _ONLY_2025:
            self._pass_on(method, params)

    def _pass_on(self, method: str, params: Params) -> None:
        if self.deliver is not None:
            self.deliver(method, params)


def _reaches(params: Params, level: str) -> bool:
    """Is a log message of this level, or a graver one?"""
    said = (params or {}).get("level")
    return said in LEVELS and LEVELS.index(str(said)) >= LEVELS.index(level)
