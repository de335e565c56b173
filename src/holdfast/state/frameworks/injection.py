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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
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


def refused_prompt(error: HoldfastError) -> MCPError:
    """The SDK has no error of its own for prompts."""
    return MCPError(code=INVALID_PARAMS, message=str(error))
