"""Typed calls: what an agent asks of a server, with the SDK's result types, over the run's link. One request a call.

It owns pages, input rounds (2026's questions inside an answer), parameter headers, and what is known of the tools. It
refuses hidden requests: what a listing would tell is used only if somebody listed.
"""

import asyncio
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import anyio
import anyio.abc
import mcp_types as types
from mcp import ClientSession
from mcp.shared.dispatcher import OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map
from pydantic import BaseModel, ValidationError

from holdfast.client.callbacks import INVALID_PARAMS, METHOD_NOT_FOUND, check_async, failed_callback
from holdfast.client.calls import hints
from holdfast.client.calls.hints import Hints
from holdfast.client.calls.leased import callbacks_of, ears_of, leased, link_at_hand, nested_callbacks, run_of
from holdfast.client.runs.run import pool
from holdfast.client.runs.scope import current_run
from holdfast.client.server import Reuse, Server
from holdfast.core.eras import CLIENT_CAPABILITIES, HEADER_MISMATCH, LOG_LEVEL, Era
from holdfast.core.models import check_seconds
from holdfast.errors import AnswerTimeout, BadAnswer, ErrorAnswer, LimitReached, UsageError
from holdfast.links.calls.inbound import OnProgress
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link
from holdfast.links.sdk import LinkDispatcher

ROUNDS = 10  # of input for one call: as many as the SDK's client allows
PAGES = 1_000  # of one listing: a server whose cursor never ends is at fault

M = TypeVar("M", bound=BaseModel)


class Known:
    """What a link's server told of its tools, for as long as its session stands."""

    __slots__ = ("generation", "hints", "tools")

    def __init__(self) -> None:
        self.generation = 0
        self.tools: dict[str, types.Tool] = {}
        self.hints: Hints | None = None


_known: "weakref.WeakKeyDictionary[Link, Known]" = weakref.WeakKeyDictionary()
_sessions: dict[int, ClientSession] = {}
"""By the id of their link, for as long as that is open: a session holds its link."""


def _known_of(link: Link) -> Known:
    known = _known.get(link)
    if known is None:
        known = _known[link] = Known()
    if known.generation != link.generation:
        known.generation, known.tools, known.hints = link.generation, {}, None
    return known


def _version(link: Link) -> object:
    """What the server calls itself; None before the handshake."""
    return None if link.handshake is None else (link.handshake.server_info or {})


def _may_repeat(server: Server, link: Link, name: str, definition: types.Tool | None) -> bool:
    """By the listing of this session, else by an earlier one, else by a saved definition."""
    known = _known_of(link).hints
    if known is None or known.revoked:
        known = hints.of(server.plain, link.principal, _version(link), pool.clock.monotonic())
    told = None if known is None else known.harmless.get(name)
    return _is_harmless(definition) if told is None else told


def _parsed(server: Server, method: str, model: type[M], result: dict[str, Any]) -> M:
    try:
        return model.model_validate(result)
    except ValidationError as error:
        raise BadAnswer(
            f"{method}: {server.name!r} answered what is no {model.__name__}: {error}"[:500],
            server=server.name,
            phase="call",
            remedy="the server is at fault; it may have been executed",
        ) from error


async def call_tool(
    server: Server,
    name: str,
    arguments: Mapping[str, Any] | None,
    *,
    idempotent: bool | None,
    timeout: float | None,
    silence: float | None,
    on_progress: OnProgress | None,
    meta: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None,
    reuse: Reuse | None,
    definition: types.Tool | None,
) -> types.CallToolResult:
    if arguments is not None and not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"the arguments of {name!r:.80} are a {type(arguments).__name__}, not a mapping",
            server=server.name,
            remedy="give a dict of argument names to values",
        )
    params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
    if meta is not None:
        params["_meta"] = _checked_meta(server, name, meta)
    if not (definition is None or isinstance(definition, types.Tool)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"definition= of the call of {name!r:.80} is a {type(definition).__name__}",
            server=server.name,
            remedy="give the tool as it was listed, or mcp_types.Tool.model_validate(saved)",
        )
    for what, span in (("timeout", timeout), ("silence", silence)):
        if span is not None:
            check_seconds(span, f"{what}= of the call of {name!r:.80}", zero=True)
    seconds = timeout if timeout is not None else server.timeout
    quiet = silence if silence is not None else server.silence
    if on_progress is not None:
        check_async(on_progress, f"on_progress= of the call of {name!r:.80}", "progress", "total", "message")
    elif quiet is not None:
        on_progress = _sign_of_life
    wanted = reuse or server.tool_reuse.get(name)
    link = link_at_hand(server, wanted)
    if link is not None:
        return await _call_tool(
            server, link, name, params, idempotent, seconds, quiet, on_progress, headers, definition
        )
    end = None if seconds is None else time.monotonic() + seconds
    async with leased(server, wanted, seconds) as link:
        left = None if end is None else max(0.0, end - time.monotonic())
        return await _call_tool(server, link, name, params, idempotent, left, quiet, on_progress, headers, definition)


async def _sign_of_life(done: float, total: float | None, message: str | None) -> None:
    """Asks for progress, whose arrival alone extends a call's `silence`."""


def _checked_meta(server: Server, name: str, meta: object) -> dict[str, Any]:
    if not isinstance(meta, Mapping):
        raise UsageError(
            f"the meta of {name!r:.80} is a {type(meta).__name__}, not a mapping",
            server=server.name,
            remedy="give a dict of names to values, e.g. {'example.com/trace': …}",
        )
    known = cast("Mapping[str, Any]", meta)
    if "progressToken" in known:
        raise UsageError(
            f"the meta of {name!r:.80} has a progressToken, which is set by Holdfast",
            server=server.name,
            remedy="give on_progress= to hear of progress",
        )
    return dict(known)


async def _call_tool(
    server: Server,
    link: Link,
    name: str,
    params: dict[str, Any],
    idempotent: bool | None,
    seconds: float | None,
    silence: float | None,
    on_progress: OnProgress | None,
    headers: Mapping[str, str] | None,
    definition: types.Tool | None,
) -> types.CallToolResult:
    tool = _known_of(link).tools.get(name)
    safe = idempotent if idempotent is not None else _may_repeat(server, link, name, definition)
    listed = False
    while True:
        extra = headers
        if mirrored := _param_headers(link, tool or definition, params["arguments"]):
            extra = {**mirrored, **(headers or {})}
        try:
            result = await _rounds(
                server,
                link,
                "tools/call",
                params,
                safe=safe,
                headers=extra,
                timeout=seconds,
                silence=silence,
                on_progress=on_progress,
            )
            break
        except ErrorAnswer as error:
            if (ours := failed_callback(error, server.name)) is not None:
                raise ours from error
            if error.code != HEADER_MISMATCH or listed:
                raise
            # The tool wants parameters in headers, and we did not know, or knew it wrong: list once and repeat.
            await _list_tools(server, link)
            tool, listed = _known_of(link).tools.get(name), True
    return _checked(server, tool, _parsed(server, "tools/call", types.CallToolResult, result))


def _is_harmless(tool: types.Tool | None) -> bool:
    """May a call of it be repeated, by its own annotations?"""
    told = tool.annotations if tool is not None else None
    return told is not None and (told.read_only_hint is True or told.idempotent_hint is True)


def _param_headers(link: Link, tool: types.Tool | None, arguments: Mapping[str, Any]) -> dict[str, str]:
    if tool is None or link.era is not Era.Y2026:
        return {}
    return mcp_param_headers(x_mcp_header_map(tool.input_schema), arguments)


def _checked(server: Server, tool: types.Tool | None, result: types.CallToolResult) -> types.CallToolResult:
    """A result as its tool's output schema has it, if that is known."""
    if tool is None or tool.output_schema is None or result.is_error or result.structured_content is None:
        return result
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:
        # An empty registry: a schema is a server's data, and must not make us fetch what it names.
        nothing = cast("Any", Registry)()
        kind: Any = validator_for(tool.output_schema)
        kind.check_schema(tool.output_schema)
        kind(tool.output_schema, registry=nothing).validate(result.structured_content)
    except Exception as error:  # a mismatch, a schema that is none, a reference that leads nowhere
        why = getattr(error, "message", None) or str(error)
        raise BadAnswer(
            f"tools/call: {server.name!r} {tool.name!r}: the result does not fit its schema: {why}"[:400],
            server=server.name,
            phase="call",
            remedy="the server is at fault; the tool was executed",
        ) from error
    return result


async def _rounds(
    server: Server,
    link: Link,
    method: str,
    params: dict[str, Any],
    *,
    safe: bool | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    silence: float | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """A request, and again with answers for as long as the server asks for input inside its answer."""
    end = None if timeout is None else time.monotonic() + timeout
    nested = nested_callbacks(server, link)
    handlers = None if nested is None else ears_of(server, link, nested)
    sharer = run_of(server) if link.sharers else None
    if nested is not None:  # a 2026 call says itself what the server may ask, and which logs it wants
        meta: dict[str, Any] = {CLIENT_CAPABILITIES: nested.capabilities}
        if nested.asked_level is not None:
            meta[LOG_LEVEL] = nested.asked_level
        params = {**params, "_meta": {**meta, **cast("dict[str, Any]", params.get("_meta") or {})}}
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
        params = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
        asked = result.get("inputRequests")
        if isinstance(asked, dict) and asked:
            answers: dict[str, Any] = {}
            for key, question in cast("dict[str, Any]", asked).items():
                answers[key] = await _answer_in_time(server, method, question, end)
            params["inputResponses"] = answers
        if isinstance(result.get("requestState"), str):
            params["requestState"] = result["requestState"]
    raise LimitReached(
        f"{method}: {server.name!r} asked for input {ROUNDS} times in a row",
        limit=ROUNDS,
        server=server.name,
        phase="call",
        remedy="the server asks on and on; see its documentation",
    )


async def _answer_in_time(server: Server, method: str, asked: Any, end: float | None) -> dict[str, Any]:
    left = None if end is None else max(0.0, end - time.monotonic())
    try:
        async with asyncio.timeout(left):
            return await _answer(server, method, asked)
    except TimeoutError as error:
        raise AnswerTimeout(
            f"{method}: {server.name!r} asked for input, and it was not given within the call's timeout",
            server=server.name,
            phase="call",
            remedy="the call was not finished; raise timeout= to leave time for the answer",
        ) from error


async def _answer(server: Server, method: str, asked: Any) -> dict[str, Any]:
    question = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
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
                f"{method}: {server.name!r} asked what can't be read: {error.what}"[:400],
                server=server.name,
                phase="call",
                remedy="the server is at fault; the call was not finished",
            ) from error.__cause__
        if error.code != METHOD_NOT_FOUND:  # the callback's own refusal
            error.server, error.phase = server.name, "call"
            raise
        raise ErrorAnswer(
            f"{method}: {server.name!r} needs input that nobody gives: {error.message}",
            message=error.message,
            code=error.code or 0,
            server=server.name,
            phase="call",
            remedy="give Callbacks(elicit=…, sample=…, roots=…) to the run or the server",
        ) from error


async def _pages(server: Server, link: Link, method: str, field: str) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES):
        params = {"cursor": cursor} if cursor is not None else None
        result = await link.request(method, params, timeout=server.timeout, silence=server.silence)
        part = result.get(field)
        found.extend(cast("list[Any]", part) if isinstance(part, list) else ())
        following = result.get("nextCursor")
        if not isinstance(following, str) or following == cursor:
            return found
        cursor = following
    raise LimitReached(f"{method}: {server.name!r} has over {PAGES} pages", limit=PAGES, server=server.name)


async def _list_tools(server: Server, link: Link) -> list[types.Tool]:
    tools = [
        _parsed(server, "tools/list", types.Tool, each) for each in await _pages(server, link, "tools/list", "tools")
    ]
    known = _known_of(link)
    known.tools = {tool.name: tool for tool in tools}
    listed = ((tool.name, _is_harmless(tool)) for tool in tools)
    known.hints = hints.learn(server.plain, link.principal, _version(link), listed, pool.clock.monotonic())
    return tools


async def list_tools(server: Server) -> list[types.Tool]:
    async with leased(server, None, server.timeout) as link:
        return await _list_tools(server, link)


async def _listed(server: Server, method: str, field: str, model: type[M]) -> list[M]:
    async with leased(server, None, server.timeout) as link:
        return [_parsed(server, method, model, each) for each in await _pages(server, link, method, field)]


async def list_resources(server: Server) -> list[types.Resource]:
    return await _listed(server, "resources/list", "resources", types.Resource)


async def list_resource_templates(server: Server) -> list[types.ResourceTemplate]:
    return await _listed(server, "resources/templates/list", "resourceTemplates", types.ResourceTemplate)


async def list_prompts(server: Server) -> list[types.Prompt]:
    return await _listed(server, "prompts/list", "prompts", types.Prompt)


async def read_resource(server: Server, uri: str, timeout: float | None) -> types.ReadResourceResult:
    async with leased(server, None, timeout or server.timeout) as link:
        result = await _rounds(
            server, link, "resources/read", {"uri": uri}, timeout=timeout or server.timeout, silence=server.silence
        )
    return _parsed(server, "resources/read", types.ReadResourceResult, result)


async def get_prompt(
    server: Server, name: str, arguments: Mapping[str, str] | None, timeout: float | None
) -> types.GetPromptResult:
    params: dict[str, Any] = {"name": name}
    if arguments:
        params["arguments"] = dict(arguments)
    async with leased(server, None, timeout or server.timeout) as link:
        result = await _rounds(
            server, link, "prompts/get", params, timeout=timeout or server.timeout, silence=server.silence
        )
    return _parsed(server, "prompts/get", types.GetPromptResult, result)


async def complete(
    server: Server, ref: types.PromptReference | types.ResourceTemplateReference, argument: str, value: str
) -> types.CompleteResult:
    params = {
        "ref": ref.model_dump(by_alias=True, mode="json", exclude_none=True),
        "argument": {"name": argument, "value": value},
    }
    async with leased(server, None, server.timeout) as link:
        result = await link.request("completion/complete", params, timeout=server.timeout, silence=server.silence)
    return _parsed(server, "completion/complete", types.CompleteResult, result)


async def ping(server: Server, timeout: float | None) -> None:
    async with leased(server, None, timeout) as link:
        await link.open(timeout=timeout)
        await link.request("server/discover" if link.era is Era.Y2026 else "ping", timeout=timeout)


async def watch(server: Server, *, tools: bool, prompts: bool, resources: bool, uris: Sequence[str]) -> Watch:
    run = run_of(server)
    if run is None:
        raise UsageError(
            f"{server.name!r} is watched outside a run", remedy="watch inside `async with holdfast.run():`"
        )
    return await (await run.link(server)).watch(tools=tools, prompts=prompts, resources=resources, uris=uris)


class _Quiet(LinkDispatcher):
    """A dispatcher that leaves the server's questions to the run's callbacks."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        await anyio.sleep_forever()


async def session(server: Server) -> ClientSession:
    """Opened once per link, in a task of the link's own, and ended with it."""
    run = run_of(server)
    if run is None:
        raise UsageError(
            f"the session of {server.name!r} was asked for outside a run",
            server=server.name,
            remedy="ask inside `async with holdfast.run():`",
        )
    link = await run.link(server)
    found = _sessions.get(id(link))
    if found is not None:
        return found
    await link.open()
    ready: anyio.Event = anyio.Event()
    opened: list[ClientSession] = []

    async def hold() -> None:
        try:
            async with ClientSession(dispatcher=_Quiet(link, sharer=current_run)) as live:
                await (live.initialize() if link.era is Era.Y2025 else live.discover())
                opened.append(_sessions.setdefault(id(link), live))
                ready.set()
                await anyio.sleep_forever()
        finally:
            _sessions.pop(id(link), None)
            ready.set()

    link.background.start(hold(), f"session {server.name}")
    await ready.wait()
    if not opened:
        raise UsageError(f"the session of {server.name!r} could not be opened", server=server.name)
    return opened[0]
