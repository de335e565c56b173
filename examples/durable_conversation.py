"""A conversation that goes on in another process: the same run id, the same session, until it is ended.

`python examples/durable_conversation.py` plays both processes, one after the other, against a server that counts.
"""

import asyncio
import tempfile
from pathlib import Path

import holdfast
from holdfast.testing import FaultServer


async def turn(server: holdfast.Server, store_url: str) -> str:
    async with holdfast.open_store(store_url) as store, holdfast.run("conversation-7", store=store) as run:
        result = await server.call_tool("count")
        text = result.content[0].text
        if text == "3":
            await run.end()  # else the session waits for whoever continues
        return text


async def main() -> None:
    async with FaultServer() as counter:
        server = holdfast.Server("counter", url=counter.url)
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'runs.db'}"
            print(*[await turn(server, url) for _ in range(3)])
        print("sessions left at the server:", len(counter.sessions.sessions))


asyncio.run(main())
