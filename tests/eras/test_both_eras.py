"""A server that offers both eras, the choice left to us: a client gets what it gets from a server of its own era."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests import no_tasks
from tests.deadlines import patience, until
from tests.eras.cells import Cell, Era, Feature, cases
from tests.eras.features import handshake, questions, tools
from tests.eras.server import EraServer, serving_both_eras
from tests.eras.walk import BACKEND, Walk
from tests.gateway.gateways import gateway

WALKED = (handshake.SUBJECT, tools.SUBJECT, questions.SUBJECT)


@pytest.fixture(scope="module")
async def both(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[dict[Era, EraServer], str]]:
    before = no_tasks._tasks()
    async with serving_both_eras() as servers:
        known = {BACKEND: {"url": servers["2025"].url}}
        folder = tmp_path_factory.mktemp("both")
        async with gateway(folder, known, sessions={"steer": False}) as program:
            await until(lambda: program.gateway and program.gateway.table.tools)
            yield servers, program.url
    await until(lambda: not no_tasks._tasks() - before)


def _cases() -> list[object]:
    found: list[object] = []
    for feature, cell in cases("gateway", "stdio", "dispatcher"):
        if cell.client == cell.server and feature.subject in WALKED:
            found.append(pytest.param(feature, cell, id=f"{cell.way}-{cell.client}-{feature.id}"))
    return found


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize(("feature", "cell"), _cases())
async def test_a_feature_holds_at_a_server_of_both_eras(
    feature: Feature, cell: Cell, both: tuple[dict[Era, EraServer], str]
) -> None:
    servers, url = both
    for server in servers.values():
        server.reset()
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(patience(5)):
            await feature.walk(Walk(cell, servers[cell.client], url, stack))
