"""One gateway in front of a raw server of each era, for all walks."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from tests import conftest, no_tasks
from tests.deadlines import until
from tests.eras.cells import ERAS, Era
from tests.eras.server import EraServer
from tests.eras.walk import BACKEND
from tests.gateway.gateways import gateway

Rig: TypeAlias = dict[Era, tuple[EraServer, str]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def no_leaks() -> Iterator[None]:
    """Counted over all walks: a gateway keeps its connections from one to the next."""
    before = conftest._open_files()
    yield
    gc.collect()
    assert not {fd: name for fd, name in conftest._open_files().items() if before.get(fd) != name}, "files left open"


@pytest.fixture(scope="module")
async def rig(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    before = no_tasks._tasks()
    async with AsyncExitStack() as stack:
        rig: Rig = {}
        for era in ERAS:
            server = await stack.enter_async_context(EraServer(era).serving())
            folder = tmp_path_factory.mktemp(era)
            servers = {BACKEND: {"url": server.url}}
            program = await stack.enter_async_context(gateway(folder, servers, sessions={"steer": False}))
            await until(lambda program=program: program.gateway and program.gateway.table.tools)
            rig[era] = (server, program.url)
        yield rig
    await until(lambda: not no_tasks._tasks() - before)
