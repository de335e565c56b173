"""Against real servers, and in numbers: restarts under load, ten thousand calls under faults, one session for two."""

import asyncio
import random
from collections import Counter
from typing import Any, Literal

import pytest

import holdfast
from holdfast import StoreMemory
from holdfast.testing import Fault, FaultServer
from tests.links.kit import FAMILIES, link_to, text_of, tool, until
from tests.links.real import RealServer

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.restart")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_real_server_restarted_under_fifty_calls(kind: Literal["sdk", "fastmcp"]) -> None:
    limits = holdfast.Limits(
        replays=100, backoff=0.5, start=60
    )  # a server needs many seconds to start on a busy machine
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


@pytest.mark.promise("link.once")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_ten_thousand_calls_under_random_faults_have_one_effect_or_none(era: Any) -> None:
    """Five thousand in each era. Faults strike one request in ten, before or after the effect."""
    chance = random.Random(7)
    faults = [fault for fault in Fault if fault not in (Fault.HANG, Fault.BAD_SESSION_ID, Fault.CHANGE_ERA)]
    async with (
        FaultServer(era=era, answers="sse", resumable=True) as server,
        link_to(server.url, stream=False, stateful=False) as link,
    ):
        outcomes: Counter[str] = Counter()

        async def work(number: int) -> None:
            for turn in range(250):
                if chance.random() < 0.1:
                    fault = chance.choice(faults)
                    effect = fault in (Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY) and chance.random() < 0.5
                    status = chance.choice((400, 401, 404, 429, 500, 502))
                    server.plan(fault, method="tools/call", effect=effect, status=status)
                call, safe = f"{number}-{turn}", chance.random() < 0.5
                try:
                    await link.request("tools/call", tool("effect", call=call), safe=safe)
                    outcome = "answer"
                except holdfast.HoldfastError as error:
                    outcome = next(family.__name__ for family in FAMILIES if isinstance(error, family))
                outcomes[outcome] += 1
                effects = server.effects[call]
                if not safe:
                    assert effects <= 1, f"{call} had {effects} effects"
                    if outcome == "answer":
                        assert effects == 1
                    if outcome in ("Unavailable", "Rejected") and effects:
                        # The one refusal that comes after the effect: an answer that can't be read.
                        raise AssertionError(f"{call}: {outcome} although it was executed")

        await asyncio.gather(*(work(number) for number in range(20)))
        assert sum(outcomes.values()) == 5000
        assert outcomes["answer"] > 4000, outcomes
        assert link.statistics().opens == 1


@pytest.mark.promise("link.shared")
async def test_two_links_share_one_session_and_every_caller_gets_its_own_answer() -> None:
    async with holdfast.open_store("memory:") as store, FaultServer(answers="sse") as server:
        first = link_to(server.url, memory=StoreMemory(store, "shared"))
        await first.request("tools/list")
        second = link_to(server.url, memory=StoreMemory(store, "shared"))

        async def call(link: holdfast.Link, text: str) -> None:
            steps: list[float] = []

            async def progress(done: float, total: float | None, message: str | None) -> None:
                steps.append(done)

            result = await link.request("tools/call", tool("progress", steps=2, text=text), on_progress=progress)
            assert text_of(result) == text
            assert steps == [1, 2]

        await asyncio.gather(
            *(call(link, f"{name}{n}") for n in range(500) for name, link in (("a", first), ("b", second)))
        )
        assert first.session_id == second.session_id
        assert server.sessions.handshakes == 1
        await first.close()
        await second.close(end=True)
        assert server.sessions.deletes == 1
