"""Servers in processes of their own, for tests of what calls of several processes do to the same sessions."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import mcp
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY

Call = Callable[..., Awaitable[tuple[bool, str]]]


class Account(holdfast.SessionState):
    cents: int = 0
    calls: int = 0


def accounts_in(url: str, turn_ttl: float = 30.0) -> "holdfast.Sessions[Account]":
    return holdfast.Sessions(Account, url, turn_ttl=turn_ttl)


@asynccontextmanager
async def bank(accounts: "holdfast.Sessions[Account]") -> AsyncGenerator[Call]:
    """A server with a client: a function that calls a tool."""
    server: MCPServer[Any] = MCPServer("bank")
    accounts.install(server)

    @server.tool()
    @accounts.writes
    async def pay(account: Account, pause: float = 0.0) -> int:
        account.calls += 1
        before, account.cents = account.cents, account.cents + 1
        await asyncio.sleep(pause)
        return before + 1

    @server.tool()
    @accounts.writes
    async def move(cents: int, source: Account, target: Account) -> int:
        source.cents -= cents
        await asyncio.sleep(0)
        target.cents += cents
        return source.cents

    @server.tool()
    @accounts.reads
    async def total(source: Account, target: Account) -> int:
        return source.cents + target.cents

    async with mcp.Client(server) as client:

        async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
            meta: Any = {IDEMPOTENCY_KEY: key} if key else None
            answer = await client.call_tool(tool, arguments, meta=meta)
            return answer.is_error, "\n".join(getattr(part, "text", "") for part in answer.content)

        yield call


async def pay_at_once(pipe: Connection, url: str, handle: str, calls: int, key: str | None) -> None:
    """Make the calls at once, on the word; tell the answers."""
    accounts = accounts_in(url)
    async with bank(accounts) as call:
        pipe.send("ready")
        pipe.recv()
        pipe.send(await asyncio.gather(*(call("pay", key, account_id=handle) for _ in range(calls))))


async def pay_for_a_while(pipe: Connection, url: str, handle: str, seconds: float) -> None:
    """Keep four calls under way; tell how many were done."""
    accounts, done = accounts_in(url), 0
    async with bank(accounts) as call:
        pipe.send("ready")
        pipe.recv()
        until = asyncio.get_running_loop().time() + seconds

        async def work() -> None:
            nonlocal done
            while asyncio.get_running_loop().time() < until:
                failed, said = await call("pay", account_id=handle)
                assert not failed, said
                done += 1

        await asyncio.gather(*(work() for _ in range(4)))
        pipe.send(done)


async def move_for_ever(pipe: Connection, url: str, one: str, other: str) -> None:
    """Move money to and fro until killed; tell each answer."""
    accounts = accounts_in(url, turn_ttl=0.5)
    async with bank(accounts) as call:
        pipe.send("ready")
        pipe.recv()
        number = 0
        while True:
            number += 1
            there = {"source_id": one, "target_id": other} if number % 2 else {"source_id": other, "target_id": one}
            pipe.send(await call("move", cents=number % 7, **there))
