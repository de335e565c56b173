"""Typed calls to a server over the run's link, with the SDK's result types. One request per call.

Here arguments are checked, pages collected and results parsed. There is one hidden request: if a tool requires
parameters in headers, the tools are listed once and the call is repeated.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import mcp_types as types
from pydantic import BaseModel, ValidationError

from holdfast.client.callbacks import check_async, failed_callback
from holdfast.client.calls.input_rounds import request_with_input
from holdfast.client.calls.leased import leased, link_at_hand, run_of
from holdfast.client.calls.listed_tools import ListedTools, check_result, param_headers
from holdfast.client.declaration import Reuse, ServerDeclaration
from holdfast.core.eras import HEADER_MISMATCH, Era
from holdfast.core.models import check_seconds
from holdfast.errors import BadAnswer, ErrorAnswer, LimitReached, UsageError
from holdfast.links.calls.handlers import OnProgress
from holdfast.links.calls.watch import Watch
from holdfast.links.link import Link

PAGES = 1_000  # of one listing: a correct server has fewer

M = TypeVar("M", bound=BaseModel)


def _parsed(server: ServerDeclaration, method: str, model: type[M], result: dict[str, Any]) -> M:
    try:
        return model.model_validate(result)
    except ValidationError as error:
        raise BadAnswer(
            f"{method}: {server.name!r} sent an answer that is not a {model.__name__}: {error}"[:500],
            server=server.name,
            phase="call",
            remedy="this is a fault of the server; the call may have been executed",
        ) from error


async def call_tool(
    server: ServerDeclaration,
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
            f"the arguments of {name!r:.80} must be a mapping, not a {type(arguments).__name__}",
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
    """Does nothing: requesting progress is enough to extend a call's `silence`."""


def _checked_meta(server: ServerDeclaration, name: str, meta: object) -> dict[str, Any]:
    if not isinstance(meta, Mapping):
        raise UsageError(
            f"the meta of {name!r:.80} must be a mapping, not a {type(meta).__name__}",
            server=server.name,
            remedy="give a dict of names to values, e.g. {'example.com/trace': …}",
        )
    known = cast("Mapping[str, Any]", meta)
    if "progressToken" in known:
        raise UsageError(
            f"the meta of {name!r:.80} has a progressToken, which is set by Holdfast",
            server=server.name,
            remedy="give on_progress= to get the progress",
        )
    return dict(known)


async def _call_tool(
    server: ServerDeclaration,
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
    tool = ListedTools.for_link(link).get(name)
    safe = (
        idempotent if idempotent is not None else ListedTools.for_link(link).may_repeat(server, link, name, definition)
    )
    if safe and idempotent is None and link.handshake is None:  # the handshake tells which version will be called
        began = time.monotonic()
        await link.open(timeout=seconds)
        seconds = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
        safe = ListedTools.for_link(link).may_repeat(server, link, name, definition)
    listed = False
    while True:
        extra = headers
        if mirrored := param_headers(link, tool or definition, params["arguments"]):
            extra = {**mirrored, **(headers or {})}
        try:
            result = await request_with_input(
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
            # The tool requires parameters in headers, and the known listing does not say which: list once and repeat.
            await _list_tools(server, link)
            tool, listed = ListedTools.for_link(link).get(name), True
    return check_result(server, tool, _parsed(server, "tools/call", types.CallToolResult, result))


async def _pages(server: ServerDeclaration, link: Link, method: str, field: str) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES):
        params: dict[str, Any] | None = {"cursor": cursor} if cursor is not None else None
        result = await request_with_input(server, link, method, params, timeout=server.timeout, silence=server.silence)
        part = result.get(field)
        found.extend(cast("list[Any]", part) if isinstance(part, list) else ())
        following = result.get("nextCursor")
        if not isinstance(following, str) or following == cursor:
            return found
        cursor = following
    raise LimitReached(f"{method}: {server.name!r} has over {PAGES} pages", limit=PAGES, server=server.name)


async def _list_tools(server: ServerDeclaration, link: Link) -> list[types.Tool]:
    tools = [
        _parsed(server, "tools/list", types.Tool, each) for each in await _pages(server, link, "tools/list", "tools")
    ]
    ListedTools.for_link(link).learn(server, link, tools)
    return tools


async def list_tools(server: ServerDeclaration) -> list[types.Tool]:
    async with leased(server, None, server.timeout) as link:
        return await _list_tools(server, link)


async def _listed(server: ServerDeclaration, method: str, field: str, model: type[M]) -> list[M]:
    async with leased(server, None, server.timeout) as link:
        return [_parsed(server, method, model, each) for each in await _pages(server, link, method, field)]


async def list_resources(server: ServerDeclaration) -> list[types.Resource]:
    return await _listed(server, "resources/list", "resources", types.Resource)


async def list_resource_templates(server: ServerDeclaration) -> list[types.ResourceTemplate]:
    return await _listed(server, "resources/templates/list", "resourceTemplates", types.ResourceTemplate)


async def list_prompts(server: ServerDeclaration) -> list[types.Prompt]:
    return await _listed(server, "prompts/list", "prompts", types.Prompt)


async def read_resource(server: ServerDeclaration, uri: str, timeout: float | None) -> types.ReadResourceResult:
    async with leased(server, None, timeout or server.timeout) as link:
        result = await request_with_input(
            server, link, "resources/read", {"uri": uri}, timeout=timeout or server.timeout, silence=server.silence
        )
    return _parsed(server, "resources/read", types.ReadResourceResult, result)


async def get_prompt(
    server: ServerDeclaration, name: str, arguments: Mapping[str, str] | None, timeout: float | None
) -> types.GetPromptResult:
    params: dict[str, Any] = {"name": name}
    if arguments:
        params["arguments"] = dict(arguments)
    async with leased(server, None, timeout or server.timeout) as link:
        result = await request_with_input(
            server, link, "prompts/get", params, timeout=timeout or server.timeout, silence=server.silence
        )
    return _parsed(server, "prompts/get", types.GetPromptResult, result)


async def complete(
    server: ServerDeclaration, ref: types.PromptReference | types.ResourceTemplateReference, argument: str, value: str
) -> types.CompleteResult:
    params = {
        "ref": ref.model_dump(by_alias=True, mode="json", exclude_none=True),
        "argument": {"name": argument, "value": value},
    }
    async with leased(server, None, server.timeout) as link:
        result = await request_with_input(
            server, link, "completion/complete", params, timeout=server.timeout, silence=server.silence
        )
    return _parsed(server, "completion/complete", types.CompleteResult, result)


async def ping(server: ServerDeclaration, timeout: float | None) -> None:
    async with leased(server, None, timeout) as link:
        await link.open(timeout=timeout)
        method = "server/discover" if link.era is Era.Y2026 else "ping"
        await request_with_input(server, link, method, None, timeout=timeout)


async def watch(
    server: ServerDeclaration, *, tools: bool, prompts: bool, resources: bool, uris: Sequence[str]
) -> Watch:
    run = run_of(server)
    if run is None:
        raise UsageError(
            f"{server.name!r} can be watched only inside a run",
            server=server.name,
            remedy="watch inside `async with holdfast.run():`",
        )
    link = await run.link(server, timeout=server.timeout)
    return await link.watch(tools=tools, prompts=prompts, resources=resources, uris=uris)
