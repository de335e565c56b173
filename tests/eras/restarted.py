"""A walk over a gateway that is restarted on its store."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.eras.cells import Cell
from tests.eras.client import Json
from tests.eras.server import EraServer
from tests.eras.walk import BACKEND, Walk
from tests.gateway.gateways import gateway


class RestartedGateway:
    """A gateway before one server. After a restart it has another port, and its clients go there."""

    def __init__(self, server: EraServer, folder: Path) -> None:
        self.server = server
        self.url = ""
        self._folder = folder
        self._running = AsyncExitStack()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["RestartedGateway"]:
        try:
            await self._start()
            yield self
        finally:
            await self._running.aclose()

    async def _start(self) -> None:
        servers = {BACKEND: {"url": self.server.url}}
        store = f"sqlite:///{self._folder}/store.db"
        settings = {"steer": False, "drain": 0.1}
        starting = gateway(self._folder, servers, store=store, sessions=settings)
        program = await self._running.enter_async_context(starting)
        await until(lambda: program.gateway is not None and program.gateway.table.tools)
        if self.server.era == "2026":
            await until(lambda: self.server.listens)
        self.url = program.url

    async def restart(self) -> None:
        """Stop it, and start another one on the same store."""
        await self._running.aclose()
        await self._start()


class RestartedWalk(Walk):
    """`after_handshake` restarts the gateway once the first client is known to it, `before_answers` whenever a 2026
    client is about to answer."""

    def __init__(
        self,
        cell: Cell,
        restarted: RestartedGateway,
        stack: AsyncExitStack,
        *,
        after_handshake: bool = False,
        before_answers: bool = False,
    ) -> None:
        super().__init__(cell, restarted.server, restarted.url, stack)
        self._restarted = restarted
        self._after_handshake = after_handshake
        self._before_answers = before_answers
        self._clients: list[Any] = []
        self.restarts = 0

    async def restart(self) -> None:
        await self._restarted.restart()
        self.restarts += 1
        self._gateway_url = self._restarted.url
        for client in self._clients:
            client.url = self._restarted.url

    async def client(self, capabilities: Json | None = None, **known: Any) -> Any:
        client = await super().client(capabilities, **known)
        self._clients.append(client)
        if self._after_handshake and not self.restarts:
            await self.restart()
        if self._before_answers:
            answers_to = client.answers_to

            async def answer_after_restart(result: Json) -> Json:
                await self.restart()
                return await answers_to(result)

            client.answers_to = answer_after_restart
        return client
