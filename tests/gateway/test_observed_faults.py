"""Calls under random faults: metrics, audit lines, spans and events each equal what the clients counted, by outcome.

OBSERVED_CALLS makes more of them than the suite does: `OBSERVED_CALLS=5000 make test ARGS=tests/gateway/…`.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import Event, RequestServed
from holdfast.sinks.audit.verify import verify
from holdfast.testing import Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.fronts.http.test_metrics import SERVED, counts, page
from tests.gateway.gateways import gateway
from tests.sinks.collector import collecting

CALLS = int(os.environ.get("OBSERVED_CALLS", "1000"))
CLIENTS = 8
SECRET = "an-argument-that-is-never-written"
_FAMILIES = {"Unavailable": "unavailable", "OutcomeUnknown": "unknown", "Rejected": "rejected"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def outcome_for(answer: Answer) -> str:
    """How a call ended, as its client sees it."""
    message = answer.last
    if "error" in message:
        return _FAMILIES.get(message["error"].get("data", {}).get("family"), "error")
    result = message["result"]
    if not result.get("isError"):
        return "ok"
    family = result.get("_meta", {}).get("dev.holdfast/error", {}).get("family")
    return _FAMILIES[family] if family is not None else "tool_error"


def as_seen(outcome: str) -> str:
    """A refusal of the gateway's own is an error like one of the server's, for who reads the answer."""
    return "error" if outcome == "refused" else outcome


def plan_fault(http: FaultServer) -> None:
    kind = random.randrange(8)
    if kind == 0:
        http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", random.choice((500, 502)), b"", {}))
    elif kind == 1:
        http.plan(random.choice((Fault.CLOSE, Fault.RESET)), method="tools/call", effect=random.random() < 0.5)
    elif kind == 2:
        http.plan(Fault.CLOSE_IN_BODY, method="tools/call", effect=True)
    elif kind == 3:
        http.plan(random.choice((Fault.BROKEN_JSON, Fault.NOT_JSON_RPC, Fault.HTML)), method="tools/call")
    elif kind == 4:
        http.sessions.sessions.clear()
    elif kind == 5:
        http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("busy", 503, b"", {"retry-after": "0"}))


@pytest.mark.promise("observe.equal")
async def test_what_is_written_of_calls_under_faults_is_what_their_clients_counted(
    tmp_path: Path, stack: ExitStack
) -> None:
    random.seed(5)
    path, events = tmp_path / "audit.jsonl", list[Event]()
    seen: Counter[str] = Counter()
    collector, endpoint = stack.enter_context(collecting())
    settings: dict[str, Any] = {
        "observe": {"audit": {"to": str(path)}, "metrics": {}, "traces": {"endpoint": endpoint}},
        "sessions": {"steer": False},
    }
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url, "circuit": 0}}, sink=events.append, **settings) as program,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)

        async def work(number: int) -> None:
            async with RawClient(program.url) as client:
                if number % 2:
                    await client.initialize()
                for _ in range(CALLS // CLIENTS):
                    if random.random() < 0.2:
                        plan_fault(http)
                    call = client.call if number % 2 else client.call_2026
                    tool = "counter__count" if random.random() < 0.95 else "counter__fail"
                    answer = await call(tool, text=SECRET)
                    seen[outcome_for(answer)] += 1

        async def go_down() -> None:
            while True:
                await until(lambda: sum(seen.values()) % 200 > 150, 100)
                await http.refuse()
                await http.cut()
                await until(lambda: sum(seen.values()) % 200 < 150, 100)
                await http.listen()

        down = asyncio.create_task(go_down())
        async with asyncio.timeout(patience(100)):
            await asyncio.gather(*(work(number) for number in range(CLIENTS)))
        down.cancel()
        await asyncio.wait([down])
        status, text = await page(program.url.replace("/mcp", "/metrics"))
        assert status == 200
    assert sum(seen.values()) == CALLS // CLIENTS * CLIENTS
    assert {"ok", "unknown", "unavailable", "rejected"} <= seen.keys(), seen
    reported = Counter(
        as_seen(event.outcome) for event in events if isinstance(event, RequestServed) and _is_call(event.method)
    )
    assert reported == seen
    measured: Counter[str] = Counter()
    for (method, outcome), value in counts(text, SERVED, "mcp_method_name", "outcome").items():
        if _is_call(method):
            measured[as_seen(outcome)] += int(value)
    assert measured == seen
    lines = path.read_bytes().splitlines()
    assert verify((str(number), line) for number, line in enumerate(lines, 1)).holds
    written = Counter(as_seen(entry["outcome"]) for entry in map(json.loads, lines) if entry["type"] == "call")
    assert written == seen
    spans = [span for span in collector.spans if (span.kind, span.scope) == ("SERVER", "holdfast")]
    traced = Counter(
        as_seen(str(span.attributes["holdfast.outcome"]))
        for span in spans
        if span.attributes["mcp.method.name"] == "tools/call"
    )
    assert traced == seen
    assert SECRET not in path.read_text() + text
    assert not collector.says(SECRET)


def _is_call(method: str) -> bool:
    return method == "tools/call"
