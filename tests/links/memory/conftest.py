"""A store, and a server of JSON documents."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.links import HttpMemory, Memory, StoreMemory
from tests.links.memory.documents import Documents
from tests.links.web import web_server


@pytest.fixture
async def documents() -> AsyncIterator[Documents]:
    served = Documents(etags=True)
    async with web_server(served.handle) as url:
        served.url = f"{url}/sessions/{{name}}"
        yield served


@pytest.fixture
async def store() -> AsyncIterator[holdfast.Store]:
    async with holdfast.open_store("memory:") as store:
        yield store


@pytest.fixture(params=["store", "http"])
def memories(request: pytest.FixtureRequest, store: holdfast.Store, documents: Documents) -> Any:
    """Makes memories of one and the same session."""

    def make() -> Memory:
        if request.param == "store":
            return StoreMemory(store, "one")
        return HttpMemory(documents.url, name="one")

    return make
