"""A 2025 session over a 2026 server: its requests, and the questions that the server asks inside results.

It owns the rounds of input, the headers that repeat parameters, and what is answered without the server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeAlias, TypeVar

from holdfast.core.eras import CLIENT_CAPABILITIES, HEADER_MISMATCH, METHOD_NOT_FOUND, without_subscription
from holdfast.core.values import members
from holdfast.errors import AnswerTimeout, ErrorAnswer, HoldfastError, LimitReached
from holdfast.links.calls.handlers import OnRequest, Params
from holdfast.links.calls.inbound import ACKNOWLEDGED, INTERNAL_ERROR
from holdfast.links.crossing.changes import ChangeFeed
from holdfast.links.crossing.request import SessionRequest
from holdfast.links.crossing.shapes import (
    INVALID_PARAMS,
    LEVELS,
    TASKS,
    error_for_2025,
    question_for_2025,
    result_for_2025,
    without_tasks,
)
from holdfast.links.link import Link

ROUNDS = 10  # of input for one call: as many as the SDK's client allows
QUESTIONS = 64  # of one round
PAGES = 100  # of tools, when one wants its parameters in headers
CANCEL_SECONDS = 5.0  # for callbacks that answer questions to take their cancellation
STATE_SECONDS = 0.05, 0.25  # before a retry that brings no answers: at first, at most

ParamHeaders: TypeAlias = Callable[[str, Mapping[str, Any]], dict[str, str]]
"""The headers that a tool wants of a call's parameters: method, parameters."""

Send: TypeAlias = Callable[[Mapping[str, Any], str | int | None], Awaitable[dict[str, Any]]]
"""Sends a request again with other parameters and another id."""
T = TypeVar("T")

_questions = count(1)


class Session2025:
    """One session's. `on_question` puts a question to the session; None while nobody answers."""

    def __init__(self, link: Link, learn: Callable[[dict[str, Any]], None], param_headers: ParamHeaders) -> None:
        self.on_question: OnRequest | None = None
        self.changes = ChangeFeed(link)
        self._link = link
        self._learn = learn
        self._param_headers = param_headers

    async def request(self, request: SessionRequest) -> dict[str, Any]:
        """Answer a request of the session: here, or by the server."""
        method, params = request.method, request.params
        until = None if request.timeout is None else asyncio.get_running_loop().time() + request.timeout
        if method == "ping":
            return {}
        if method == "logging/setLevel":
            return self._set_level(params.get("level"))
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._in_time(self._subscribe(method, params.get("uri")), method, until)
        self.changes.ensure()

        async def send(params: Mapping[str, Any], id: str | int | None) -> dict[str, Any]:
            return await self._link.request(
                method,
                self._stamped(params),
                safe=request.safe,
                headers={**request.headers, **self._param_headers(method, params)},
                timeout=_left(until),
                on_progress=request.on_progress,
                id=id,
                sharer=request.sharer,
            )

        try:
            result = await self._in_rounds(send, method, params, request.id, until)
        except ErrorAnswer as error:
            raise error_for_2025(method, error) from error
        return self.result(method, result)

    def _stamped(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the session's capabilities, where the link's own would promise what 2025 does not have."""
        ours = self._link.introduction.ours.capabilities
        if TASKS not in members(ours.get("extensions")):
            return params
        return {**params, "_meta": {**members(params.get("_meta")), CLIENT_CAPABILITIES: without_tasks(ours)}}

    def result(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        """A result of the server as the session gets it."""
        if method == "tools/list":
            self._learn(result)
        return result_for_2025(method, result, self._link.name)

    def _set_level(self, level: object) -> dict[str, Any]:
        if level not in LEVELS:
            what = f"level is one of {', '.join(LEVELS)}"
            raise ErrorAnswer(what, message=what, code=INVALID_PARAMS, server=self._link.name)
        self._link.log_level = str(level)  # each request says it there
        return {}

    async def _subscribe(self, method: str, uri: object) -> dict[str, Any]:
        if not isinstance(uri, str):
            what = f"{method} needs a URI"
            raise ErrorAnswer(what, message=what, code=INVALID_PARAMS, server=self._link.name)
        await (self.changes.subscribe(uri) if method == "resources/subscribe" else self.changes.unsubscribe(uri))
        return {}

    async def _in_rounds(
        self, send: Send, method: str, params: Mapping[str, Any], id: str | int | None, until: float | None
    ) -> dict[str, Any]:
        """Send a request: with its parameters in headers where the tool wants that, and again with what the session
        answers for as long as the server wants input."""
        listed, asked, pause = False, params, STATE_SECONDS[0]
        for _ in range(ROUNDS + 1):
            try:
                result = await send(asked, id)
            except ErrorAnswer as error:
                if listed or (error.code, method) != (HEADER_MISMATCH, "tools/call"):
                    raise
                listed = True  # the tool wants parameters in headers, and we did not know, or knew it wrong
                await self._list_tools(until)
                continue
            if result.get("resultType") != "input_required":
                return result
            answers = await self._in_time(self._answers(method, result), method, until)
            if "inputResponses" not in answers:  # the server only wants to be asked again
                await self._in_time(asyncio.sleep(pause), method, until)
                pause = min(2 * pause, STATE_SECONDS[1])
            id, asked = None, {**params, **answers}
        raise LimitReached(
            f"{method}: {self._link.name!r} asked for input {ROUNDS} times in a row",
            limit=ROUNDS,
            server=self._link.name,
            phase="call",
        )

    async def _in_time(self, work: Awaitable[T], method: str, until: float | None) -> T:
        try:
            async with asyncio.timeout_at(until):
                return await work
        except TimeoutError as error:
            raise AnswerTimeout(
                f"{method}: {self._link.name!r} asked for input, and it was not given within the call's timeout",
                server=self._link.name,
                phase="call",
                remedy="the call was not finished; raise the request's timeout",
            ) from error

    async def _answers(self, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """What the session answers to the questions in a result, as parameters of the next try."""
        state, questions = result.get("requestState"), members(result.get("inputRequests"))
        more: dict[str, Any] = {"requestState": state} if isinstance(state, str) else {}
        if not questions:
            return more
        if len(questions) > QUESTIONS:
            raise LimitReached(
                f"{method}: {self._link.name!r} asked {len(questions)} questions at once",
                limit=QUESTIONS,
                server=self._link.name,
                phase="call",
            )
        tasks = {key: asyncio.ensure_future(self._ask(members(each))) for key, each in questions.items()}
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if task.cancelled():
                    raise ErrorAnswer("cancelled", message="the question was cancelled", code=INTERNAL_ERROR)
                if (error := task.exception()) is not None:
                    raise error
            return {**more, "inputResponses": {key: task.result() for key, task in tasks.items()}}
        finally:
            late = [task for task in tasks.values() if task.cancel()]
            if late:
                await asyncio.wait(late, timeout=CANCEL_SECONDS)

    async def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self.on_question is None:
            raise ErrorAnswer("no session", message="nobody answers requests", code=METHOD_NOT_FOUND)
        method, id = str(question.get("method")), f"input-{next(_questions)}"
        params = question.get("params")
        try:
            return await self.on_question(
                method, question_for_2025(method, members(params), id) if params else None, id
            )
        except HoldfastError:
            raise
        except Exception as error:  # as the answer to a request, it would be no more
            raise ErrorAnswer(
                f"the handler of {method!r:.80} failed: {error!r:.200}", message="Internal error", code=INTERNAL_ERROR
            ) from error

    async def _list_tools(self, until: float | None) -> None:
        cursor: str | None = None
        for _ in range(PAGES):
            result = await self._link.request(
                "tools/list", None if cursor is None else {"cursor": cursor}, timeout=_left(until)
            )
            self._learn(result)
            following = result.get("nextCursor")
            if not isinstance(following, str) or following == cursor:
                return
            cursor = following

    def notification(self, method: str, params: Params) -> tuple[str, Params] | None:
        """A notification of the server as the session gets it; None if 2025 does not have it."""
        if method in _ONLY_2026:
            return None
        return method, params if params is None else without_subscription(params)


OF_2025_SESSIONS = frozenset({"notifications/roots/list_changed", "notifications/progress"})
"""Notifications of clients that 2026 does not have."""

_ONLY_2026 = frozenset({ACKNOWLEDGED, "notifications/cancelled"})
"""`cancelled` names a listen there: the server has no requests of its own to take back."""


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - asyncio.get_running_loop().time())
