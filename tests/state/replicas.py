"""Example servers and variants of them in processes of their own, with authentication by fixed tokens.

`python -m tests.state.replicas fastmcp|mcpserver PORT` serves one. BASKETS names its store, TOKENS turns authentication
on, IDLE is the time in seconds after which a session that nobody uses expires.
"""

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.auth.provider import AccessToken

from tests.deadlines import until
from tests.preloaded import ROOT, Child

TOKENS = {  # the client and the user of each
    "alice-token": ("app", "alice"),
    "alice-phone-token": ("phone", "alice"),
    "bob-token": ("app", "bob"),
}
FRAMEWORKS = ("fastmcp", "mcpserver")


class Verifier:
    """Two users of one client, and one of them with another one."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if token not in TOKENS:
            return None
        client, subject = TOKENS[token]
        claims = {"iss": "https://issuer.invalid"}
        return AccessToken(token=token, client_id=client, scopes=[], subject=subject, claims=claims)


def serve(framework: str, port: int) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    example = os.environ.get("EXAMPLE", "basket")
    module: Any = importlib.import_module(f"{example}_{framework}")
    variants: Any = importlib.import_module("tests.state.variants") if example == "basket" else None
    server = module.server
    if idle := os.environ.get("IDLE"):
        module.sessions.table.idle = float(idle)
    if framework == "fastmcp":
        if os.environ.get("TOKENS"):
            from fastmcp.server.auth import StaticTokenVerifier

            known = {
                token: {"client_id": client, "sub": name, "iss": "https://issuer.invalid", "scopes": []}
                for token, (client, name) in TOKENS.items()
            }
            server.auth = StaticTokenVerifier(tokens=known)
        if variants is not None:
            variants.fastmcp(server, module.sessions)
        server.run(transport="http", port=port, show_banner=False, log_level="ERROR")
    else:
        from mcp.server.auth.settings import AuthSettings

        if os.environ.get("TOKENS"):
            server.settings.auth = AuthSettings(
                issuer_url="https://issuer.invalid",  # type: ignore[arg-type]
                resource_server_url=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
            )
            server._token_verifier = Verifier()
        if variants is not None:
            variants.mcpserver(server, module.sessions)
        server.run("streamable-http", port=port)


def _serve_quietly(framework: str, port: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    serve(framework, port)


class Replica:
    """One process of a basket server; may be killed and started again on its port."""

    def __init__(self, framework: str, store: str, *, tokens: bool = False, **env: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.framework = framework
        self._env = {"BASKETS": store, "STUDIO": store, "SHOP": store, **({"TOKENS": "1"} if tokens else {}), **env}
        self._process: Child | None = None

    async def start(self) -> None:
        self._process = Child(_serve_quietly, self.framework, self.port, env=self._env)
        await until(self._listens, 30)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.exitcode is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    async def stop(self) -> int | None:
        process = self._process
        assert process is not None
        process.terminate()
        await until(lambda: process.exitcode is not None, 20)
        return process.exitcode

    async def restart(self) -> None:
        self.kill()
        await self.start()


@asynccontextmanager
async def replicas(*wanted: Replica) -> AsyncGenerator[tuple[Replica, ...]]:
    try:
        await asyncio.gather(*(each.start() for each in wanted))
        yield wanted
    finally:
        for each in wanted:
            each.kill()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
