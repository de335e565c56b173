"""How a program comes up: its environment, its era, slow starts, and starts that fail."""

import asyncio
import sys
import time
from dataclasses import replace

import pytest

import holdfast
from holdfast import events
from holdfast.links import CommandTarget, Limits
from holdfast.testing import Fault, FaultServer, stdio_target
from tests.deadlines import until
from tests.links.quick_links import FAST, link_to
from tests.links.wires.stdio.children import QUICK, ChildEvents, program

pytestmark = pytest.mark.anyio


@pytest.mark.promise("stdio.death")
async def test_a_child_that_dies_at_every_start_opens_the_circuit_and_says_why() -> None:
    heard = ChildEvents()
    target = stdio_target("exit-at-start", say="no licence key")
    async with link_to(target, limits=QUICK, on_event=heard) as link:
        with pytest.raises(holdfast.errors.ConnectFailed) as caught:
            await link.request("tools/list")
        assert (caught.value.exit_code, caught.value.attempts) == (3, 3)
        assert "no licence key" in str(caught.value)
        assert len(heard.pids) == 3  # respawned with backoff, and a cap
        loop = asyncio.get_running_loop()
        end = loop.time() + 20
        while True:
            assert loop.time() < end
            with pytest.raises(holdfast.Unavailable) as refused:
                await link.request("tools/list")
            if isinstance(refused.value, holdfast.errors.CircuitOpen):
                break
        started = len(heard.pids)
        with pytest.raises(holdfast.errors.CircuitOpen):
            await link.request("tools/list")
        assert len(heard.pids) == started


@pytest.mark.promise("stdio.death")
async def test_a_2025_program_that_ends_at_a_probe_gets_a_2025_handshake_next() -> None:
    code = (
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['method'] == 'server/discover': sys.exit('expected initialize')\n"
        "    r = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 'old', 'version': '1'}}\n"
        "    if m['method'] != 'initialize': r = {'tools': []}\n"
        "    if 'id' in m: print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
    )
    async with link_to(CommandTarget(sys.executable, ["-I", "-S", "-c", code]), limits=QUICK) as link:
        assert await link.request("tools/list") == {"tools": []}
        assert link.handshake is not None
        assert link.handshake.version == "2025-06-18"


@pytest.mark.promise("stdio.bad-command")
async def test_a_program_that_is_not_mcp_at_all_is_told() -> None:
    for code, says in (("print('hello'); input()", None), ("print('usage: x')", "usage: x")):
        target = CommandTarget(sys.executable, ["-u", "-c", code])
        async with link_to(target, limits=Limits(program_handshake=0.5, close=1, exit=0.3, backoff=0.01)) as link:
            with pytest.raises(holdfast.Unavailable) as caught:
                await link.request("tools/list")
            assert says is None or says in str(caught.value)


@pytest.mark.promise("stdio.serve")
async def test_the_wrong_era_is_told() -> None:
    async with link_to(stdio_target(era="2026"), era="2025", limits=FAST) as link:
        with pytest.raises(holdfast.Rejected, match="refused the handshake"):
            await link.request("tools/list")
    async with link_to(stdio_target(era="2025"), era="2026", limits=FAST) as link:
        with pytest.raises(holdfast.Rejected, match="does not speak 2026"):
            await link.request("tools/list")


@pytest.mark.promise("stdio.serve")
async def test_a_program_that_says_nothing_to_the_handshake_ends_in_time_with_its_stderr() -> None:
    limits = Limits(program_handshake=0.5, close=1, exit=0.3)
    async with link_to(stdio_target("hang-at-handshake", say="thinking"), limits=limits) as link:
        with pytest.raises(holdfast.errors.StartTimeout) as caught:
            await link.request("tools/list")
        assert "thinking" in str(caught.value)
        assert "pin era=" in str(caught.value.remedy)
        assert "Limits(program_handshake=…)" in str(caught.value.remedy)


@pytest.mark.promise("stdio.serve")
async def test_a_slow_start_is_in_the_log_once_and_a_quick_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    def slow() -> list[str]:
        return [record.getMessage() for record in caplog.records if "still starting" in record.getMessage()]

    assert Limits().program_handshake >= 60
    assert Limits().slow_start == 5
    async with link_to(stdio_target(), limits=replace(QUICK, slow_start=5)) as link:
        await link.request("tools/list")
    assert not slow()
    limits = Limits(program_handshake=0.5, slow_start=0.1, close=1, exit=0.3)
    async with link_to(stdio_target("hang-at-handshake"), limits=limits) as link:
        with pytest.raises(holdfast.errors.StartTimeout):
            await link.request("tools/list")
    [line] = slow()
    assert line.startswith("it: still starting after 0.1 s (phase handshake); it has 0.5 s to answer, npx or uvx")
    caplog.clear()
    async with FaultServer() as server:
        server.plan(Fault.HANG, method="initialize")
        async with link_to(server.url, limits=Limits(handshake=0.5, slow_start=0.1, replays=0)) as link:
            with pytest.raises(holdfast.HoldfastError):
                await link.request("tools/list")
    assert slow() == ["it: still starting after 0.1 s (phase handshake)"]


@pytest.mark.promise("stdio.env")
async def test_the_environment_is_found_out_at_every_start() -> None:
    asked, heard = 0, ChildEvents()

    async def token() -> str:
        nonlocal asked
        asked += 1
        return f"t{asked}"

    async with link_to(program(env={"TOKEN": token}), era="2025", limits=QUICK, on_event=heard) as link:
        for turn in ("t1", "t2", "t3"):
            assert (await link.request("tools/list"))["token"] == turn
            import os

            os.kill(heard.pids[-1], 9)
            await until(lambda: link.session_id is None and link.handshake is None)


@pytest.mark.promise("stdio.death")
async def test_a_tenant_with_a_bad_token_shuts_out_no_other_and_the_circuit_says_why() -> None:
    heard = ChildEvents()
    script = ["-c", 'test "$TOKEN" = good || { echo bad token >&2; exit 3; }; exec sleep 5']
    limits = Limits(close=1, exit=0.2, program_handshake=1, backoff=0.01)
    async with link_to(CommandTarget("sh", script, env={"TOKEN": "bad"}), limits=limits, on_event=heard) as bad:
        end = time.monotonic() + 20
        while True:
            assert time.monotonic() < end
            with pytest.raises(holdfast.Unavailable) as caught:
                await bad.request("tools/list")
            if isinstance(caught.value, holdfast.errors.CircuitOpen):
                break
        assert (caught.value.exit_code, caught.value.stderr_tail) == (3, "bad token")
        assert "exit code 3" in str(caught.value)
        assert any(isinstance(event, events.CircuitChanged) for event in heard.events)
        started = len(heard.pids)
        with pytest.raises(holdfast.errors.CircuitOpen):
            await bad.open()
        assert len(heard.pids) == started
    async with link_to(CommandTarget("sh", script, env={"TOKEN": "good"}), limits=limits) as good:
        with pytest.raises(holdfast.errors.StartTimeout):  # it is no server; but it was started
            await good.request("tools/list")
