"""Requests of a 2025 session to a 2026 server: what each era has instead of what the other has.

It owns the rounds of input, the headers that repeat parameters, and the shape of results and errors. Subscriptions are
not crossed: `Link.watch` has them.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from holdfast.core.eras import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    result_for_2025,
)
from holdfast.core.values import members
from holdfast.errors import AnswerTimeout, ErrorAnswer, LimitReached
from holdfast.links.calls.handlers import OnProgress, OnRequest
from holdfast.links.link import Link

INVALID_REQUEST, INVALID_PARAMS = -32600, -32602
NOT_FOUND_2025 = -32002  # of a resource; 2026 says that the parameters are invalid
ROUNDS = 10  # of input for one call: as many as the SDK's client allows
PAGES = 100  # of tools, when one wants its parameters in headers

_questions = count(1)


class Crossing:
    """One session's. `ask` asks the session; None while nobody answers."""

    def __init__(
        self,
        link: Link,
        learn: Callable[[dict[str, Any]], None],
        param_headers: Callable[[str, Mapping[str, Any]], dict[str, str]],
    ) -> None:
        self.link = link
        self.ask: OnRequest | None = None
        self._learn = learn
        self._param_headers = param_headers

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        safe: bool | None,
        headers: Mapping[str, str],
        timeout: float | None,
        on_progress: OnProgress | None,
        id: str | int | None,
        sharer: object | None,
    ) -> dict[str, Any]:
        """A request of a 2025 session to a 2026 server: with its parameters in headers where the tool wants that, and
        again with what the session answers for as long as the server wants input."""
        if method == "logging/setLevel":  # each request says it there
            self.link.log_level = params.get("level")
            return {}
        clock = asyncio.get_running_loop().time
        until, listed, asked = None if timeout is None else clock() + timeout, False, dict(params)
        for _ in range(ROUNDS + 1):
            try:
                result = await self.link.request(
                    "server/discover" if method == "ping" else method,
                    asked,
                    safe=safe,
                    headers={**headers, **self._param_headers(method, params)},
                    timeout=None if until is None else max(0.0, until - clock()),
                    on_progress=on_progress,
                    id=id,
                    sharer=sharer,
                )
            except ErrorAnswer as error:
                if listed or (error.code, method) != (HEADER_MISMATCH, "tools/call"):
                    raise _error_for_2025(method, error) from error
                listed = True  # the tool wants parameters in headers, and we did not know, or knew it wrong
                await self._list_tools(until)
                continue
            if method == "ping":
                return {}
            if method == "tools/list":
                self._learn(result)
            if result.get("resultType") != "input_required":
                return result_for_2025(method, result)
            id, asked = None, {**params, **await self._answers(method, result, until)}
        raise LimitReached(
            f"{method}: {self.link.name!r} asked for input {ROUNDS} times in a row",
            limit=ROUNDS,
            server=self.link.name,
            phase="call",
        )

    async def _answers(self, method: str, result: Mapping[str, Any], until: float | None) -> dict[str, Any]:
        """What the session answers to the questions in a result, as parameters of the next try."""
        state, answers = result.get("requestState"), dict[str, Any]()
        more: dict[str, Any] = {"requestState": state} if isinstance(state, str) else {}
        try:
            async with asyncio.timeout_at(until):
                for key, question in members(result.get("inputRequests")).items():
                    if self.ask is None:
                        raise ErrorAnswer("no session", message="nobody answers requests", code=METHOD_NOT_FOUND)
                    known = members(question)
                    params = known.get("params")
                    id = f"input-{next(_questions)}"
                    answers[key] = await self.ask(str(known.get("method")), members(params) if params else None, id)
        except TimeoutError as error:
            raise AnswerTimeout(
                f"{method}: {self.link.name!r} asked for input, and it was not given within the call's timeout",
                server=self.link.name,
                phase="call",
                remedy="the call was not finished; raise the request's timeout",
            ) from error
        return {**more, "inputResponses": answers} if answers else more

    async def _list_tools(self, until: float | None) -> None:
        cursor: str | None = None
        for _ in range(PAGES):
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            params = None if cursor is None else {"cursor": cursor}
            result = await self.link.request("tools/list", params, timeout=left)
            self._learn(result)
            following = result.get("nextCursor")
            if not isinstance(following, str) or following == cursor:
                return
            cursor = following


def _error_for_2025(method: str, error: ErrorAnswer) -> ErrorAnswer:
    """A 2026 server's error with a code that 2025 knows."""
    code = error.code
    if code == INVALID_PARAMS and method == "resources/read" and "uri" in members(error.data):
        code = NOT_FOUND_2025
    elif code in (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION):
        code = INVALID_REQUEST
    if code == error.code:
        return error
    return ErrorAnswer(error.what, message=error.message, data=error.data, code=code or 0, server=error.server or "")
