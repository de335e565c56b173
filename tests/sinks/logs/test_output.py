"""Lines on their way to a stream that takes them, takes them late, or never does."""

import io
import json
import logging
import os
import time
from collections.abc import Iterator

import pytest

from holdfast.sinks.logs.output import AT_ONCE, MOST, WAITING, Logging, LogOutput
from tests.deadlines import patience

log = logging.getLogger("holdfast.tests.output")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    log.propagate = False
    log.setLevel(logging.DEBUG)
    yield
    for handler in tuple(log.handlers):
        log.removeHandler(handler)
        handler.close()


def lines(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]


@pytest.mark.promise("observe.logs")
def test_lines_come_in_order_with_the_trace_of_the_code_that_logs() -> None:
    log.addHandler(output := LogOutput("json", stream=(stream := io.StringIO()), trace_id=lambda: "c" * 32))
    for number in range(2_000):
        log.debug("line %d", number)
    output.close()
    assert lines(stream) == [f"line {number}" for number in range(2_000)]
    assert json.loads(stream.getvalue().splitlines()[0])["trace_id"] == "c" * 32


@pytest.mark.promise("observe.logs-bounded")
def test_a_stream_that_blocks_delays_nobody_and_what_it_missed_is_counted() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        log.addHandler(output := LogOutput("json", stream=writer))
        began = time.monotonic()
        number = 0
        while output.dropped < 10:  # the pipe is full, then the queue
            log.debug("line %d %s", number, "x" * 5_000)
            number += 1
            assert number < 10 * WAITING // 5_000
        assert time.monotonic() - began < patience(10)
        assert output._waiting <= WAITING
        os.set_blocking(reading, False)
        seen = b""
        while b"log lines were dropped" not in seen or not seen.endswith(b"\n"):
            assert time.monotonic() - began < patience(20)
            seen += reader.read() or b""
        log.removeHandler(output)
        output.close()
        seen += reader.read() or b""
    messages = [json.loads(line)["message"] for line in seen.splitlines()]
    assert f"{output.dropped} log lines were dropped: they were not taken as fast as they came" in messages
    assert len(messages) == number - output.dropped + 1


@pytest.mark.promise("observe.logs-bounded")
def test_a_stream_that_never_takes_anything_holds_up_the_end_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.sinks.background.CLOSE_SECONDS", 0.2)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as writer:
        os.set_blocking(writing, False)  # as the other end of a terminal may do
        log.addHandler(output := LogOutput("text", stream=writer))
        for _ in range(200):
            log.debug("x" * 5_000)
        began = time.monotonic()
        log.removeHandler(output)
        output.close()
        output.close()
        assert time.monotonic() - began < patience(5)
        with os.fdopen(os.dup(reading), "rb") as drained:
            while output._queue._thread.is_alive():
                assert time.monotonic() - began < patience(20)
                drained.read1(1_000_000)


@pytest.mark.promise("observe.logs-bounded")
def test_a_stream_that_raises_loses_lines_and_nothing_else() -> None:
    class Broken(io.StringIO):
        def write(self, s: str, /) -> int:
            raise OSError(32, "Broken pipe")

    log.addHandler(output := LogOutput("text", stream=Broken()))
    for _ in range(3 * AT_ONCE):
        log.debug("x")
    output.close()
    assert output.dropped == 3 * AT_ONCE


@pytest.mark.promise("observe.logs-bounded")
def test_one_place_in_the_code_writes_so_many_lines_in_a_while() -> None:
    log.addHandler(output := LogOutput("json", stream=(stream := io.StringIO())))
    for number in range(5 * MOST):
        log.warning("hung up on client %d", number)
    log.warning("something else")
    output.close()
    shown = lines(stream)
    assert len(shown) == MOST + 2
    assert shown[-1].startswith(f"{4 * MOST} more lines from test_output.py:")


@pytest.mark.promise("observe.logs")
def test_other_libraries_log_warnings_only_and_loggers_are_left_as_they_were() -> None:
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    before = root.level, ours.level, tuple(root.handlers)
    logs = Logging("debug", "text", stream=(stream := io.StringIO()))
    try:
        ours.debug("ours")
        logging.getLogger("aiosqlite").debug("executing with values")
        logs.choose("error", "json")
        ours.warning("not an error")
        ours.error("an error")
    finally:
        logs.close()
    assert (root.level, ours.level, tuple(root.handlers)) == before
    text, data = stream.getvalue().splitlines()
    assert text.endswith("DEBUG holdfast: ours")
    assert json.loads(data)["message"] == "an error"


@pytest.mark.promise("observe.logs")
def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, begins in ((Terminal(), "2"), (io.StringIO(), "{")):
        log.addHandler(output := LogOutput("auto", stream=stream))
        log.debug("x")
        log.removeHandler(output)
        output.close()
        assert stream.getvalue().startswith(begins)
