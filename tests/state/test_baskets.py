"""The basket examples over real HTTP: both frameworks, both eras, two processes on one store, restarts, strangers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from tests.state.real import FRAMEWORKS, Replica, replicas

pytestmark = pytest.mark.anyio

ERAS = {"2025": "legacy", "2026": "auto"}


@asynccontextmanager
async def client(url: str, era: str, token: str | None = None) -> AsyncGenerator[mcp.Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=ERAS[era]) as session:  # type: ignore[arg-type]
            yield session


async def text(session: mcp.Client, tool: str, **arguments: Any) -> str:
    answer = await session.call_tool(tool, arguments)
    said = "\n".join(getattr(part, "text", "") for part in answer.content)
    if answer.is_error:
        raise AssertionError(said)
    return said


async def value(session: mcp.Client, tool: str, **arguments: Any) -> Any:
    answer = await session.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refusal(session: mcp.Client, tool: str, **arguments: Any) -> str:
    answer = await session.call_tool(tool, arguments)
    assert answer.is_error
    said = str(getattr(answer.content[0], "text", ""))
    return said.removeprefix(f"Error executing tool {tool}: ")


def count(items: dict[str, Any], article: str = "apple") -> int:
    return int(items.get("result", items)[article])


@pytest.mark.promise("state.real")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_twenty_parallel_calls_in_two_processes_are_twenty(framework: str, url: str) -> None:
    async with replicas(Replica(framework, url), Replica(framework, url)) as (one, other):
        for era in ERAS:
            async with client(one.url, era) as here, client(other.url, era) as there:
                basket = (await value(here, "create_basket", note="weekend"))["session_id"]
                both = (here, there)
                await asyncio.gather(
                    *(text(both[number % 2], "add", article="apple", session_id=basket) for number in range(20)),
                    *(
                        text(both[number % 2], "add", article=f"pear {number}", session_id=basket)
                        for number in range(4)
                    ),
                    text(here, "note", text="soon", session_id=basket),
                )
                held = (await value(there, "resume_basket", session_id=basket))["state"]
                assert held["items"] == {"apple": 20, **{f"pear {number}": 1 for number in range(4)}}
                assert held["note"] == "soon"
