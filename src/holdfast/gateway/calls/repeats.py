"""Calls that a 2026 server wants again: with the headers of its tool as it is now, or with a 2025 client's answers."""

from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import HEADER_MISMATCH, Era
from holdfast.core.questions import has, required
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, LimitReached, QuestionRefused
from holdfast.gateway.backends.lists.catalogue import fetch_list
from holdfast.gateway.backends.lists.fetching import FETCH_SECONDS
from holdfast.gateway.calls.headers import param_headers
from holdfast.gateway.calls.outgoing_call import OutgoingCall

ROUNDS = 10  # of input that a 2026 server may ask of a 2025 client for one call


def was_refused_for_headers(call: OutgoingCall, error: ErrorAnswer) -> bool:
    """Nothing was executed: the tool wants other parameters in headers than was known."""
    is_2026 = call.backend_link.link.era is Era.Y2026
    return error.code == HEADER_MISMATCH and call.method == "tools/call" and is_2026


async def with_new_headers(
    call: OutgoingCall, params: Mapping[str, Any], headers: Mapping[str, str] | None, error: ErrorAnswer
) -> dict[str, Any]:
    """The call once more, after the tools were listed again; the same error if they want nothing else."""
    found = await fetch_list(call.backend_link.link, "tools", call.backend.catalogue, timeout=FETCH_SECONDS)
    tool = next((item for item in found.items if item.get("name") == params.get("name")), None)
    if tool is None:
        raise error
    kept = {name: value for name, value in (headers or {}).items() if not name.lower().startswith("mcp-param-")}
    return await call.send(params, {**kept, **param_headers(tool, params)})


async def with_answers(
    call: OutgoingCall, params: Mapping[str, Any], result: dict[str, Any], headers: Mapping[str, str] | None
) -> dict[str, Any]:
    """The call again for as long as its server asks inside its result: a 2025 client is asked on the call's
    stream."""
    server = call.backend.name
    for _ in range(ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        answers = {
            key: await _ask(call, members(question)) for key, question in members(result.get("inputRequests")).items()
        }
        again: dict[str, Any] = {**params, "inputResponses": answers} if answers else dict(params)
        if isinstance(result.get("requestState"), str):
            again["requestState"] = result["requestState"]
        result = await call.send(again, headers)
    if result.get("resultType") != "input_required":
        return result
    raise LimitReached(
        f"{call.method}: {server!r} asked for input {ROUNDS} times in a row", limit=ROUNDS, server=server
    )


async def _ask(call: OutgoingCall, question: Mapping[str, Any]) -> dict[str, Any]:
    context, server, method = call.context, call.backend.name, str(question.get("method"))
    params = members(question["params"]) if isinstance(question.get("params"), dict) else None
    session, needed = context.session, required(method, params)
    if session is None or needed is None or not has(context.client.capabilities, needed):
        raise QuestionRefused(
            f"{method} from {server!r} was refused: the client has not declared what it needs",
            server=server,
            phase="call",
        )
    return await session.questions.ask(method, params, context.reply_channel)
