"""`python mcp1_client.py URL`, in an environment with the SDK's 1.x line: its client in a typical use."""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client


async def elicit(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"row": 7})


async def main(url: str) -> None:
    progress: list[float] = []

    async def told(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicit) as session,
    ):
        await session.initialize()

        async def call(name: str, **arguments: Any) -> str:
            return (await session.call_tool(name, arguments)).content[0].text

        out: dict[str, Any] = {
            "tools": [tool.name for tool in (await session.list_tools()).tools],
            "add": await call("real__add", a=2, b=3),
            "counts": [await call("counter__count") for _ in range(3)],
        }
        await session.call_tool("real__steps", {"count": 3}, progress_callback=told)
        out["progress"] = progress
        out["booked"] = await call("real__book")
        out["resource"] = (await session.read_resource("note://one")).contents[0].text
        out["prompt"] = (await session.get_prompt("real__greet", {"name": "moss"})).messages[0].content.text
    print(json.dumps(out))


asyncio.run(main(sys.argv[1]))
