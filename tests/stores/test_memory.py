"""The memory store passes the whole suite, and keeps the few promises that only it makes."""

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.stores.contract import Store
from holdfast.testing import StoreSuite


class _Shared:
    """A second handle on a memory store is the store itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __aenter__(self) -> Store:
        return self._store

    async def __aexit__(self, *_: object) -> None:
        pass


class TestMemoryStore(StoreSuite):
    def open(self, clock: Clock):
        opened = self.__dict__.setdefault("opened", {})
        if id(clock) in opened:
            return _Shared(opened[id(clock)])
        opened[id(clock)] = store = holdfast.open_store("memory:", clock=clock)
        return store


@pytest.mark.promise("store.closed")
@pytest.mark.anyio
async def test_a_closed_memory_store_says_so() -> None:
    store = holdfast.open_store("memory:")
    with pytest.raises(holdfast.errors.LeaseClosed):
        await store.get("kind", "id")
    async with store:
        assert await store.get("kind", "id") is None
    with pytest.raises(holdfast.errors.LeaseClosed):
        await store.get("kind", "id")
