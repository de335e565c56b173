"""Limits: how many sessions may begin, also at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import LimitReached
from holdfast.gateway.auth import new_token
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.sessions.admission import check_limits
from holdfast.testing import FaultServer
from tests.deadlines import patience
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.limits")
async def test_limits_answer_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    (alice, alice_hash), (bob, bob_hash) = new_token(), new_token()
    auth = {"tokens": [{"hash": alice_hash, "principal": "alice"}, {"hash": bob_hash, "principal": "bob"}]}
    async with FaultServer() as http:
        limits = {"per_principal": 2, "total": 3}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, auth=auth, sessions=limits) as program:
            clients = [RawClient(program.url, token) for token in (alice, alice, alice, bob, bob)]
            statuses = []
            for client in clients:
                answer = await client.initialize()
                statuses.append(answer.status)
                if answer.status == 503:
                    assert int(answer.headers["retry-after"]) > 0
            assert statuses == [200, 200, 503, 200, 503]
            await clients[0].delete()
            assert (await clients[4].initialize()).status == 200
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.limits")
async def test_sessions_that_begin_together_are_counted_together_and_none_too_many_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultServer() as http:
        limits = {"per_principal": 12}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=limits) as program:
            gate = program.gateway
            assert gate is not None
            together, count = asyncio.Barrier(20), gate.store.count
            waited = 0

            async def slow(**query: Any) -> int:
                nonlocal waited
                if "principal" in query and waited < 20:
                    waited += 1
                    async with asyncio.timeout(patience(10)):  # a lock would keep them apart
                        await together.wait()
                return await count(**query)

            monkeypatch.setattr(gate.store, "count", slow)
            clients = [RawClient(program.url) for _ in range(20)]
            statuses = [(answer.status) for answer in await asyncio.gather(*(each.initialize() for each in clients))]
            assert sorted(statuses) == [200] * 12 + [503] * 8
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.limits")
async def test_limits_hold_against_parallel_beginnings(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"per_principal": 3}) as program:
            clients = [RawClient(program.url) for _ in range(12)]
            answers = await asyncio.gather(*(client.initialize() for client in clients))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 9
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.limits")
@pytest.mark.parametrize(("mine", "total", "whose"), [(2, 2, "this caller's"), (1, 5, "all callers'")])
def test_a_refusal_says_whose_limit_is_reached(mine: int, total: int, whose: str) -> None:
    settings = Settings(per_principal=2, total=5)
    check_limits(settings, 1, 4)
    with pytest.raises(LimitReached, match=f"sessions, {whose}, are open"):
        check_limits(settings, mine, total)
