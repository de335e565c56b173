"""The three ways in which Holdfast takes the place of an SDK connection: dispatcher, transport, gateway."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from conformance.judges.relay import relayed, served
from holdfast.gateway.config.file import Config, load_config
from holdfast.gateway.server import Program
from holdfast.links import CommandTarget, HttpTarget, Limits, Link, LinkDispatcher, LinkTransport, ObjectTarget, Options
from holdfast.links.target import Target

WAY = os.environ.get("HOLDFAST_JUDGE", "transport")
LIMITS = Limits(circuit=0, backoff=0.05, close=2)
connections = 0
"""How many were made in place of the SDK's own, in the test under way."""


class Connection:
    """A `Transport` of the SDK that leads through us, to what a factory opens: a target, in the gateway's case a URL."""

    def __init__(self, target: Callable[[], AbstractAsyncContextManager[Target]]) -> None:
        self.target = target
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        global connections
        connections += 1
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(self.target())
            if WAY == "gateway":
                assert not isinstance(target, ObjectTarget)
                url = await stack.enter_async_context(gateway(target))
                streams = await stack.enter_async_context(streamable_http_client(url))
            else:
                streams = await stack.enter_async_context(LinkTransport(link_to(target)))
            self._stack = stack.pop_all()
            return streams

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def dispatcher(self, stack: AsyncExitStack) -> LinkDispatcher:
        """The dispatcher for a session, until the stack ends."""
        global connections
        connections += 1
        link = link_to(await stack.enter_async_context(self.target()))
        stack.push_async_callback(link.close)
        return LinkDispatcher(link)


def link_to(target: Target) -> Link:
    # A client that tries both eras wants the newer one, and a test's server may be of either.
    return Link(target, Options(prefer="2026", limits=LIMITS))


@asynccontextmanager
async def gateway(target: HttpTarget | CommandTarget) -> AsyncGenerator[str]:
    """A gateway in front of one server, which names everything as the server does."""
    if isinstance(target, HttpTarget):
        entry: dict[str, Any] = {"url": target.url}
    else:
        entry = {"command": target.command, "args": list(target.args), "env": target.env or {}}
        entry |= {"cwd": target.cwd} if target.cwd else {}
    settings = {
        "listen": {"port": 0},
        "store": "memory:",
        "naming": {"mode": "none"},
        "sessions": {
            "steer": False,  # a client of both eras gets the one that it asks for first
            "start": 15,  # seconds, for the slowest server of a busy machine
        },
        "mcpServers": {"judged": entry},
    }
    async with Program(await asyncio.to_thread(_config, settings)).running() as program:
        yield program.url


def _config(settings: dict[str, Any]) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.json"
        file.write_text(json.dumps(settings))
        config = load_config(file)
    entries = {name: replace(entry, server=entry.server.with_(limits=LIMITS)) for name, entry in config.entries.items()}
    return replace(config, entries=entries, path=None)


def to_object(server: Server[Any] | MCPServer) -> Connection:
    """To a server object: as it is, or for the gateway on a socket."""

    @asynccontextmanager
    async def target() -> AsyncGenerator[Target]:
        if WAY != "gateway":
            yield ObjectTarget(server)
            return
        app = server.streamable_http_app(
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
        )
        async with server.session_manager.run(), served(app) as origin:
            yield HttpTarget(f"{origin}/mcp")

    return Connection(target)


def to_url(url: str, client: httpx2.AsyncClient | None) -> AbstractAsyncContextManager[Any]:
    """To a URL as this client reaches it."""
    if WAY == "gateway" and client is not None and client.auth is not None:
        # A gateway has no person to send to an authorization server: that stays between this client and its server.
        return streamable_http_client(url, http_client=client)

    @asynccontextmanager
    async def target() -> AsyncGenerator[Target]:
        async with relayed(url, client) as address:
            yield HttpTarget(address, auth=None if client is None else client.auth)

    return Connection(target)


def to_program(program: StdioServerParameters) -> Connection:
    """To a program."""

    @asynccontextmanager
    async def target() -> AsyncGenerator[Target]:
        yield CommandTarget(
            program.command, tuple(program.args), program.env, None if program.cwd is None else str(program.cwd)
        )

    return Connection(target)
