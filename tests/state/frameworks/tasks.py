"""A FastMCP server with background tasks, and what became of calls of it, as JSON on stdout.

In a process of its own: importing fastmcp_tasks changes every client of FastMCP in the process.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fastmcp_tasks
from fastmcp import Client, FastMCP
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY


class Basket(holdfast.SessionState):
    items: list[str] = []


@contextmanager
def user(name: str) -> Iterator[None]:
    token = AccessToken(token="t", client_id="app", scopes=[], subject=name, claims={"iss": "https://issuer.invalid"})
    before = auth_context_var.set(AuthenticatedUser(token))
    try:
        yield
    finally:
        auth_context_var.reset(before)


async def main() -> None:
    baskets = holdfast.Sessions(Basket)
    server: FastMCP[Any] = FastMCP("shop")
    server.add_extension(fastmcp_tasks.TasksExtension(url="memory://"))
    baskets.install(server)
    runs: list[str] = []

    @server.tool(task=True)
    @baskets.writes
    async def add(article: str, basket: Basket) -> dict[str, list[str]]:
        runs.append(article)
        basket.items.append(article)
        if article == "broken":
            raise ValueError("it is broken")
        return {"items": basket.items}

    async with Client(server) as client:

        async def call(tool: str, key: str | None = None, **arguments: str) -> Any:
            meta = {IDEMPOTENCY_KEY: key} if key else None
            answer = await client.call_tool(tool, arguments, meta=meta, raise_on_error=False)
            return answer.structured_content or [part.text for part in answer.content]

        mine = (await call("create_basket"))["basket_id"]
        said = {
            "plain": [await call("add", article="a", basket_id=mine) for _ in range(2)],
            "keyed": await asyncio.gather(*(call("add", "k", article="b", basket_id=mine) for _ in range(10))),
            "another": await call("add", "k", article="c", basket_id=mine),
            "broken": await call("add", article="broken", basket_id=mine),
        }
        with user("alice"):
            hers = (await call("create_basket"))["basket_id"]
            said["alice"] = [await call("add", "k", article="d", basket_id=hers) for _ in range(2)]
        with user("bob"):
            said["bob"] = await call("add", "k", article="d", basket_id=hers)
        said["kept"] = (await call("resume_basket", basket_id=mine))["state"]["items"]
    print(json.dumps({**said, "runs": runs}))


if __name__ == "__main__":
    asyncio.run(main())
