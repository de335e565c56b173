"""A link belongs to one event loop at a time, and starts over in the next."""

import asyncio
import gc

import pytest

import holdfast
from holdfast.core.lifecycle import LinkState
from holdfast.testing import FaultServer
from tests.links.quick_links import link_to


@pytest.mark.promise("link.loops")
def test_a_link_belongs_to_one_event_loop_at_a_time() -> None:
    async def open_one() -> tuple[holdfast.Link, int]:
        async with FaultServer() as server:
            link = link_to(server.url)
            await link.request("tools/list")
            await link.close()
            return link, server.port

    async def again(link: holdfast.Link, port: int) -> None:
        server = FaultServer()
        server.port = port
        async with server:
            await link.request("tools/list")
            await link.close()

    link, port = asyncio.run(open_one())
    asyncio.run(again(link, port))
    assert link.generation == 2


@pytest.mark.promise("link.loops")
@pytest.mark.filterwarnings("ignore")  # whoever closes a loop under a link leaves its sockets to the garbage collector
def test_a_link_whose_loop_died_under_it_starts_over_in_the_next() -> None:
    ports: list[int] = []

    async def use(link: holdfast.Link | None, close: bool) -> holdfast.Link:
        server = FaultServer()
        server.port = ports[0] if ports else 0
        async with server:
            ports[:] = [server.port]
            link = link or link_to(server.url, stream=False)
            await link.request("tools/list", timeout=5)
            if close:
                await link.close()
        return link

    loop = asyncio.new_event_loop()
    link = loop.run_until_complete(use(None, False))
    loop.close()
    again = asyncio.new_event_loop()
    again.run_until_complete(use(link, True))
    again.close()
    assert link.phase is LinkState.CLOSED
    gc.collect()


@pytest.mark.promise("link.loops")
def test_a_link_whose_first_use_failed_works_in_the_next_loop() -> None:
    async def fail() -> tuple[holdfast.Link, int]:
        async with FaultServer() as server:
            await server.refuse()
            link = link_to(server.url)
            with pytest.raises(holdfast.errors.ConnectFailed):
                await link.request("ping")
            return link, server.port

    async def work(link: holdfast.Link, port: int) -> None:
        server = FaultServer()
        server.port = port
        async with server:
            await link.request("tools/list")
            await link.close()

    link, port = asyncio.run(fail())
    asyncio.run(work(link, port))
