"""When lists are fetched again after announcements: the first of each kind at once, repeats together and later."""

import asyncio

import pytest

from holdfast.gateway.backends.lists import refetch as module
from holdfast.gateway.backends.lists.refetch import Refetch
from tests.deadlines import until


class Server:
    """A server whose lists are fetched: what each fetch was for."""

    def __init__(self) -> None:
        self.fetched: list[frozenset[str]] = []
        self.refetch = Refetch("s", self._fetch)

    async def _fetch(self, announced: frozenset[str]) -> None:
        self.fetched.append(announced)


@pytest.mark.promise("gateway.true-lists")
async def test_the_first_change_of_each_kind_is_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPACING", 600.0)
    server = Server()
    for number, kind in enumerate(("tools", "prompts", "resources"), 1):
        server.refetch.soon(kind)
        await until(lambda number=number: len(server.fetched) == number)
    assert server.fetched == [{"tools"}, {"prompts"}, {"resources"}]
    server.refetch.close()


@pytest.mark.promise("gateway.true-lists")
async def test_a_change_of_another_kind_takes_a_repeated_one_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPACING", 600.0)
    server = Server()
    server.refetch.soon("tools")
    await until(lambda: len(server.fetched) == 1)
    server.refetch.soon("tools")
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(server.fetched) == 1
    server.refetch.soon("prompts")
    await until(lambda: len(server.fetched) == 2)
    assert server.fetched[1] == {"tools", "prompts"}
    server.refetch.close()


@pytest.mark.promise("gateway.true-lists")
async def test_a_thousand_repeats_are_fetched_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPACING", 0.05)
    server = Server()
    server.refetch.soon("tools")
    await until(lambda: len(server.fetched) == 1)
    for _ in range(1000):
        server.refetch.soon("tools")
    await until(lambda: len(server.fetched) == 2)
    assert server.refetch._task is None or not server.refetch._due
    server.refetch.close()
