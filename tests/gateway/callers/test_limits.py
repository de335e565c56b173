"""The rate of a caller's calls: a bucket of its own, which no other caller empties."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.models import Principal
from holdfast.gateway.auth import new_token
from holdfast.gateway.callers.limits import CallRates
from holdfast.gateway.config.settings import ClientLimits
from holdfast.testing import FaultServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

ALICE, BOB = Principal("alice"), Principal("bob")


@pytest.mark.promise("callers.rates")
@given(
    st.floats(0.1, 1_000),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 60)), min_size=1, max_size=60),
)
def test_no_caller_makes_more_calls_than_burst_and_rate_allow(
    rate: float, burst: int, steps: list[tuple[float, int]]
) -> None:
    now, made = 0.0, 0
    rates = CallRates(lambda: ClientLimits(calls_per_second=rate, burst=burst), lambda: now)
    for pause, calls in steps:
        now += pause
        wait = rates.take(ALICE, calls)
        if wait is None:
            made += min(calls, burst)
        else:
            assert wait > 0
            now += wait + 1e-6
            assert rates.take(ALICE, calls) is None  # after the wait that it was told, it may
            made += min(calls, burst)
        assert made <= burst + rate * now + 1
        assert rates.take(BOB, 1) is None or rate * now < 60  # its bucket is its own


@pytest.mark.promise("callers.rates")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_greedy_caller_gets_429_and_others_go_on(tmp_path: Path, era: str) -> None:
    (one, hash_one), (two, hash_two) = new_token(), new_token()
    auth = {"tokens": [{"hash": hash_one, "principal": "alice"}, {"hash": hash_two, "principal": "bob"}]}
    async with (
        FaultServer() as http,
        gateway(
            tmp_path,
            {"counter": {"url": http.url}},
            auth=auth,
            clients={"calls_per_second": 0.01, "burst": 4},
            sessions={"steer": False},
        ) as program,
        RawClient(program.url, one) as greedy,
        RawClient(program.url, two) as polite,
    ):
        for client in (greedy, polite):
            if era == "2025":
                await client.initialize()
        ask = "ask" if era == "2025" else "ask_2026"
        answers = [await getattr(greedy, ask)("tools/list") for _ in range(6)]
        statuses = [answer.status for answer in answers]
        first = 3 if era == "2025" else 4  # initialize was one
        assert statuses == [200] * first + [429] * (6 - first)
        assert int(answers[-1].headers["retry-after"]) > 10
        assert answers[-1].error["code"] == -32000
        assert (await getattr(polite, ask)("tools/list")).status == 200
