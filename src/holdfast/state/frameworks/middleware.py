"""Middleware for both frameworks: a request's scope, and each call as one transaction.

What a call has taken is written once, when its result is known; nothing is written after an error. The result is kept
in the same step where the call has an idempotency key. A call that takes no session costs no access to the store.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, InputRequiredResult, TextContent
from pydantic import BaseModel

from holdfast.core.naming import CALLED_AS, prefix_of
from holdfast.core.values import JSON, members
from holdfast.errors import HoldfastError
from holdfast.state.calls.request import SCOPE, Scope, current_transaction
from holdfast.state.calls.results import Keyed
from holdfast.state.calls.transaction import Transaction
from holdfast.state.frameworks.background import take_task
from holdfast.state.frameworks.injection import Y2026, sdk_identity
from holdfast.state.identity import Identity
from holdfast.state.tool_errors import showing

IDEMPOTENCY_KEY = "dev.holdfast/idempotency-key"
_TASK = "task"
_CALLS = ("tools/call", "resources/read", "prompts/get")
Next = Callable[[Any], Awaitable[Any]]
Run = Callable[[], Awaitable[Any]]
Request = ServerRequestContext[Any, Any]


class StateMiddleware:
    """For `FastMCP(middleware=[…])`, `server.add_middleware(…)` and `MCPServer(middleware=[…])` alike."""

    async def __call__(self, ctx: Any, call_next: Next) -> Any:
        is_sdk = isinstance(ctx, ServerRequestContext)
        request = cast("Request", ctx) if is_sdk else _fastmcp_request()
        outer, arguments, prefix = SCOPE.get(), _arguments(ctx, is_sdk), _prefix(ctx, request)
        under_way = current_transaction()
        if under_way is not None and under_way.request is not request:
            under_way = None
        if outer is not None and outer.request is request and request is not None:
            inner = outer.nested(arguments, prefix)
        else:
            inner = Scope(request, {}, arguments, prefix, under_way, is_sdk)
        token = SCOPE.set(inner)
        try:
            if ctx.method not in _CALLS:
                return await call_next(ctx)
            if under_way is not None:
                return await _joined(under_way, lambda: call_next(ctx))
            inner.transaction = Transaction(request)
            whole = _SdkCall if is_sdk else _FastmcpCall
            return await whole(ctx, request, inner.transaction).run(lambda: call_next(ctx))
        finally:
            SCOPE.reset(token)


async def _joined(transaction: Transaction, run: Run) -> Any:
    """A nested call is written with the outer one; what it changed before it failed is not."""
    restore = transaction.snapshot()
    try:
        result = await run()
    except BaseException:
        restore()
        raise
    if _unfinished(result):
        restore()
    return result


class _Call:
    """One call from its beginning to the writing of what it changed."""

    def __init__(self, ctx: Any, request: Request | None, transaction: Transaction) -> None:
        self.ctx = ctx
        self.request = request
        self.transaction = transaction

    def described(self) -> tuple[Identity, str, type[Exception]]:
        """Who calls what, and what its errors are."""
        raise NotImplementedError

    def plain(self, result: Any) -> dict[str, Any]:
        """The result as it is kept."""
        raise NotImplementedError

    def rebuilt(self, kept: dict[str, Any]) -> Any:
        """The result again."""
        raise NotImplementedError

    async def prepare(self, caller: Identity, name: str, also: type[Exception]) -> None:
        """Take what the call needs before it runs."""

    async def run(self, run: Run) -> Any:
        """The call's result, once what it changed is written."""
        transaction = self.transaction
        caller, name, also = self.described()
        with showing(also):
            transaction.keyed = _keyed(caller, name, self.ctx.method)
        try:
            await self.prepare(caller, name, also)
            result = await run()
        except Exception:
            await transaction.abandon()
            if transaction.answer is None:
                raise
            return self.rebuilt(transaction.answer)
        except BaseException:
            await transaction.abandon()
            raise
        if transaction.answer is not None:
            await transaction.abandon()
            return self.rebuilt(transaction.answer)
        if _unfinished(result):  # a call that fails leaves everything as before
            await transaction.abandon()
            return result
        if transaction.has_begun:
            with showing(also):
                await transaction.commit(name, self.plain(result) if transaction.keyed is not None else None)
        else:
            await transaction.abandon()
        return result


class _SdkCall(_Call):
    """Results of the SDK are what goes over the wire."""

    def described(self) -> tuple[Identity, str, type[Exception]]:
        params = members(self.ctx.params)
        caller, also = sdk_identity(self.ctx, {})
        return caller, str(params.get("name") or params.get("uri")), also

    def plain(self, result: Any) -> dict[str, Any]:
        return {name: value for name, value in _wire(result).items() if name != "resultType"}

    def rebuilt(self, kept: dict[str, Any]) -> Any:
        return _complete(self.ctx, kept)

    async def run(self, run: Run) -> Any:
        try:
            return await super().run(run)
        except HoldfastError as error:
            if self.ctx.method != "tools/call":
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
            return _refused(self.ctx, error)


class _FastmcpCall(_Call):
    """Results of FastMCP are its own objects."""

    def described(self) -> tuple[Identity, str, type[Exception]]:
        return _fastmcp_call(self.ctx, self.request)

    async def prepare(self, caller: Identity, name: str, also: type[Exception]) -> None:
        if self.transaction.keyed is None or self.ctx.method != "tools/call":
            return
        tool = await self.ctx.fastmcp_context.fastmcp.get_tool(name)
        if tool is not None and _starts_task(tool, self.ctx, self.request):
            await take_task(getattr(tool, "fn", None), caller, self.transaction, also)

    def plain(self, result: Any) -> dict[str, Any]:
        if getattr(result, "task_id", None) is not None:  # an answer of the extension for tasks
            return {_TASK: _wire(result)}
        whole = _wire(CallToolResult(content=result.content, structured_content=result.structured_content))
        return {**whole, "_meta": result.meta} if result.meta else whole

    def rebuilt(self, kept: dict[str, Any]) -> Any:
        from fastmcp.tools.base import ToolResult

        if _TASK in kept:
            return members(kept[_TASK])
        content = CallToolResult.model_validate({"content": kept.get("content", [])}).content
        return ToolResult(content=content, structured_content=kept.get("structuredContent"), meta=kept.get("_meta"))


def _starts_task(tool: Any, context: Any, request: Request | None) -> bool:
    """Whether a call of FastMCP's is answered with a task: the tool allows it, and the client wants it."""
    if request is None or request.protocol_version < Y2026 or not tool.task_config.supports_tasks():
        return False
    from fastmcp.utilities.tasks import TASKS_EXTENSION_ID

    return context.fastmcp_context.client_extension_settings(TASKS_EXTENSION_ID) is not None


def _keyed(caller: Identity, name: str, method: str) -> Keyed | None:
    """The call with its idempotency key, if it has one."""
    key = caller.meta.get(IDEMPOTENCY_KEY)
    if key is None:
        key = caller.arguments.get("idempotency_key")
        key = None if key == "" else key  # a model gives what it leaves out as an empty text
    if key is None or method != "tools/call":
        return None
    return Keyed.of(key, caller.principal, name, dict(caller.arguments))


def _refused(request: ServerRequestContext[Any, Any], error: HoldfastError) -> dict[str, Any]:
    """A tool's answer that is an error, as it goes over the wire."""
    return _complete(request, _wire(CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)))


def _complete(request: Request, result: dict[str, Any]) -> dict[str, Any]:
    """A result as it goes over the wire in the request's era."""
    return {**result, "resultType": "complete"} if request.protocol_version >= Y2026 else result


def _fastmcp_call(
    context: Any, request: ServerRequestContext[Any, Any] | None
) -> tuple[Identity, str, type[Exception]]:
    """The caller, the tool and the error class of a call under a FastMCP middleware."""
    from fastmcp.exceptions import ToolError

    message, caller = context.message, Identity()
    if request is not None:
        caller, _ = sdk_identity(request, {})
    caller = replace(caller, arguments=members(getattr(message, "arguments", None)))
    return caller, str(getattr(message, "name", None) or getattr(message, "uri", "")), ToolError


def _fastmcp_request() -> ServerRequestContext[Any, Any] | None:
    """The SDK's request under a FastMCP middleware context."""
    from fastmcp.server.dependencies import fastmcp_request_ctx

    bound = fastmcp_request_ctx.get()
    return bound._srctx if bound is not None else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _unfinished(result: Any) -> bool:
    """Whether it is an error, or a question to the client that another round answers: it is not stored."""
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
    """The arguments of the called component; None if there are none."""
    if ctx.method not in _CALLS:
        return None
    if is_sdk:
        return members(members(ctx.params).get("arguments"))
    return members(getattr(ctx.message, "arguments", None))


def _wire(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(result)
