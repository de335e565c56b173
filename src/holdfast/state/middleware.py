"""Middleware for both frameworks: begins a request's scope and, if asked, loads before a call and saves after it.

It owns the order of things around a call: the session that the call takes is loaded when it is taken, changed in
memory, and written once, with the call's result if the call has an idempotency key. It refuses to save after an error,
to touch a store for a call without a session, and to lose either of two writes: the later one is told `Conflict`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, TextContent
from pydantic import BaseModel

from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, HoldfastError, UsageError
from holdfast.state.identity import Caller
from holdfast.state.injection import Y2026, of_sdk
from holdfast.state.session import digest, shown
from holdfast.state.work import SCOPE, WORK, Scope, Work

if TYPE_CHECKING:
    from holdfast.state.sessions import Sessions

IDEMPOTENCY_KEY = "dev.holdfast/idempotency-key"
_CALLS = ("tools/call", "resources/read", "prompts/get")
Next = Callable[[Any], Awaitable[Any]]
Run = Callable[[], Awaitable[Any]]


class StateMiddleware:
    """For `FastMCP(middleware=[…])`, `server.add_middleware(…)` and `MCPServer(middleware=[…])` alike."""

    def __init__(self, sessions: "Sessions[Any] | None" = None, *, save: bool = True) -> None:
        self._sessions = sessions
        self._save = save and sessions is not None

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        is_sdk = isinstance(ctx, ServerRequestContext)
        request = cast("ServerRequestContext[Any, Any]", ctx) if is_sdk else _request_of()
        outer = SCOPE.get()
        inner = outer.nested() if outer is not None and outer.request is request else Scope(request, {})
        token = SCOPE.set(inner)
        try:
            work = WORK.get()
            joined = work is not None and work.owner is self._sessions  # a nested call is saved with the outer one
            if not self._save or joined or ctx.method not in _CALLS:
                return await call_next(ctx)
            around = _sdk if is_sdk else _fastmcp
            return await around(cast("Sessions[Any]", self._sessions), ctx, request, lambda: call_next(ctx))
        finally:
            SCOPE.reset(token)


class GuardMiddleware:
    """Asks a function before each tool call, on either framework; what it raises is the call's answer."""

    def __init__(self, guard: Callable[[str, Caller, type[Exception]], Awaitable[None]]) -> None:
        self._guard = guard

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        if not isinstance(ctx, ServerRequestContext):
            caller, name, also = _fastmcp_call(ctx, _request_of())
            await self._guard(name, caller, also)
            return await call_next(ctx)
        request = cast("ServerRequestContext[Any, Any]", ctx)
        caller, also = of_sdk(request, {})
        try:
            await self._guard(str(members(request.params).get("name")), caller, also)
        except HoldfastError as error:
            return _refused(request, error)
        return await call_next(ctx)


async def _sdk(sessions: "Sessions[Any]", context: Any, request: Any, run: Run) -> Any:
    """Results of the SDK are what goes over the wire."""
    caller, also = of_sdk(request, {})
    params = members(request.params)
    extra = {"resultType": "complete"} if request.protocol_version >= Y2026 else {}
    call = _Call(sessions, caller, str(params.get("name") or params.get("uri")), also, request.method)
    try:
        return await call.handle(run, _wire, lambda kept: {**kept, **extra})
    except HoldfastError as error:
        if request.method != "tools/call":
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        return _refused(request, error)


def _refused(request: ServerRequestContext[Any, Any], error: HoldfastError) -> dict[str, Any]:
    """A tool's answer that is an error, as it goes over the wire."""
    refusal = _wire(CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True))
    return {**refusal, "resultType": "complete"} if request.protocol_version >= Y2026 else refusal


def _fastmcp_call(context: Any, request: ServerRequestContext[Any, Any] | None) -> tuple[Caller, str, type[Exception]]:
    """Who calls what under a FastMCP middleware, and what its errors are."""
    from fastmcp.exceptions import ToolError

    message, caller = context.message, Caller()
    if request is not None:
        caller, _ = of_sdk(request, {})
    caller = replace(caller, arguments=members(getattr(message, "arguments", None)))
    return caller, str(getattr(message, "name", None) or getattr(message, "uri", "")), ToolError


async def _fastmcp(sessions: "Sessions[Any]", context: Any, request: Any, run: Run) -> Any:
    """Results of FastMCP are its own objects."""
    from fastmcp.tools.base import ToolResult

    caller, name, also = _fastmcp_call(context, request)

    def plain(result: ToolResult) -> dict[str, Any]:
        whole = _wire(CallToolResult(content=result.content, structured_content=result.structured_content))
        return {**whole, "_meta": result.meta} if result.meta else whole

    def rebuild(kept: dict[str, Any]) -> ToolResult:
        content = CallToolResult.model_validate({"content": kept.get("content", [])}).content
        return ToolResult(content=content, structured_content=kept.get("structuredContent"), meta=kept.get("_meta"))

    return await _Call(sessions, caller, name, also, context.method).handle(run, plain, rebuild)


class _Call:
    """One call under the middleware."""

    def __init__(
        self, sessions: "Sessions[Any]", caller: Caller, name: str, also: type[Exception], method: str
    ) -> None:
        self.sessions = sessions
        self.caller = caller
        self.name = name
        self.also = also
        key = caller.meta.get(IDEMPOTENCY_KEY) or caller.arguments.get("idempotency_key")
        self.key = key if isinstance(key, str) and method == "tools/call" else None
        self.call = digest(name, dict(caller.arguments))
        self.work = Work(sessions)

    async def handle(
        self, run: Run, plain: Callable[[Any], dict[str, Any]], rebuild: Callable[[dict[str, Any]], Any]
    ) -> Any:
        kept = await self._repeated()
        if kept is not None:
            return rebuild(kept)
        work = self.work
        token = WORK.set(work)
        try:
            result = await run()
        finally:
            WORK.reset(token)
        if not work.taken or _failed(result):  # a call that fails leaves the state as before
            return result
        once: dict[str, JSON] | None = None
        if self.key is not None:
            whole = {name: value for name, value in plain(result).items() if name != "resultType"}
            once = {digest(self.key): {"call": self.call, "result": cast("JSON", whole)}}
        try:
            await work.save(self.name, once)
        except Conflict:
            kept = await self._repeated()  # the same call, made twice at once: the first one's answer counts
            if kept is None:
                raise
            return rebuild(kept)
        return result

    async def _repeated(self) -> dict[str, Any] | None:
        """What the same call answered before. A call without a key, or without a session, asks no store."""
        found = self.sessions.chain.find(self.caller, self.sessions.name)
        if self.key is None or found is None:
            return None
        session = self.work.loaded[found] = await self.sessions.for_call(self.caller, self.also)
        kept = session.kept_result(digest(self.key))
        if kept is None:
            return None
        if kept.get("call") != self.call:
            error = UsageError(
                f"the idempotency key {self.key!r:.80} was used for another call", remedy="use a new key for a new call"
            )
            raise shown(error, self.also)
        return members(kept.get("result"))


def _request_of() -> ServerRequestContext[Any, Any] | None:
    """The SDK's request under a FastMCP middleware context."""
    from fastmcp.server.dependencies import fastmcp_request_ctx

    bound = fastmcp_request_ctx.get()
    return bound._srctx if bound is not None else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _failed(result: Any) -> bool:
    if isinstance(result, dict):
        return members(cast("JSON", result)).get("isError") is True
    return getattr(result, "is_error", False) is True


def _wire(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(result)
