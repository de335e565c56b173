"""The link to a program: the same promises over stdin and stdout, and nothing left when it ends, however it ends."""

import asyncio
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

import holdfast
from holdfast import CommandTarget, Limits
from holdfast.core import events
from holdfast.core.lifecycle import LinkState
from holdfast.links.wires.stdio import warden as warden_module
from holdfast.links.wires.stdio.child import Child
from holdfast.links.wires.stdio.command import masked
from holdfast.links.wires.stdio.program import Program
from holdfast.links.wires.stdio.warden import warden
from holdfast.testing import Fault, FaultServer, stdio_target
from tests.links.kit import FAST, link_to, text_of, tool, until

pytestmark = pytest.mark.anyio

QUICK = Limits(
    connect=2, program_handshake=5, start=20, silence=5, close=2, exit=0.5, tell=2, backoff=0.01, stream_retry=0.02,
    message_bytes=1_000_000,
)  # fmt: skip

uvloop.new_event_loop().close()  # opens a pipe that stays for the whole process
EVERY_LOOP = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), "asyncio"], ids=["uvloop", "asyncio"]
)


def alive(pid: int) -> bool:
    """Is it there, and not a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class NoticeOrGap:
    """Events, and what they tell about children."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    @property
    def pids(self) -> list[int]:
        return [event.pid for event in self.events if isinstance(event, events.ChildStarted)]

    @property
    def lines(self) -> list[str]:
        return [event.line for event in self.events if isinstance(event, events.ChildSaid)]


@pytest.mark.promise("stdio.serve")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("asked", ["auto", "pinned"])
async def test_a_program_is_served_in_its_era_and_ends_with_the_link(era: Any, asked: str) -> None:
    heard = NoticeOrGap()
    link = link_to(stdio_target(era=era), era=era if asked == "pinned" else "auto", limits=QUICK, on_event=heard)
    results = await asyncio.gather(*(link.request("tools/call", tool("echo", text=str(n))) for n in range(20)))
    assert [text_of(result) for result in results] == [str(n) for n in range(20)]
    assert link.era is not None
    assert link.era.value == era
    [pid] = heard.pids
    assert alive(pid)
    await link.close()
    assert not alive(pid)
    assert link.phase is LinkState.CLOSED
    assert text_of(await link.request("tools/call", tool("echo", text="again"))) == "again"
    await link.close()
    [first, second] = [event for event in heard.events if isinstance(event, events.ChildEnded)]
    assert (first.exit_code, first.expected) == (0, True)
    assert not alive(second.pid)


@pytest.mark.promise("stdio.serve")
async def test_five_parallel_first_calls_start_one_child_and_state_is_kept() -> None:
    heard = NoticeOrGap()
    async with link_to(stdio_target(), limits=QUICK, on_event=heard) as link:
        counts = await asyncio.gather(*(link.request("tools/call", tool("count")) for _ in range(5)))
        assert sorted(text_of(each) for each in counts) == ["1", "2", "3", "4", "5"]
        assert len(heard.pids) == 1


@pytest.mark.promise("stdio.serve")
async def test_progress_questions_and_cancellation_over_stdio() -> None:
    steps: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async def answer(method: str, params: Any, id: str | int) -> dict[str, Any]:
        return {"said": method}

    async with link_to(stdio_target(), limits=QUICK, on_request=answer, capabilities={"sampling": {}}) as link:
        await link.request("tools/call", tool("progress", steps=3), on_progress=progress)
        assert steps == [1, 2, 3]
        asked = await link.request("tools/call", tool("ask", method="sampling/createMessage"))
        assert "sampling/createMessage" in text_of(asked)
        loop = asyncio.get_running_loop()
        call = asyncio.ensure_future(link.request("tools/call", tool("wait")))
        await until(lambda: link.statistics().in_flight == 1)
        start = loop.time()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert loop.time() - start < 0.5
        assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"


@pytest.mark.promise("stdio.death")
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [("exit-in-call", 7, "exit code 7"), ("killed-in-call", -9, "SIGKILL"), ("exit-after-effect", 8, "exit code 8")],
)
async def test_a_child_that_dies_in_a_call_is_told_with_its_last_words(
    fault: Any, code: int, says: str, tmp_path: Path
) -> None:
    effects, heard = tmp_path / "effects", NoticeOrGap()
    target = stdio_target(fault, effects=effects, once=tmp_path / "once", say="the disk is full")
    async with link_to(target, limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.ChildDied) as caught:
            await link.request("tools/call", tool("effect", call="x"))
        assert isinstance(caught.value, holdfast.OutcomeUnknown)
        assert caught.value.exit_code == code
        assert says in str(caught.value)
        assert "the disk is full" in str(caught.value.stderr_tail)
        # The outcome is unknown, so what the session kept may be gone: an unsafe call is told, once.
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("echo"))
        assert text_of(await link.request("tools/call", tool("echo", text="new"))) == "new"
        assert len(heard.pids) == 2
    assert (effects.read_text() if effects.exists() else "").count("x") == (1 if fault == "exit-after-effect" else 0)


@pytest.mark.promise("stdio.death")
@EVERY_LOOP
async def test_a_program_that_closes_its_stdout_and_lives_on_is_noticed_on_every_loop(anyio_backend: Any) -> None:
    async with link_to(stdio_target("close-stdout"), limits=replace(QUICK, silence=60, replays=0)) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.OutcomeUnknown, match="ended: the program"):
            await asyncio.wait_for(link.request("tools/call", tool("echo")), 20)


@pytest.mark.promise("stdio.close")
@EVERY_LOOP
async def test_a_program_inherits_its_three_pipes_and_nothing_else(anyio_backend: Any) -> None:
    heard = NoticeOrGap()
    link = link_to(CommandTarget("sleep", ["60"]), limits=replace(QUICK, handshake=60, start=60), on_event=heard)
    call = asyncio.ensure_future(link.request("tools/list"))
    await until(lambda: heard.pids)
    opened = Path(f"/proc/{heard.pids[0]}/fd")
    await until(lambda: Path(f"/proc/{heard.pids[0]}/comm").read_text() == "sleep\n")
    assert {each.name for each in opened.iterdir()} == {"0", "1", "2"}
    await link.close()
    with pytest.raises(holdfast.HoldfastError):
        await call


@pytest.mark.promise("stdio.death")
async def test_a_death_between_calls_makes_one_respawn_for_fifty_waiting_calls() -> None:
    heard = NoticeOrGap()
    async with link_to(stdio_target(), limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        os.kill(heard.pids[0], signal.SIGKILL)
        results = await asyncio.gather(
            *(link.request("tools/call", tool("echo", text=str(n)), safe=True) for n in range(50))
        )
        assert [text_of(result) for result in results] == [str(n) for n in range(50)]
        assert len(heard.pids) == 2
        assert link.statistics().replacements == 1


@pytest.mark.promise("stdio.death")
async def test_a_child_that_dies_at_every_start_opens_the_circuit_and_says_why() -> None:
    heard = NoticeOrGap()
    target = stdio_target("exit-at-start", say="no licence key")
    async with link_to(target, limits=QUICK, on_event=heard) as link:
        with pytest.raises(holdfast.ConnectFailed) as caught:
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
            if isinstance(refused.value, holdfast.CircuitOpen):
                break
        started = len(heard.pids)
        with pytest.raises(holdfast.CircuitOpen):
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


@pytest.mark.promise("stdio.framing")
async def test_stray_text_on_stdout_is_skipped_counted_and_said_once() -> None:
    heard = NoticeOrGap()
    async with link_to(stdio_target("garbage"), limits=QUICK, on_event=heard) as link:
        assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"
        said = [event for event in heard.events if isinstance(event, events.StrayMessage)]
        assert len(said) == 1
        assert "Welcome to my server!" in said[0].what


@pytest.mark.promise("stdio.framing")
async def test_megabytes_on_one_line_in_both_directions_and_a_cap() -> None:
    limits = Limits(message_bytes=6_000_000, close=2, exit=0.5)
    async with link_to(stdio_target(), limits=limits) as link:
        big = "x" * 5_000_000
        assert text_of(await link.request("tools/call", tool("echo", text=big))) == big
        with pytest.raises(holdfast.LimitReached):
            await link.request("tools/call", tool("echo", text=big + big))
        with pytest.raises(holdfast.LimitReached):
            await link.request("tools/call", tool("large", bytes=7_000_000))
        assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"
        assert link.statistics().opens == 1


@pytest.mark.promise("stdio.framing")
async def test_a_line_without_end_can_not_make_us_grow() -> None:
    async with link_to(stdio_target("endless-line"), limits=QUICK) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.AnswerTimeout):
            await link.request("tools/call", tool("echo"), timeout=1)


@pytest.mark.promise("stdio.flood")
@pytest.mark.parametrize("fault", ["flood-stderr", "flood-stdout"])
async def test_a_flood_neither_hangs_nor_grows_us(fault: Any) -> None:
    async with link_to(stdio_target(fault), limits=QUICK) as link:
        for n in range(20):
            assert text_of(await link.request("tools/call", tool("echo", text=str(n)))) == str(n)


@pytest.mark.promise("stdio.flood")
async def test_a_child_that_does_not_read_holds_up_its_own_call_only_until_its_deadline() -> None:
    async with link_to(stdio_target("deaf"), limits=QUICK) as link:
        await link.request("tools/list")
        await link.request("tools/call", tool("echo"))
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(holdfast.AnswerTimeout):
            await link.request("tools/call", tool("echo", text="x" * 900_000), timeout=0.5)
        assert loop.time() - start < 2


@pytest.mark.promise("stdio.close")
@pytest.mark.parametrize(
    "fault",
    ["ignore-signals", "grandchild", "detached-grandchild", "bare-grandchild", "hang-in-call", "close-stdout"],
)
async def test_closing_leaves_nothing_grandchildren_included(fault: Any) -> None:
    heard = NoticeOrGap()
    link = link_to(stdio_target(fault), limits=QUICK, on_event=heard)
    await link.request("tools/list")
    call = asyncio.ensure_future(link.request("tools/call", tool("echo"), timeout=1))
    await asyncio.wait((call,))
    call.exception()
    pids = [*heard.pids, *(int(line.split()[1]) for line in heard.lines if line.startswith("grandchild"))]
    assert len(pids) == (2 if "grandchild" in fault else 1)
    await asyncio.wait_for(link.close(), 10)
    await until(lambda: not any(alive(pid) for pid in pids), 2)


@pytest.mark.promise("stdio.close")
async def test_two_hundred_starts_and_stops_leave_no_zombie_descriptor_or_task() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    async with link_to(stdio_target(), limits=QUICK) as link:
        await link.request("tools/list")
    files, ours, tasks = descriptors(), children(), len(asyncio.all_tasks())
    for _ in range(20):
        links = [link_to(stdio_target(), limits=QUICK) for _ in range(10)]
        await asyncio.gather(*(link.request("tools/list") for link in links))
        await asyncio.gather(*(link.close() for link in links))
    await until(lambda: descriptors() <= files)
    assert children() <= ours
    assert len(asyncio.all_tasks()) <= tasks


@pytest.mark.promise("stdio.close")
async def test_a_close_while_the_child_starts_slowly() -> None:
    heard = NoticeOrGap()
    link = link_to(stdio_target("slow-start"), limits=QUICK, on_event=heard)
    call = asyncio.ensure_future(link.request("tools/list"))
    await until(lambda: heard.pids)
    await asyncio.wait_for(link.close(), 10)
    with pytest.raises(holdfast.Unavailable):
        await call
    assert not alive(heard.pids[0])


HOLDER = """
import asyncio, sys
from holdfast import Limits, Link, Options
from holdfast.core.events import ChildSaid, ChildStarted
from holdfast.testing import Fault, FaultServer, stdio_target

def tell(event):
    if isinstance(event, ChildStarted): print("pid", event.pid, flush=True)
    if isinstance(event, ChildSaid) and "grandchild" in event.line: print("pid", event.line.split()[1], flush=True)

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
        async with asyncio.timeout(30):
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
    heard = NoticeOrGap()
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
    heard = NoticeOrGap()
    async with link_to(stdio_target("grandchild"), limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        call = asyncio.ensure_future(link.request("tools/call", tool("wait"), timeout=20))
        await until(lambda: link.statistics().in_flight == 1)
        keeper = int(Path(f"/proc/{heard.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert keeper != os.getpid()
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(holdfast.ChildDied):
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
        program._heard()  # in the same turn of the loop
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


@pytest.mark.promise("stdio.bad-command")
async def test_a_command_that_can_not_run_says_what_where_and_why(tmp_path: Path) -> None:
    script, plain = tmp_path / "script", tmp_path / "plain"
    script.write_text("#!/no/such/interpreter --flag\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    plain.write_text("hello")
    usage = ["-c", "import sys; print('usage: server --key KEY', file=sys.stderr); sys.exit(2)", "--api-key", "s3cret"]
    cases: list[tuple[CommandTarget, str]] = [
        (CommandTarget("no-such-program-anywhere"), "not found in PATH: "),
        (CommandTarget(str(tmp_path)), "is a folder"),
        (CommandTarget(str(plain)), "is not executable"),
        (CommandTarget(str(tmp_path / "missing")), "there is no file"),
        (CommandTarget(str(script)), "interpreter /no/such/interpreter --flag is missing"),
        (CommandTarget(sys.executable, usage), "exit code 2"),
        (CommandTarget(sys.executable, cwd=str(tmp_path / "nowhere")), "is not a folder"),
    ]
    for target, says in cases:
        async with link_to(target, limits=QUICK) as link:
            with pytest.raises(holdfast.ConnectFailed) as caught:
                await link.request("tools/list")
            text = str(caught.value)
            assert says in text, text
            assert "ran: " in text
            assert caught.value.remedy
            assert "s3cret" not in text
            assert caught.value.server == "it"
    assert "usage: server --key KEY" in text or "not a folder" in text


@pytest.mark.promise("stdio.bad-command")
async def test_a_program_that_is_not_mcp_at_all_is_told() -> None:
    for code, says in (("print('hello'); input()", None), ("print('usage: x')", "usage: x")):
        target = CommandTarget(sys.executable, ["-u", "-c", code])
        async with link_to(target, limits=Limits(program_handshake=0.5, close=1, exit=0.3, backoff=0.01)) as link:
            with pytest.raises(holdfast.Unavailable) as caught:
                await link.request("tools/list")
            assert says is None or says in str(caught.value)


@pytest.mark.promise("stdio.env")
async def test_a_child_gets_a_safe_environment_and_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN_SECRET", "s3cret")
    asked = 0

    async def fresh() -> str:
        nonlocal asked
        asked += 1
        return f"token-{asked}"

    code = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    r = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 'x', 'version': '1'}}\n"
        "    if m['method'] != 'initialize': r = {'env': dict(os.environ), 'cwd': os.getcwd()}\n"
        "    if 'id' in m: print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
    )
    target = CommandTarget(sys.executable, ["-c", code], env={"TOKEN": fresh, "PLAIN": "x"}, cwd="/")
    async with link_to(target, era="2025", limits=QUICK) as link:
        assert asked == 0
        seen = await link.request("tools/list")
        assert (seen["env"]["TOKEN"], seen["env"]["PLAIN"], seen["cwd"]) == ("token-1", "x", "/")
        assert "MY_OWN_SECRET" not in seen["env"]
        assert "PATH" in seen["env"]
        await link.close()
        assert (await link.request("tools/list"))["env"]["TOKEN"] == "token-2"
        assert "token" not in repr(target)
    for env in ({"A=B": "x"}, {"A": 7}, {"": "x"}, {"A": "x\0"}):
        async with link_to(CommandTarget("true", env=env), limits=QUICK) as link:  # type: ignore[arg-type]
            with pytest.raises(holdfast.ConfigError):
                await link.request("tools/list")


@pytest.mark.promise("stdio.env")
def test_secrets_are_masked_in_what_is_shown() -> None:
    shown = masked(
        "npx", ["server", "--token", "abc", "--api-key=def", "-v", "--name", "x", "ghi", "a b"], {"T": "ghijk"}
    )
    assert shown == "npx server --token ••• --api-key=••• -v --name x ghi 'a b'"
    assert masked("x", ["ghijk", "--as=ghijk"], {"T": "ghijk"}) == "x ••• --as=•••"


@pytest.mark.promise("stdio.env")
@pytest.mark.parametrize("word", ["x", "key-", "http://a", "a://b@", "a://b?", "token", ":"])
def test_a_long_argument_is_masked_in_one_pass(word: str) -> None:
    """Quadratic, 20,000 letters held up the event loop for seconds; these are ten times as many."""
    long = word * (200_000 // len(word))
    start = time.process_time()
    shown = masked("x", [f"a={long}", long, f"{long}://user:hunter2@host"], {})
    assert time.process_time() - start < 5
    assert len(shown) < 310
    assert "hunter2" not in shown


@pytest.mark.promise("stdio.bad-command")
def test_nonsense_is_refused_at_once() -> None:
    for command, args in (("", ()), ("x\0", ()), ("x", "--flag"), ("x", [7]), ("x", ["\ud800"]), ("\ud800", ())):
        with pytest.raises(holdfast.ConfigError):
            CommandTarget(command, args)  # type: ignore[arg-type]


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
        with pytest.raises(holdfast.StartTimeout) as caught:
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
        with pytest.raises(holdfast.StartTimeout):
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
