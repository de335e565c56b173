"""A conversation that continues in another process: the same run id has the same session until the run is ended.

`python examples/durable_conversation.py` runs all turns in one process, against a server that counts.
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
            await run.end()  # otherwise the session is kept for the next turn
        return text


async def main() -> None:
    async with FaultServer() as counter:
        server = holdfast.Server("counter", url=counter.url)
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'runs.db'}"
            print(*[await turn(server, url) for _ in range(3)])
        print("sessions left at the server:", len(counter.sessions.sessions))


asyncio.run(main())
