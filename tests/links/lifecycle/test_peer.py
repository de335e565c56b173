"""What counts towards the circuit that all links to one server share."""

import sys
from dataclasses import replace

import pytest

import holdfast
from holdfast.core.lifecycle import CircuitState
from holdfast.links import CommandTarget
from holdfast.testing import FaultServer
from tests.links.quick_links import FAST, link_to
from tests.links.wires.stdio.children import QUICK

pytestmark = pytest.mark.anyio

SERVER = """
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "x/crash":
        os._exit(3)
    if "id" in m and m.get("method") != "x/hang":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
"""


@pytest.mark.promise("link.circuit")
@pytest.mark.parametrize("method", ["x/crash", "x/hang"])
async def test_a_call_that_kills_or_hangs_its_own_program_shuts_out_no_other_link(method: str) -> None:
    target = CommandTarget(sys.executable, ["-I", "-S", "-c", SERVER])
    limits = replace(QUICK, circuit=3)
    async with (
        link_to(target, limits=limits, era="2025") as well,
        link_to(target, limits=limits, era="2025") as ill,
    ):
        assert await well.request("x/well")
        assert await ill.request("x/well")
        circuit = well._calls.peer.circuit
        circuit.spacing = 0.0
        for _ in range(8):
            with pytest.raises((holdfast.OutcomeUnknown, holdfast.SessionReplaced)):
                await ill.request(method, timeout=None if method == "x/crash" else 0.05)
            assert circuit.state is CircuitState.CLOSED
        assert await well.request("x/well")
        async with link_to(target, limits=limits, era="2025") as third:
            assert await third.request("x/well")


@pytest.mark.promise("link.circuit")
async def test_each_link_keeps_the_threshold_that_it_was_given() -> None:
    async with FaultServer() as server:
        async with (
            link_to(server.url, limits=replace(FAST, circuit=3)) as strict,
            link_to(server.url, limits=replace(FAST, circuit=0)) as lenient,
            link_to(server.url, limits=replace(FAST, circuit=3)) as other,
        ):
            assert [each._calls.peer.circuit.threshold for each in (strict, lenient)] == [3, 0]
            assert strict._calls.peer is other._calls.peer
            assert strict._calls.peer.offers is lenient._calls.peer.offers
