"""Real servers in processes of their own: the SDK's MCPServer and FastMCP over uvicorn, killed and started again."""

import asyncio
import socket
from types import TracebackType
from typing import Literal, Self

from tests.deadlines import until
from tests.links import server_program
from tests.preloaded import Child


class RealServer:
    """One server on one port, for as long as the block lasts."""

    def __init__(
        self, kind: Literal["sdk", "fastmcp", "ledger"], *, json: bool = False, keep_alive: int = 5, file: str = ""
    ) -> None:
        self._arguments = (kind, "json" if json else "sse", keep_alive, file)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        self._process = Child(server_program.main, self.port, *self._arguments)
        await until(self._listens, 30)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.exitcode is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.sleep(0)

    async def restart(self) -> None:
        await self.kill()
        await self.start()
