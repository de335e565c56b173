"""Injection of sessions into tools: FastMCP's `Depends(sessions)`, the SDK's `Resolve(sessions)`, `await
sessions(ctx)`.

Headers are never used as an identity. Errors are raised as the framework's own class too, so that it does not hide
their text.
"""

import functools
import getpass
import inspect
import json
import logging
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resolve import Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.core.values import members
from holdfast.errors import HoldfastError, UsageError
from holdfast.state.calls.request import SCOPE, current_transaction
from holdfast.state.frameworks.places import place_of, take_to_write
from holdfast.state.identity import Chain, Identity
from holdfast.state.model import SessionState
from holdfast.state.registry import SessionRegistry
from holdfast.state.session import Session
from holdfast.state.storage.records import new_handle
from holdfast.state.storage.table import SessionTable
from holdfast.state.tool_errors import showing

log = logging.getLogger(__name__)
S = TypeVar("S", bound=SessionState)
F = TypeVar("F", bound=Callable[..., Any])
Y2026 = "2026-07-28"
_OURS = "dev.holdfast/connection"
_CONTEXT = "holdfast_context"


class Injectable(SessionRegistry[S]):
    """Sessions that both frameworks can inject into tools."""

    def __init__(self, table: SessionTable[S], chain: Chain, noun: str) -> None:
        super().__init__(table, chain, noun)
        # Read by `inspect.signature`: the SDK passes the argument that names a session by name, also to a tool that is
        # called by another one, and refuses a tool without it.
        parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in chain.arguments
        ]
        self.__signature__ = inspect.Signature(parameters)

    async def __call__(self, ctx: Context[Any, Any] | None = None, **arguments: Any) -> Session[S]:
        """The session of the current call, with `Context` on MCPServer, without it in FastMCP."""
        caller, also = current_identity(ctx, arguments)
        return await self.for_call(caller, also)

    async def for_call(self, caller: Identity, also: type[Exception] | None) -> Session[S]:
        """The session of a call; with what the call has changed, where it has taken the session. A call with an
        idempotency key takes it here, so that its result is kept with what it writes."""
        transaction = current_transaction()
        with showing(also):
            if (
                transaction is not None
                and transaction.keyed is not None
                and (not transaction.has_begun or transaction.covers(self.table.store.place))
            ):
                [session] = await take_to_write([await place_of(self, caller)], caller, transaction, also)
                return session
            session = await self.find_for(caller)
            session.record.just_read()
            session.in_call.show_errors_as(also)
            return session

    @property
    def unnamed(self) -> Callable[[Context[Any, Any]], Awaitable[Session[S]]]:
        """For tools of MCPServer without an argument that names a session: `Resolve(sessions.unnamed)`."""

        async def find(ctx: Context[Any, Any]) -> Session[S]:
            return await self(ctx)

        return find

    def inject(self, function: F) -> F:
        """A decorator for resources and prompts of MCPServer, which do not support `Resolve`:
        used below theirs, with the parameter written as for a tool, `session: Annotated[Session[Basket],
        Resolve(sessions)]`.
        """
        return injected(function)


# Callers


def principal_of(request: object) -> Principal:
    """The authenticated principal, or None."""
    user = members(getattr(request, "scope", None)).get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    if token is None and request is None:
        token = get_access_token()
    if token is None:
        return ANONYMOUS
    return Principal(json.dumps(principal_components(token), ensure_ascii=False, separators=(",", ":")))


def current_identity(ctx: Context[Any, Any] | None, arguments: Mapping[str, Any]) -> tuple[Identity, type[Exception]]:
    """The caller of the current call, and the class of errors whose text it gets."""
    if not isinstance(ctx, Context):  # no context, or FastMCP's own, which is another class
        return _fastmcp_identity(arguments)
    return sdk_identity(ctx.request_context, arguments)


def sdk_identity(
    request: ServerRequestContext[Any, Any], arguments: Mapping[str, Any]
) -> tuple[Identity, type[Exception]]:
    """The caller of an SDK request, and the class of errors whose text it gets."""
    params = members(request.params)
    given = {**members(params.get("arguments")), **arguments}
    principal = principal_of(request.request)
    local = _local_user() if request.request is None and principal == ANONYMOUS else None
    caller = Identity(principal, given, members(params.get("_meta")), _session_2025(request), local)
    return caller, ResourceError if request.method.startswith("resources/") else ToolError


@functools.cache
def _local_user() -> str:
    """The login name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # nameless in this container
        return "user"


def _session_2025(request: ServerRequestContext[Any, Any]) -> str | None:
    """The id that the server gave this connection; on stdio an id created here, valid for the connection."""
    if request.protocol_version >= Y2026:
        return None
    connection = getattr(request.session, "_connection", None)
    if connection is None:
        return None
    if connection.session_id is not None:
        return str(connection.session_id)
    if request.request is not None:
        return None  # stateless HTTP: each request is another connection
    return str(connection.state.setdefault(_OURS, new_handle()))


def _fastmcp_identity(arguments: Mapping[str, Any]) -> tuple[Identity, type[Exception]]:
    """The caller of the FastMCP component that is being called."""
    if "fastmcp" not in sys.modules:
        raise UsageError("no call is in progress here", remedy="on MCPServer: `await sessions(ctx)`")
    from fastmcp.exceptions import PromptError, ResourceError, ToolError
    from fastmcp.server.dependencies import fastmcp_request_ctx
    from uncalled_for import current_frame

    try:
        frame = current_frame()
        given = {**_defaults(frame.function), **frame.provided}
    except RuntimeError:  # used in the body of a function without dependencies
        scope = SCOPE.get()
        given = dict(scope.arguments) if scope is not None and scope.arguments is not None else {}
    bound = fastmcp_request_ctx.get()
    if bound is None:
        return Identity(
            principal_of(None), {**given, **arguments}
        ), ToolError  # a background task has its caller's token
    request = bound._srctx  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    caller, _ = sdk_identity(request, {})
    shown_as = {"resources/read": ResourceError, "prompts/get": PromptError}.get(request.method, ToolError)
    own = {**given, **arguments} if given or arguments else caller.arguments
    return replace(caller, arguments=own), shown_as


@functools.lru_cache(maxsize=2048)
def _defaults(function: Callable[..., Any]) -> dict[str, str]:
    """The defaults of a function's str parameters that the caller leaves out."""
    parameters = inspect.signature(function).parameters
    return {name: value.default for name, value in parameters.items() if isinstance(value.default, str)}


# Resources and prompts of MCPServer


def injected(function: F) -> F:
    """A function without the session parameters, which are filled when it is called."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {name: marker for name, hint in hints.items() if (marker := _marker(hint)) is not None}
    if not found:
        raise UsageError(
            f"{function.__name__} has no parameter to fill",
            remedy="write `session: Annotated[Session[…], Resolve(sessions)]`",
        )
    signature = inspect.signature(function)
    context = next((name for name, hint in hints.items() if _is_context(hint)), None)
    parameters = [value for name, value in signature.parameters.items() if name not in found]
    if context is None:
        added = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Context)
        last = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        parameters.insert(len(parameters) - last, added)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        ctx = kwargs.get(context) if context is not None else kwargs.pop(_CONTEXT, None)
        given = dict(kwargs)
        is_prompt = ctx is not None and ctx.request_context.method.startswith("prompts/")
        try:
            for name, sessions in found.items():
                arguments = {key: each for key, each in given.items() if key != context}
                kwargs[name] = await sessions.for_call(*current_identity(ctx, arguments))
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except HoldfastError as error:
            if is_prompt:
                raise refused_prompt(error) from error
            raise

    del call.__wrapped__
    call.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {name: hint for name, hint in hints.items() if name not in found}
    if context is None:
        call.__annotations__[_CONTEXT] = Context
    return cast("F", call)


def refused_prompt(error: HoldfastError) -> MCPError:
    """The SDK has no error of its own for prompts."""
    return MCPError(code=INVALID_PARAMS, message=str(error))


def _marker(hint: object) -> Injectable[Any] | None:
    if get_origin(hint) is Annotated:
        for each in get_args(hint)[1:]:
            if isinstance(each, Resolve) and isinstance(each.fn, Injectable):
                return cast("Injectable[Any]", each.fn)
    return None


def _is_context(hint: object) -> bool:
    kinds = get_args(hint) if get_origin(hint) is not None else (hint,)
    return any(isinstance(kind, type) and issubclass(kind, Context) for kind in kinds)
