"""Faults that a hunt found in the first link to a program, one test each, so that none comes back."""

import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast
from holdfast import CommandTarget, Limits
from holdfast.core import events
from holdfast.core.clock import SYSTEM
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.inbound import ANSWERS_BYTES, Inbound
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation, Message, Reply
from holdfast.links.wires.duplex import WORDS_BYTES
from holdfast.links.wires.stdio.child import Child
from holdfast.links.wires.stdio.command import masked
from tests.links.kit import link_to, until
from tests.links.test_stdio import EVERY_LOOP, QUICK, NoticeOrGap, alive

pytestmark = pytest.mark.anyio

SERVER = """
import json, os, sys
how = sys.argv[1]
def say(m): sys.stdout.write((m if isinstance(m, str) else json.dumps(m)) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        if how == "ping":
            say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            assert "result" in json.loads(sys.stdin.readline())
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {},
             "serverInfo": {"name": "x", "version": "1"}}})
    elif "id" in m and m.get("method") == "tools/list":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [], "token": os.environ.get("TOKEN")}})
    elif "id" in m and "method" in m:
        if how == "nan": say('{"jsonrpc": "2.0", "id": "%s", "result": {"v": NaN}}' % m["id"])
        elif how == "surrogate": say('{"jsonrpc": "2.0", "id": "%s", "result": {"v": "\\\\ud83d"}}' % m["id"])
        elif how == "nested":
            body = "x" * 300000
            say('{"result": {"items": [{"id": 5, "x": "' + body + '"}]}, "jsonrpc": "2.0", "id": "%s"}' % m["id"])
        elif how == "progress":
            token = m["params"]["_meta"]["progressToken"]
            for n in range(60):
                params = {"progressToken": token, "progress": n, "message": "x" * 200000}
                say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            say({"jsonrpc": "2.0", "id": m["id"], "result": {}})
            sys.stderr.write("all said\\n"); sys.stderr.flush()
        elif how == "deaf":
            os.close(0)
            import time; time.sleep(60)
"""


def program(how: str = "well", **more: Any) -> CommandTarget:
    return CommandTarget(sys.executable, ["-I", "-S", "-c", SERVER, how], **more)


@pytest.mark.promise("stdio.death")
async def test_last_words_are_whole_however_quick_the_death() -> None:
    limits = Limits(replays=0, close=1, exit=0.3)
    codes: list[int | None] = []
    for _ in range(25):
        async with link_to(CommandTarget("sh", ["-c", "echo bad token >&2; exit 3"]), limits=limits) as link:
            with pytest.raises(holdfast.ConnectFailed) as caught:
                await link.request("tools/list")
            assert caught.value.stderr_tail == "bad token"
            codes.append(caught.value.exit_code)
        link._calls.peer.circuit.succeeded()
    # A busy kernel may tell of an exit later than we wait for it.
    assert set(codes) <= {3, None}
    assert codes.count(3) >= 22


@pytest.mark.promise("stdio.bad-command")
async def test_a_relative_path_is_this_programs_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, code in ((tmp_path, 4), (tmp_path / "sub", 6), (tmp_path / "path", 5)):
        folder.mkdir(exist_ok=True)
        (folder / "prog").write_text(f"#!/bin/sh\nexit {code}\n")
        (folder / "prog").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    limits = Limits(replays=0, close=1, exit=0.3)
    for target, code in (
        (CommandTarget("./prog"), 4),
        (CommandTarget("./prog", cwd="sub"), 6),
        (CommandTarget("prog"), 5),
    ):
        async with link_to(target, limits=limits) as link:
            with pytest.raises(holdfast.ConnectFailed) as caught:
                await link.request("tools/list")
            assert caught.value.exit_code == code


@pytest.mark.promise("stdio.env")
async def test_the_environment_is_found_out_at_every_start() -> None:
    asked, heard = 0, NoticeOrGap()

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
    heard = NoticeOrGap()
    script = ["-c", 'test "$TOKEN" = good || { echo bad token >&2; exit 3; }; exec sleep 5']
    limits = Limits(close=1, exit=0.2, program_handshake=1, backoff=0.01)
    async with link_to(CommandTarget("sh", script, env={"TOKEN": "bad"}), limits=limits, on_event=heard) as bad:
        end = time.monotonic() + 20
        while True:
            assert time.monotonic() < end
            with pytest.raises(holdfast.Unavailable) as caught:
                await bad.request("tools/list")
            if isinstance(caught.value, holdfast.CircuitOpen):
                break
        assert (caught.value.exit_code, caught.value.stderr_tail) == (3, "bad token")
        assert "exit code 3" in str(caught.value)
        assert any(isinstance(event, events.CircuitChanged) for event in heard.events)
        started = len(heard.pids)
        with pytest.raises(holdfast.CircuitOpen):
            await bad.open()
        assert len(heard.pids) == started
    async with link_to(CommandTarget("sh", script, env={"TOKEN": "good"}), limits=limits) as good:
        with pytest.raises(holdfast.StartTimeout):  # it is no server; but it was started
            await good.request("tools/list")


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
        with pytest.raises(holdfast.BadAnswer):
            await link.request("x/y", {})
        assert time.monotonic() - start < 2
        await link.request("tools/list")


@pytest.mark.promise("stdio.framing")
async def test_an_oversized_answer_finds_its_call_by_the_id_at_its_end() -> None:
    limits = Limits(message_bytes=100_000, close=1, exit=0.3)
    async with link_to(program("nested"), era="2025", limits=limits) as link:
        with pytest.raises(holdfast.LimitReached):
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
    heard, taken, go_on = NoticeOrGap(), [], asyncio.Event()

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
async def test_requests_that_wait_for_answers_are_bounded_in_bytes_whatever_ids_they_have() -> None:
    under_way, answered, go_on = 0, 0, asyncio.Event()

    async def ask(method: str, params: Any, id: str | int) -> dict[str, Any]:
        nonlocal under_way
        under_way += 1
        await go_on.wait()
        return {"roots": []}

    class Telling:
        async def tell(self, generation: Generation, message: Message, seconds: float) -> Reply:
            nonlocal answered
            answered += 1
            return Reply()

    generation = cast("Generation", SimpleNamespace(wire=Telling()))
    inbound = Inbound(BackgroundTasks(lambda what, error: None), LinkReporter("it", None, SYSTEM), 1.0)
    inbound.handle(ask, None)
    receive = inbound.of(generation)
    asked = {"jsonrpc": "2.0", "id": "same", "method": "roots/list", "params": {"text": "x" * 900_000}}
    reading = [asyncio.ensure_future(receive(asked)) for _ in range(200)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert under_way == ANSWERS_BYTES // 900_000
    go_on.set()
    await asyncio.gather(*reading)
    await until(lambda: answered == 200)


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


@pytest.mark.promise("stdio.env")
def test_secrets_inside_arguments_are_masked_too() -> None:
    shown = masked(
        "npx",
        ["postgresql://user:hunter2@db/x", "--header", "Authorization: Bearer SEKRIT", "--url=https://h/?token=SEKRIT2",
         "pg://u:ENVSECRET@h", "-e", "x-ENVSECRET-y"],
        {"T": "ENVSECRET"},
    )  # fmt: skip
    for secret in ("hunter2", "SEKRIT", "ENVSECRET"):
        assert secret not in shown, shown
    assert "abc" not in repr(CommandTarget("x", ["--token", "abc"]))


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
