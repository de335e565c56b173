"""Whoever is killed, no child or grandchild is left: the warden and its keeper."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.links.wires.stdio import warden as warden_module
from holdfast.links.wires.stdio.child import Child
from holdfast.links.wires.stdio.program import Program
from holdfast.links.wires.stdio.warden import warden
from holdfast.testing import stdio_target
from tests.deadlines import patience, until
from tests.links.quick_links import link_to, tool
from tests.links.wires.stdio.children import QUICK, ChildEvents, alive

pytestmark = pytest.mark.anyio

HOLDER = """
import asyncio, sys
from holdfast import Link
from holdfast.links import Limits, Options
from holdfast.events import ChildStderr, ChildStarted
from holdfast.testing import Fault, FaultServer, stdio_target

def tell(event):
    if isinstance(event, ChildStarted): print("pid", event.pid, flush=True)
    if isinstance(event, ChildStderr) and "grandchild" in event.line: print("pid", event.line.split()[1], flush=True)

async def main():
    faults = ("none", "grandchild", "detached-grandchild", "bare-grandchild")
    links = [Link(stdio_target(fault), Options(on_event=tell)) for fault in faults]
    for link in links: await link.request("tools/list")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.promise("stdio.warden")
@pytest.mark.skipif(sys.platform != "linux", reason="the warden finds detached descendants by /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_when_we_are_killed_every_child_and_grandchild_is_gone_in_two_seconds(how: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, stdout=asyncio.subprocess.PIPE)
    pids: list[int] = []
    assert process.stdout is not None
    try:
        async with asyncio.timeout(patience(30)):
            while (line := (await process.stdout.readline()).decode().split()) != ["ready"]:
                assert line, "it ended early"
                pids.append(int(line[1]))
        assert len(pids) == 7
        assert all(alive(pid) for pid in pids)
    finally:
        process.send_signal(how)
        await process.wait()
    await until(lambda: not any(alive(pid) for pid in pids), 2)


@pytest.mark.promise("stdio.warden")
async def test_a_warden_that_was_killed_is_replaced_and_knows_the_children() -> None:
    heard = ChildEvents()
    async with link_to(stdio_target(), limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        process = warden._process
        assert process is not None
        process.kill()
        process.wait(5)
        async with link_to(stdio_target(), limits=QUICK) as other:
            await other.request("tools/list")
            assert warden._process is not None
            assert warden._process.pid != process.pid
            assert heard.pids[0] in warden._known


@pytest.mark.promise("stdio.warden")
@pytest.mark.skipif(sys.platform != "linux", reason="the parent of a process is read from /proc")
async def test_a_program_whose_keeper_was_killed_is_ended_and_told_as_dead() -> None:
    heard = ChildEvents()
    async with link_to(stdio_target("grandchild"), limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        call = asyncio.ensure_future(link.request("tools/call", tool("wait"), timeout=20))
        await until(lambda: link.statistics().in_flight == 1)
        keeper = int(Path(f"/proc/{heard.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert keeper != os.getpid()
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(holdfast.errors.ChildDied):
            await call
    await until(lambda: not any(alive(pid) for pid in heard.pids), 2)


@pytest.mark.promise("stdio.warden")
async def test_a_start_cancelled_while_the_warden_dies_signals_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no program yet, and group 0 is our own: its SIGKILL would end us and whoever started us."""
    signalled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append((group, number)))
    for last_word in (b"", b"exited -9\n"):
        ours, keeper = socket.socketpair()
        ours.setblocking(False)
        program = Program(Child(1 << 20, "cookie", print, print))
        monkeypatch.setattr(warden, "leash", lambda *_, leash=ours: leash)
        starting = asyncio.ensure_future(program.start("/bin/true", [], {}, None))
        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(_non_blocking(keeper), 1), 5)  # it waits now
        keeper.sendall(last_word)
        if not last_word:
            keeper.shutdown(socket.SHUT_WR)
        starting.cancel()
        program._read_leash()  # in the same turn of the loop
        with pytest.raises(asyncio.CancelledError):
            await starting
        program.close()
        keeper.close()
        await asyncio.sleep(0)
    assert signalled == []


def _non_blocking(each: socket.socket) -> socket.socket:
    each.setblocking(False)
    return each


@pytest.mark.promise("stdio.warden")
def test_a_warden_that_may_not_fork_says_so_and_lives_on() -> None:
    script = Path(warden_module.__file__).with_name("warden_main.py")
    full = f"""
import errno, os, runpy, sys
def fork(): raise OSError(errno.EAGAIN, "full")
os.fork, sys.argv = fork, ["warden", "token"]
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    control, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", full], stdin=theirs) as process:
        theirs.close()
        for _ in range(2):
            leash, other = socket.socketpair()
            leash.settimeout(10)
            socket.send_fds(control, [b"start\n"], [other.fileno(), 1, 1, 2])
            other.close()
            assert leash.recv(64) == b"failed %d\n" % errno.EAGAIN
            assert leash.recv(64) == b""
            leash.close()
        control.close()
        assert process.wait(10) == 0
