"""Requests with input rounds: a 2026 server may ask for input in its answer, and the request is repeated with the
input.

It limits the number of rounds and their total time, and chooses the callbacks that answer.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from holdfast.client.callbacks import INVALID_PARAMS, METHOD_NOT_FOUND
from holdfast.client.calls.leased import call_handlers_of, callbacks_of, nested_callbacks, run_of
from holdfast.client.declaration import ServerDeclaration
from holdfast.core.eras import CLIENT_CAPABILITIES, LOG_LEVEL
from holdfast.errors import AnswerTimeout, BadAnswer, ErrorAnswer, LimitReached
from holdfast.links.calls.handlers import OnProgress
from holdfast.links.link import Link

ROUNDS = 10  # of input for one call: as many as the SDK's client allows


async def request_with_input(
    server: ServerDeclaration,
    link: Link,
    method: str,
    params: dict[str, Any] | None,
    *,
    safe: bool | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    silence: float | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Send a request, and repeat it with answers as long as the server asks for input."""
    end = None if timeout is None else time.monotonic() + timeout
    nested = nested_callbacks(server, link)
    handlers = None if nested is None else call_handlers_of(server, link, nested)
    sharer = run_of(server) if link.losses.sharers else None
    if nested is not None:  # in 2026 each call declares what the server may request, and its log level
        meta: dict[str, Any] = {CLIENT_CAPABILITIES: nested.capabilities}
        if nested.wanted_level is not None:
            meta[LOG_LEVEL] = nested.wanted_level
        given = params or {}
        params = {**given, "_meta": {**meta, **cast("dict[str, Any]", given.get("_meta") or {})}}
    for _ in range(ROUNDS + 1):
        left = None if end is None else max(0.0, end - time.monotonic())
        result = await link.request(
            method,
            params,
            safe=safe,
            headers=headers,
            timeout=left,
            silence=silence,
            on_progress=on_progress,
            handlers=handlers,
            sharer=sharer,
        )
        if result.get("resultType") != "input_required":
            return result
        params = {key: value for key, value in (params or {}).items() if key not in ("inputResponses", "requestState")}
        questions = result.get("inputRequests")
        if isinstance(questions, dict) and questions:
            answers: dict[str, Any] = {}
            for key, question in cast("dict[str, Any]", questions).items():
                answers[key] = await _answer_in_time(server, method, question, end)
            params["inputResponses"] = answers
        if isinstance(result.get("requestState"), str):
            params["requestState"] = result["requestState"]
    raise LimitReached(
        f"{method}: {server.name!r} asked for input {ROUNDS} times in a row",
        limit=ROUNDS,
        server=server.name,
        phase="call",
        remedy="the server may expect other answers; see its documentation",
    )


async def _answer_in_time(server: ServerDeclaration, method: str, given: Any, end: float | None) -> dict[str, Any]:
    left = None if end is None else max(0.0, end - time.monotonic())
    try:
        async with asyncio.timeout(left):
            return await _answer(server, method, given)
    except TimeoutError as error:
        raise AnswerTimeout(
            f"{method}: {server.name!r} asked for input, and it was not given within the call's timeout",
            server=server.name,
            phase="call",
            remedy="the call was not finished; raise timeout= to leave time for the answer",
        ) from error


async def _answer(server: ServerDeclaration, method: str, given: Any) -> dict[str, Any]:
    question = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    params = question.get("params")
    try:
        return await callbacks_of(server).answer(
            str(question.get("method")),
            cast("dict[str, Any]", params) if isinstance(params, dict) else None,
            server=server.name,
        )
    except ErrorAnswer as error:
        if error.code == INVALID_PARAMS and isinstance(error.__cause__, ValidationError):
            raise BadAnswer(
                f"{method}: {server.name!r} asked for input in a form that can't be read: {error.what}"[:400],
                server=server.name,
                phase="call",
                remedy="this is a fault of the server; the call was not finished",
            ) from error.__cause__
        if error.code != METHOD_NOT_FOUND:  # the callback's own refusal
            error.server, error.phase = server.name, "call"
            raise
        raise ErrorAnswer(
            f"{method}: {server.name!r} needs input that no callback gives: {error.message}",
            message=error.message,
            code=error.code or 0,
            server=server.name,
            phase="call",
            remedy="give Callbacks(elicit=…, sample=…, roots=…) to the run or the server",
        ) from error
