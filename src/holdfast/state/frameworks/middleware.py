"""Middleware for both frameworks: begins a request's scope and, if asked, loads before a call and saves after it.

The session that a call takes is loaded when it is taken, changed in memory, and written once, with the call's result if
the call has an idempotency key. Nothing is saved after an error, and a call without a session costs no access to the
store. Of two calls that change the same session at once the later one gets `Conflict`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, InputRequiredResult, TextContent
from pydantic import BaseModel

from holdfast.core.naming import CALLED_AS, prefix_of
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, HoldfastError, NotFound, UsageError
from holdfast.state.calls.call_state import CALLS, CallState, call_state_of, holds_another
from holdfast.state.calls.idempotency import digest
from holdfast.state.calls.request import SCOPE, Scope
from holdfast.state.frameworks.injection import Y2026, sdk_identity
from holdfast.state.identity import Found, Identity
from holdfast.state.registry import SessionRegistry
from holdfast.state.session import Session
from holdfast.state.tool_errors import showing, shown

IDEMPOTENCY_KEY = "dev.holdfast/idempotency-key"
TURN_SECONDS = 60.0  # that a call waits for others on the same session
_CALLS = ("tools/call", "resources/read", "prompts/get")
Next = Callable[[Any], Awaitable[Any]]
Run = Callable[[], Awaitable[Any]]


class StateMiddleware:
    """For `FastMCP(middleware=[…])`, `server.add_middleware(…)` and `MCPServer(middleware=[…])` alike.

    It begins the request's scope; with `sessions` and `save=True` it also saves what a call changed in its session.
    """

    def __init__(self, sessions: SessionRegistry[Any] | None = None, *, save: bool = True) -> None:
        self._sessions = sessions
        self._save = save
        if save and sessions is not None:
            sessions.will_be_saved()

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        is_sdk = isinstance(ctx, ServerRequestContext)
        request = cast("ServerRequestContext[Any, Any]", ctx) if is_sdk else _fastmcp_request()
        outer, arguments, prefix = SCOPE.get(), _arguments(ctx, is_sdk), _prefix(ctx, request)
        if outer is not None and outer.request is request and request is not None:
            inner = outer.nested(arguments, prefix)
        else:
            inner = Scope(request, {}, arguments, prefix)
        token = SCOPE.set(inner)
        try:
            sessions = self._sessions
            if not self._save or sessions is None or ctx.method not in _CALLS:
                return await call_next(ctx)
            call = call_state_of(sessions.table)
            if call is not None and call.request is request:
                return await _joined(call, lambda: call_next(ctx))
            around = _sdk if is_sdk else _fastmcp
            return await around(sessions, ctx, request, lambda: call_next(ctx))
        finally:
            SCOPE.reset(token)


async def _joined(call: CallState, run: Run) -> Any:
    """A nested call is saved with the outer one; what it changed before it failed is not."""
    restore = call.snapshot()
    try:
        result = await run()
    except BaseException:
        restore()
        raise
    if _unfinished(result):
        restore()
    return result


class GuardMiddleware:
    """Calls a function before each tool call, on either framework; an error that it raises is the call's answer."""

    def __init__(self, guard: Callable[[str, Identity, type[Exception]], Awaitable[None]]) -> None:
        self._guard = guard

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        if not isinstance(ctx, ServerRequestContext):
            request = _fastmcp_request()
            caller, name, also = _fastmcp_call(ctx, request)
            scope = SCOPE.get() or Scope(request, {})
            prefix = _prefix(ctx, request) or scope.prefix
            token = SCOPE.set(Scope(scope.request, scope.values, scope.arguments, prefix))
            try:
                await self._guard(name, caller, also)
            finally:
                SCOPE.reset(token)
            return await call_next(ctx)
        request = cast("ServerRequestContext[Any, Any]", ctx)
        caller, also = sdk_identity(request, {})
        scope = SCOPE.get() or Scope(request, {}, prefix=_prefix(ctx, request))
        token = SCOPE.set(scope)
        try:
            await self._guard(str(members(request.params).get("name")), caller, also)
        except HoldfastError as error:
            return _refused(request, error)
        finally:
            SCOPE.reset(token)
        return await call_next(ctx)


async def _sdk(sessions: SessionRegistry[Any], context: Any, request: Any, run: Run) -> Any:
    """Results of the SDK are what goes over the wire."""
    caller, also = sdk_identity(request, {})
    params = members(request.params)
    extra = {"resultType": "complete"} if request.protocol_version >= Y2026 else {}
    name = str(params.get("name") or params.get("uri"))
    try:
        call = _Call(sessions, caller, name, also, request.method, request)
        return await call.handle(run, _wire, lambda kept: {**kept, **extra})
    except HoldfastError as error:
        if request.method != "tools/call":
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        return _refused(request, error)


def _refused(request: ServerRequestContext[Any, Any], error: HoldfastError) -> dict[str, Any]:
    """A tool's answer that is an error, as it goes over the wire."""
    refusal = _wire(CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True))
    return {**refusal, "resultType": "complete"} if request.protocol_version >= Y2026 else refusal


def _fastmcp_call(
    context: Any, request: ServerRequestContext[Any, Any] | None
) -> tuple[Identity, str, type[Exception]]:
    """Who calls what under a FastMCP middleware, and what its errors are."""
    from fastmcp.exceptions import ToolError

    message, caller = context.message, Identity()
    if request is not None:
        caller, _ = sdk_identity(request, {})
    caller = replace(caller, arguments=members(getattr(message, "arguments", None)))
    return caller, str(getattr(message, "name", None) or getattr(message, "uri", "")), ToolError


async def _fastmcp(sessions: SessionRegistry[Any], context: Any, request: Any, run: Run) -> Any:
    """Results of FastMCP are its own objects."""
    from fastmcp.tools.base import ToolResult

    caller, name, also = _fastmcp_call(context, request)
    call = _Call(sessions, caller, name, also, context.method, request)
    if call.key is not None and await _runs_in_background(context, name):
        raise shown(
            UsageError(
                f"{name!r} runs in the background, where no idempotency key is kept", remedy="leave the key out"
            ),
            also,
        )

    def plain(result: ToolResult) -> dict[str, Any]:
        whole = _wire(CallToolResult(content=result.content, structured_content=result.structured_content))
        return {**whole, "_meta": result.meta} if result.meta else whole

    def rebuild(kept: dict[str, Any]) -> ToolResult:
        content = CallToolResult.model_validate({"content": kept.get("content", [])}).content
        return ToolResult(content=content, structured_content=kept.get("structuredContent"), meta=kept.get("_meta"))

    return await call.handle(run, plain, rebuild)


async def _runs_in_background(context: Any, name: str) -> bool:
    """Declared with `task=True`: the tool's work is done elsewhere, after this call was answered."""
    tool = await context.fastmcp_context.fastmcp.get_tool(name)
    return tool is not None and tool.task_config.supports_tasks()


class _Call:
    """One call under the middleware."""

    def __init__(
        self,
        sessions: SessionRegistry[Any],
        caller: Identity,
        name: str,
        also: type[Exception],
        method: str,
        request: object,
    ) -> None:
        self.sessions = sessions
        self.caller = caller
        self.name = name
        self.also = also
        key = caller.meta.get(IDEMPOTENCY_KEY)
        key = caller.arguments.get("idempotency_key") if key is None else key
        if key is not None and (not isinstance(key, str) or not key):
            raise shown(UsageError(f"the idempotency key {key!r:.60} is not text"), also)
        self.key = key if method == "tools/call" else None
        self.digest = digest(name, dict(caller.arguments))
        self.request = request

    async def handle(
        self, run: Run, plain: Callable[[Any], dict[str, Any]], rebuild: Callable[[dict[str, Any]], Any]
    ) -> Any:
        with showing(self.also):
            found = self.sessions.chain.find(self.caller, self.sessions.table.name)
        async with AsyncExitStack() as turns:

            async def take_turn() -> None:
                name, taking = f"call {found}", self.sessions.table.turns
                # A call that holds a turn on a session of another kind does not wait for a second one: another call may
                # do so in the other order. What that costs is a `Conflict`.
                if not (holds_another(self.sessions.table) and taking.is_taken(name)):
                    await turns.enter_async_context(taking.turn(name, TURN_SECONDS))

            call = CallState(
                self.request, means=found, take_turn=take_turn, is_keyed=self.key is not None, also=self.also
            )
            if self.key is not None and found is not None:
                await call.wait_for_turn(found)
                kept = await self._repeated(self.key, found, call)
                if kept is not None:
                    return rebuild(kept)
            return await self._saved(call, found, run, plain, rebuild)

    async def _saved(
        self,
        call: CallState,
        found: Found | None,
        run: Run,
        plain: Callable[[Any], dict[str, Any]],
        rebuild: Callable[[dict[str, Any]], Any],
    ) -> Any:
        """The call's result, once what it changed is written."""
        token = CALLS.set({**CALLS.get(), self.sessions.table: call})
        try:
            result = await run()
            if not _unfinished(result):
                self._check(call, found)
        finally:
            CALLS.reset(token)
            call.close()
        if not call.has_taken or _unfinished(result):  # a call that fails leaves the state as before
            return result
        once: dict[str, JSON] | None = None
        if self.key is not None and call.named is not None:
            whole = {name: value for name, value in plain(result).items() if name != "resultType"}
            once = {call.named.in_call.key_name(self.key): {"call": self.digest, "result": cast("JSON", whole)}}
        try:
            await call.save(self.name, once)
        except Conflict:
            # The same call may have been made twice at once: the first one's answer counts.
            kept = await self._repeated(self.key, found, call) if self.key is not None and found is not None else None
            if kept is None:
                raise
            return rebuild(kept)
        except HoldfastError as error:
            raise shown(error, self.also) from error.__cause__
        return result

    def _check(self, call: CallState, found: Found | None) -> None:
        """Refuse to save what can't be written as one, and to answer under a key that is kept nowhere."""
        with showing(self.also):
            call.check_alone(self.name)
            if self.key is not None and found is not None and not call.needs_no_place:
                raise UsageError(
                    f"{self.name!r} took no session, so its answer was not kept under the idempotency key; it was "
                    "executed",
                    remedy="call it without a key, and look before you repeat it",
                )

    async def _repeated(self, key: str, found: Found, call: CallState) -> dict[str, Any] | None:
        """What the same call answered before."""
        with showing(self.also):
            try:
                session: Session[Any] = await self.sessions.find_for(self.caller, found)
            except NotFound:
                return None  # not this caller's: the error comes when the tool takes it
            call.keep_key_in(session)
            session.in_call.show_errors_as(self.also)
            try:
                kept = session.in_call.kept_answer(key)
            except UsageError as error:  # raised when the tool takes it, if it does
                call.refuse_key(error)
                return None
            if kept is not None and kept.get("call") != self.digest:
                raise UsageError(
                    f"the idempotency key {key!r:.80} was used for another call", remedy="use a new key for a new call"
                )
            return members(kept.get("result")) if kept is not None else None


def _fastmcp_request() -> ServerRequestContext[Any, Any] | None:
    """The SDK's request under a FastMCP middleware context."""
    from fastmcp.server.dependencies import fastmcp_request_ctx

    bound = fastmcp_request_ctx.get()
    return bound._srctx if bound is not None else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _unfinished(result: Any) -> bool:
    """An error, or a question to the client that another round will answer: nothing of it is kept."""
    if isinstance(result, dict):
        whole = members(cast("JSON", result))
        return whole.get("isError") is True or whole.get("resultType") == "input_required"
    if getattr(result, "is_error", False) is True or getattr(result, "input_required", None) is not None:
        return True
    return isinstance(result, InputRequiredResult)


def _prefix(ctx: Any, request: ServerRequestContext[Any, Any] | None) -> str:
    """What gateways and mounts have put before the name of the tool that is called."""
    if request is None or ctx.method != "tools/call":
        return ""
    params = members(request.params)
    asked = params.get("name")
    own = asked if ctx is request else getattr(ctx.message, "name", None)  # the SDK's servers have no mounts
    return prefix_of(members(params.get("_meta")).get(CALLED_AS), own) or prefix_of(asked, own)


def _arguments(ctx: Any, is_sdk: bool) -> dict[str, Any] | None:
    """Of the component that is called; None for anything else."""
    if ctx.method not in _CALLS:
        return None
    if is_sdk:
        return members(members(ctx.params).get("arguments"))
    return members(getattr(ctx.message, "arguments", None))


def _wire(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(result)
