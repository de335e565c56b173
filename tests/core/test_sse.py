"""Server-sent events, however they are cut."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.sse import EventTooLarge, Parser, ServerSentEvent

STREAM = (
    b": comment\n\n"
    b"id: 1\nretry: 2500\ndata: \n\n"
    b'event: message\r\nid: 2\r\ndata: {"a":1}\r\n\r\n'
    b"data: one\rdata: two\r\r"
    b"data\n\n"
    b"id: bad\0id\ndata:no space\nunknown: x\n\n"
    b"data: unfinished"
)
EVENTS = [
    ServerSentEvent(b"", b"", "1", 2.5),
    ServerSentEvent(b'{"a":1}', b"message", "2", None),
    ServerSentEvent(b"one\ntwo", b"", None, None),
    ServerSentEvent(b"", b"", None, None),
    ServerSentEvent(b"no space", b"", None, None),
]


@pytest.mark.promise("link.sse")
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_a_stream_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    parser = Parser(1000)
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [event for a, b in itertools.pairwise(edges) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS
    assert parser.last_id == "2"


@pytest.mark.promise("link.sse")
def test_one_event_of_many_megabytes_takes_linear_time() -> None:
    parser = Parser(20_000_000)
    chunk = b"x" * 1000
    assert parser.feed(b"data: ") == []
    for _ in range(10_000):
        assert parser.feed(chunk) == []
    [event] = parser.feed(b"\n\n")
    assert len(event.data) == 10_000_000


@pytest.mark.promise("link.sse")
@pytest.mark.parametrize("hostile", [b"data: " + b"x" * 2000, b"data: xx\n" * 500, b"x" * 2000])
def test_what_is_over_the_cap_is_refused(hostile: bytes) -> None:
    with pytest.raises(EventTooLarge):
        Parser(1000).feed(hostile)


@pytest.mark.promise("link.sse")
@given(st.binary(max_size=300))
def test_any_bytes_are_taken_without_an_error(data: bytes) -> None:
    Parser(10_000).feed(data)


@pytest.mark.promise("link.sse")
@pytest.mark.parametrize("id", ["ключ-😀".encode(), b"\xff\xfe", b"plain", "é".encode("latin-1")])
def test_an_id_keeps_its_bytes_and_can_stand_in_a_header(id: bytes) -> None:
    parser = Parser(1000)
    parser.feed(b"id: " + id + b"\ndata: x\n\n")
    assert parser.last_id is not None
    assert parser.last_id.encode("latin-1") == id


@pytest.mark.promise("link.sse")
@pytest.mark.parametrize("id", [b"", b"x" * 5_000])
def test_an_id_that_no_header_takes_ends_resumption_instead_of_resuming_elsewhere(id: bytes) -> None:
    parser = Parser(10_000)
    parser.feed(b"id: 1\ndata: x\n\n")
    parser.feed(b"id: " + id + b"\ndata: y\n\n")
    assert parser.last_id is None


@pytest.mark.promise("link.sse")
@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (b"0", 0),
        (b"1500", 1.5),
        (b"86400000", 60),
        (b"9" * 5_000, 60),
        (b"-1", None),
        (b"1.5", None),
        ("²".encode("latin-1"), None),
    ],
)
def test_a_server_can_not_ask_for_silence_for_good(retry: bytes, seconds: float | None) -> None:
    [event] = Parser(10_000).feed(b"retry: " + retry + b"\ndata: x\n\n")
    assert event.retry == seconds


@pytest.mark.promise("link.sse")
def test_an_event_of_many_short_lines_takes_little_more_than_its_bytes() -> None:
    parser, line = Parser(10_000_000), b"data:xy\n"
    tracemalloc.start()
    try:
        for _ in range(300):
            parser.feed(line * 1_000)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * 300_000 * len(line)
    [event] = parser.feed(b"\n")
    assert len(event.data) == 300_000 * 3 - 1
