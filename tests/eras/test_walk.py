"""Every feature of both revisions in every cell where it has a meaning, walked with a raw client and a raw server."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.deadlines import patience
from tests.eras.cells import WAYS, Cell, Feature
from tests.eras.conftest import Rig
from tests.eras.features import cases
from tests.eras.known_wrong import strangers, symptom
from tests.eras.walk import Walk

WRONG_SECONDS = (
    0.4  # for a cell that is known to be wrong: many wait for what never comes, and one too slow stays wrong
)


def _case(feature: Feature, cell: Cell) -> object:
    wrong = symptom(feature.name, cell)
    marks = [pytest.mark.xfail(reason=wrong, strict=True)] if wrong is not None else []
    return pytest.param(feature, cell, id=f"{cell.name}-{feature.id}", marks=marks)


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize(("feature", "cell"), [_case(*each) for each in cases(*WAYS)])
async def test_a_feature_holds_in_a_cell(feature: Feature, cell: Cell, rig: Rig) -> None:
    server, url = rig[cell.server]
    server.reset()
    seconds = patience(5) if symptom(feature.name, cell) is None else WRONG_SECONDS
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(seconds):
            await feature.walk(Walk(cell, server, url, stack))


@pytest.mark.promise("gateway.whole-protocol")
def test_every_known_wrong_cell_is_one_of_the_table() -> None:
    assert strangers() == []
