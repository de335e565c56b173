"""One call has one effect or none, whatever fails."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import holdfast
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import FAMILIES, link_to, tool

pytestmark = pytest.mark.anyio


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
