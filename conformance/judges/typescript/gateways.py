"""Gateways on request, for a suite that is not in Python: `python -m conformance.judges.typescript.gateways COMMAND …`.

POST the URL of a server to the address in HOLDFAST_GATEWAYS and get the URL of a gateway in front of it; DELETE that, and
the gateway ends.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from conformance.judges import ways
from conformance.judges.relay import served
from holdfast.links import HttpTarget


class Gateways:
    """The gateways that run, by their URL, each in a task of its own."""

    def __init__(self) -> None:
        self._running = dict[str, tuple[asyncio.Task[None], asyncio.Event]]()

    async def begin(self, request: Request) -> Response:
        server, url, over = (await request.body()).decode(), asyncio.get_running_loop().create_future(), asyncio.Event()
        task = asyncio.create_task(self._run(server, url, over))
        await asyncio.wait((url, task), return_when=asyncio.FIRST_COMPLETED)
        if not url.done():
            await task
        self._running[url.result()] = task, over
        return PlainTextResponse(url.result())

    async def end(self, request: Request) -> Response:
        task, over = self._running.pop((await request.body()).decode())
        over.set()
        await task
        return Response(status_code=204)

    async def _run(self, server: str, url: asyncio.Future[str], over: asyncio.Event) -> None:
        async with ways.gateway(HttpTarget(server)) as address:
            url.set_result(address)
            await over.wait()


async def main(command: list[str]) -> int:
    gateways = Gateways()
    app = Starlette(
        routes=[
            Route("/", gateways.begin, methods=["POST"]),
            Route("/", gateways.end, methods=["DELETE"]),
        ]
    )
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(served(app))
        environment: dict[str, Any] = {**os.environ, "HOLDFAST_GATEWAYS": origin}
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
