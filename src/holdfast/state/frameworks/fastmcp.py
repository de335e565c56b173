"""The lifecycle tools for FastMCP, and a check of the server's own tools before it starts.

A server with a tool that injects a session but can't name one does not start.
"""

import inspect
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers.base import Provider
from fastmcp.tools.base import Tool
from uncalled_for import get_dependency_parameters

from holdfast.errors import UsageError
from holdfast.state.frameworks.lifecycle_tools import LifecycleTool
from holdfast.state.registry import SessionRegistry

log = logging.getLogger(__name__)


class LifecycleProvider(Provider):
    """A provider of the tools that opens and closes the store with the server."""

    def __init__(self, server: FastMCP[Any], sessions: SessionRegistry[Any], offered: Sequence[LifecycleTool]) -> None:
        super().__init__()
        self._server = server
        self._sessions = sessions
        self._tools = [
            Tool.from_function(step.function(False), name=step.name, annotations=step.annotations) for step in offered
        ]

    async def _list_tools(self) -> Sequence[Tool]:
        return self._tools

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        await self._check()
        async with self._sessions.lifespan():
            yield

    async def _check(self) -> None:
        named = self._sessions.chain.arguments
        for tool in await self._server.list_tools(run_middleware=False):
            function = getattr(tool, "fn", None)
            if function is None or tool in self._tools:
                continue
            injected = get_dependency_parameters(function).values()
            takes = any(getattr(each, "factory", None) is self._sessions for each in injected)
            if not named or not takes or any(name in inspect.signature(function).parameters for name in named):
                continue
            what = f"the tool {tool.name!r} gets a session, but has no argument {named[0]!r} to name it"
            if self._sessions.chain.argument is not None:
                raise UsageError(what, remedy=f"add `{named[0]}: str` to it, or another place to the identity chain")
            log.warning("%s: clients of 2026 without authentication can't use it", what)
