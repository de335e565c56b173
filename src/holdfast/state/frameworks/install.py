"""Installs sessions on a server of either framework: lifecycle tools, the request's scope, and closing of the store.

A server on which the identity chain can never find a session is rejected.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp.server.mcpserver import MCPServer

from holdfast.errors import UsageError
from holdfast.state.frameworks.lifecycle_tools import VERBS, lifecycle_tools
from holdfast.state.frameworks.middleware import StateMiddleware
from holdfast.state.registry import SessionRegistry

_NOUNS = "_holdfast_nouns"


def install(
    server: object, sessions: SessionRegistry[Any], create: Sequence[str], tools: bool | Sequence[str] | None
) -> None:
    """Tools, the request's scope, and the end of the store, on either framework's server."""
    can_be_named = sessions.chain.is_named_by_callers
    if tools is None:
        tools = can_be_named
    elif tools and not can_be_named:
        raise UsageError(
            f"{sessions!r} begin by themselves, and callers can't name one: lifecycle tools would do nothing",
            remedy="leave tools= out, or use per='conversation'",
        )
    chosen = VERBS if tools is True else tuple(tools or ())
    if unknown := [verb for verb in chosen if verb not in VERBS]:
        raise UsageError(f"there is no lifecycle tool {unknown[0]!r}", remedy=f"choose of {', '.join(VERBS)}")
    noun = sessions.noun
    if "create" in chosen:
        sessions.table.set_begin_tool(f"create_{noun}")
    offered = [each for each in lifecycle_tools(sessions, noun, create) if each.verb in chosen]
    around = StateMiddleware()
    if isinstance(server, MCPServer):
        official = cast("MCPServer[Any]", server)
        _check(sessions, official.name, official.settings.auth is not None)
        _claim_names(official, noun if offered else None)
        for step in offered:
            official.add_tool(step.function(True), name=step.name, annotations=step.annotations)
        official.middleware.append(around)
        low = official._lowlevel_server  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        low.lifespan = _with(low.lifespan, sessions)
        return
    try:
        from fastmcp import FastMCP
    except ModuleNotFoundError:
        raise _neither(server, 'for FastMCP install it: pip install "holdfast[fastmcp]"; ') from None
    if not isinstance(server, FastMCP):
        raise _neither(server)
    from holdfast.state.frameworks.fastmcp import LifecycleProvider

    fast = cast("FastMCP[Any]", server)
    _check(sessions, fast.name, fast.auth is not None)
    _claim_names(fast, noun if offered else None)
    fast.add_provider(LifecycleProvider(fast, sessions, offered))
    fast.add_middleware(around)  # pyright: ignore[reportArgumentType]


def _neither(server: object, first: str = "") -> UsageError:
    return UsageError(
        f"the server must be a FastMCP or an MCPServer, not a {type(server).__name__}",
        remedy=f"{first}on another server call `await sessions.find(handle, principal)` in your handlers",
    )


def _claim_names(server: object, noun: str | None) -> None:
    """Raise if the server already has sessions under this noun, whose tools would hide the new ones."""
    taken: set[str] = getattr(server, _NOUNS, set[str]())
    if noun is None:
        return
    if noun in taken:
        raise UsageError(f"the server has a tool create_{noun} already", remedy="give each Sessions a noun= of its own")
    setattr(server, _NOUNS, taken | {noun})


def _check(sessions: SessionRegistry[Any], server: str, authenticates: bool) -> None:
    if sessions.chain.needs_authentication and not authenticates:
        raise UsageError(
            f"{sessions!r} finds only sessions of authenticated callers, and {server!r} authenticates no callers",
            remedy="add FromArgument(…) to the identity chain, or authentication to the server",
        )


def _with(inner: Callable[[Any], Any], sessions: SessionRegistry[Any]) -> Callable[[Any], Any]:
    """Extend a server's lifespan by the store's."""

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncGenerator[Any]:
        async with sessions.lifespan(), inner(server) as state:
            yield state

    return lifespan
