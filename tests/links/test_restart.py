"""Real servers that are killed and started again under calls."""

import asyncio
from typing import Any, Literal

import pytest

import holdfast
from tests.deadlines import until
from tests.links.quick_links import FAMILIES, link_to, text_of, tool
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.restart")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_real_server_restarted_under_fifty_calls(kind: Literal["sdk", "fastmcp"]) -> None:
    limits = holdfast.links.Limits(
        replays=100, backoff=0.5, start=60, circuit=0
    )  # a start takes long on a busy machine
    async with RealServer(kind) as server, link_to(server.url, era="2025", limits=limits) as link:
        await link.request("tools/list")
        calls = [
            asyncio.ensure_future(link.request("tools/call", tool("slowly", a=n), safe=n % 2 == 0)) for n in range(50)
        ]
        await until(lambda: link.statistics().in_flight == 50)
        await server.restart()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for n, outcome in enumerate(outcomes):
            if isinstance(outcome, dict):
                assert text_of(outcome) == str(n)
            else:
                assert isinstance(outcome, FAMILIES), outcome
                assert n % 2, f"a safe call was not replayed: {outcome!r}"
        assert text_of(await link.request("tools/call", tool("add", a=2, b=3), safe=True)) == "5"
        assert (link.statistics().opens, link.statistics().handshakes) == (1, 2)


@pytest.mark.promise("link.restart")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_real_servers_are_served_in_the_era_that_they_offer(kind: Any, form: str) -> None:
    async with RealServer(kind, json=form == "json") as server:
        async with link_to(server.url) as link:
            assert [text_of(await link.request("tools/call", tool("turn"))) for _ in range(3)] == ["1", "2", "3"]
            assert link.statistics().era == "2025"  # they offer both, and only that era holds the session
        async with link_to(server.url, stateful=False) as link:
            assert text_of(await link.request("tools/call", tool("add", a=1, b=2))) == "3"
            assert link.statistics().era == "2026"
        for era in ("2025", "2026"):
            async with link_to(server.url, era=era) as link:
                assert text_of(await link.request("tools/call", tool("add", a=1, b=2))) == "3"
                assert link.era is not None
                assert link.era.value == era
