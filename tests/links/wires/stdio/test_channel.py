"""A program's stdin and stdout: the same promises, and nothing left when it ends, however it ends."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast import events
from holdfast.core.lifecycle import LinkState
from holdfast.links import CommandTarget, Limits
from holdfast.links.wires.duplex import WORDS_BYTES
from holdfast.links.wires.stdio.child import Child
from holdfast.testing import stdio_target
from tests.deadlines import patience, until
from tests.links.quick_links import EVERY_LOOP, link_to, text_of, tool
from tests.links.wires.stdio.children import QUICK, ChildEvents, alive, program

pytestmark = pytest.mark.anyio


@pytest.mark.promise("stdio.serve")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("asked", ["auto", "pinned"])
async def test_a_program_is_served_in_its_era_and_ends_with_the_link(era: Any, asked: str) -> None:
    heard = ChildEvents()
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
    heard = ChildEvents()
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
    effects, heard = tmp_path / "effects", ChildEvents()
    target = stdio_target(fault, effects=effects, once=tmp_path / "once", say="the disk is full")
    async with link_to(target, limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.errors.ChildDied) as caught:
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
            await asyncio.wait_for(link.request("tools/call", tool("echo")), patience(20))


@pytest.mark.promise("stdio.close")
@EVERY_LOOP
async def test_a_program_inherits_its_three_pipes_and_nothing_else(anyio_backend: Any) -> None:
    heard = ChildEvents()
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
    heard = ChildEvents()
    async with link_to(stdio_target(), limits=QUICK, on_event=heard) as link:
        await link.request("tools/list")
        os.kill(heard.pids[0], signal.SIGKILL)
        results = await asyncio.gather(
            *(link.request("tools/call", tool("echo", text=str(n)), safe=True) for n in range(50))
        )
        assert [text_of(result) for result in results] == [str(n) for n in range(50)]
        assert len(heard.pids) == 2
        assert link.statistics().replacements == 1


@pytest.mark.promise("stdio.framing")
async def test_stray_text_on_stdout_is_skipped_counted_and_said_once() -> None:
    heard = ChildEvents()
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
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("tools/call", tool("echo", text=big + big))
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("tools/call", tool("large", bytes=7_000_000))
        assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"
        assert link.statistics().opens == 1


@pytest.mark.promise("stdio.framing")
async def test_a_line_without_end_can_not_make_us_grow() -> None:
    async with link_to(stdio_target("endless-line"), limits=QUICK) as link:
        await link.request("tools/list")
        with pytest.raises(holdfast.errors.AnswerTimeout):
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
        with pytest.raises(holdfast.errors.AnswerTimeout):
            await link.request("tools/call", tool("echo", text="x" * 900_000), timeout=0.5)
        assert loop.time() - start < 2


@pytest.mark.promise("stdio.close")
@pytest.mark.parametrize(
    "fault",
    ["ignore-signals", "grandchild", "detached-grandchild", "bare-grandchild", "hang-in-call", "close-stdout"],
)
async def test_closing_leaves_nothing_grandchildren_included(fault: Any) -> None:
    heard = ChildEvents()
    link = link_to(stdio_target(fault), limits=QUICK, on_event=heard)
    await link.request("tools/list")
    call = asyncio.ensure_future(link.request("tools/call", tool("echo"), timeout=1))
    await asyncio.wait((call,))
    call.exception()
    pids = [*heard.pids, *(int(line.split()[1]) for line in heard.lines if line.startswith("grandchild"))]
    assert len(pids) == (2 if "grandchild" in fault else 1)
    await asyncio.wait_for(link.close(), patience(10))
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
    heard = ChildEvents()
    link = link_to(stdio_target("slow-start"), limits=QUICK, on_event=heard)
    call = asyncio.ensure_future(link.request("tools/list"))
    await until(lambda: heard.pids)
    await asyncio.wait_for(link.close(), patience(10))
    with pytest.raises(holdfast.Unavailable):
        await call
    assert not alive(heard.pids[0])


@pytest.mark.promise("stdio.death")
async def test_last_words_are_whole_however_quick_the_death() -> None:
    limits = Limits(replays=0, close=1, exit=0.3)
    codes: list[int | None] = []
    for _ in range(25):
        async with link_to(CommandTarget("sh", ["-c", "echo bad token >&2; exit 3"]), limits=limits) as link:
            with pytest.raises(holdfast.errors.ConnectFailed) as caught:
                await link.request("tools/list")
            assert caught.value.stderr_tail == "bad token"
            codes.append(caught.value.exit_code)
        link._calls.peer.circuit.succeeded()
    # A busy kernel may tell of an exit later than we wait for it.
    assert set(codes) <= {3, None}
    assert codes.count(3) >= 22


@pytest.mark.promise("stdio.close")
async def test_a_close_while_the_program_is_being_started_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = CommandTarget("sh", ["-c", f"sleep 41 & echo $! >> {pids}; echo $$ >> {pids}; sleep 42"])
    for steps in range(2, 10):
        link = link_to(command, limits=QUICK)
        opening = asyncio.ensure_future(link.open())
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(0.03)  # noqa: ASYNC251 - a busy loop
        await link.close()
        await asyncio.gather(opening, return_exceptions=True)
    started = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    await until(lambda: not any(alive(pid) for pid in started), 3)


@pytest.mark.promise("stdio.framing")
async def test_half_a_character_in_an_answer_is_replaced() -> None:
    async with link_to(program("surrogate"), era="2025", limits=QUICK) as link:
        assert await link.request("x/y", {}) == {"v": "\ufffd"}


@pytest.mark.promise("stdio.framing")
async def test_an_answer_that_is_not_json_fails_its_call_at_once() -> None:
    async with link_to(program("nan"), era="2025", limits=QUICK) as link:
        start = time.monotonic()
        with pytest.raises(holdfast.errors.BadAnswer):
            await link.request("x/y", {})
        assert time.monotonic() - start < 2
        await link.request("tools/list")


@pytest.mark.promise("stdio.framing")
async def test_an_oversized_answer_finds_its_call_by_the_id_at_its_end() -> None:
    limits = Limits(message_bytes=100_000, close=1, exit=0.3)
    async with link_to(program("nested"), era="2025", limits=limits) as link:
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("x/y", {}, timeout=3)
        await link.request("tools/list")


@pytest.mark.promise("stdio.flood")
@EVERY_LOOP
async def test_a_child_that_closes_its_stdin_is_noticed(anyio_backend: Any) -> None:
    async with link_to(program("deaf"), era="2025", limits=QUICK) as link:
        await link.request("tools/list")
        start = time.monotonic()
        with pytest.raises(holdfast.OutcomeUnknown):
            await link.request("x/y", {"text": "x" * 900_000})
        assert time.monotonic() - start < QUICK.silence - 1


@pytest.mark.promise("stdio.flood")
async def test_progress_that_waits_for_a_slow_caller_is_bounded_in_bytes() -> None:
    heard, taken, go_on = ChildEvents(), [], asyncio.Event()

    async def slow(progress: float, total: float | None, message: str | None) -> None:
        await go_on.wait()
        taken.append((progress, len(message or "")))

    async with link_to(program("progress"), era="2025", limits=QUICK, on_event=heard) as link:
        call = asyncio.ensure_future(link.request("x/y", {}, on_progress=slow))
        await until(lambda: "all said" in heard.lines)
        go_on.set()
        await call
    # What was still in the pipe, less than one, came later.
    assert taken[0][0] == 0
    assert sum(size for _, size in taken) <= WORDS_BYTES + 2 * 200_000
    assert [progress for progress, _ in taken] == sorted(progress for progress, _ in taken)


@pytest.mark.promise("stdio.flood")
def test_what_nobody_has_read_of_a_program_is_bounded_in_bytes() -> None:
    pipe = _Pipe()
    child = Child(10_000_000, "cookie", lambda line: None, lambda what: None)
    child.connection_made(cast("Any", pipe))
    line = b'{"jsonrpc":"2.0","method":"x","params":{"text":"%s"}}\n' % (b"x" * 400_000)
    for paused in (False, False, True):
        child.pipe_data_received(1, line)
        assert pipe.paused is paused


class _Pipe:
    """All that a program's side of a child is asked for here."""

    paused = False

    def get_pid(self) -> int:
        return 1

    def get_pipe_transport(self, fd: int) -> "_Pipe":
        return self

    def pause_reading(self) -> None:
        self.paused = True


@pytest.mark.promise("stdio.serve")
async def test_a_ping_before_the_handshake_is_done_is_answered() -> None:
    async with link_to(program("ping"), era="2025", limits=QUICK) as link:
        assert (await link.request("tools/list"))["tools"] == []


@pytest.mark.promise("stdio.close")
async def test_a_close_during_a_failing_handshake_is_told_as_one() -> None:
    for pause in (0, 0.03, 0.08, 0.12):
        link = link_to(CommandTarget("sh", ["-c", "sleep 0.1; exit 4"]), limits=QUICK)
        call = asyncio.ensure_future(link.request("tools/list"))
        await asyncio.sleep(pause)
        await link.close()
        with pytest.raises(holdfast.Unavailable) as caught:
            await call
        assert "AssertionError" not in str(caught.value)
        await link.close()
