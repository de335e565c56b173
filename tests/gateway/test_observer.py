"""What is reported of each request that a gateway serves."""

from collections import Counter
from pathlib import Path

import pytest

from holdfast.events import CallerRefused, Event, GatewayStarted, GatewayStopped, RequestSent, RequestServed
from holdfast.gateway.auth import new_token
from holdfast.testing import Fault, FaultServer, Refusal
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


def served(events: list[Event]) -> list[RequestServed]:
    return [event for event in events if isinstance(event, RequestServed)]


@pytest.mark.promise("observe.events")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_each_request_is_reported_once_with_its_outcome(tmp_path: Path, era: str) -> None:
    events: list[Event] = []
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, sink=events.append, sessions={"steer": False}) as program,
        RawClient(program.url) as client,
    ):
        assert program.gateway is not None
        gate = program.gateway
        await until(lambda: gate.table.tools, 20)
        if era == "2025":
            await client.initialize()
        call = client.call if era == "2025" else client.call_2026
        events.clear()
        assert not (await call("counter__count")).result.get("isError")
        await call("ghost__tool")
        http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", 500, b"", {}))
        await call("counter__count")
        found = served(events)
        sent = [event for event in events if isinstance(event, RequestSent) and event.method == "tools/call"]
    assert [event.outcome for event in found] == ["ok", "refused", "unknown"]
    assert [event.era for event in found] == [era] * 3
    assert [event.name for event in found] == ["counter__count", "ghost__tool", "counter__count"]
    assert found[0].backend == "counter"
    assert found[0].principal == "anonymous"
    assert found[0].transport == "tcp"
    assert [event.outcome for event in sent] == ["ok", "unknown"]
    assert all(event.seconds >= 0 for event in (*found, *sent))
    kinds = Counter(type(event) for event in events)
    assert (kinds[GatewayStopped], kinds[RequestServed]) == (1, 3)


@pytest.mark.promise("observe.events")
async def test_a_refused_caller_is_reported_without_the_token(tmp_path: Path) -> None:
    events: list[Event] = []
    _, hashed = new_token()
    auth = {"tokens": [{"hash": hashed, "principal": "alice"}]}
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, sink=events.append, auth=auth) as program,
        RawClient(program.url, "hft_wrong-token") as client,
    ):
        answer = await client.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert answer.status == 401
    assert any(isinstance(event, GatewayStarted) for event in events)
    [refused] = [event for event in events if isinstance(event, CallerRefused)]
    assert (refused.status, refused.principal, refused.address) == (401, None, "127.0.0.1")
    assert "wrong-token" not in repr(events)
