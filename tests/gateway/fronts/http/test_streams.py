"""Event streams towards a client: what is kept of them, and what an event id may be."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from holdfast.gateway.config.settings import ClientLimits
from holdfast.gateway.fronts.http.streams import Room, Stream, Streams
from tests.deadlines import patience


@pytest.mark.promise("gateway.hostile")
@pytest.mark.parametrize("number", ["9" * 4400, "9" * 16, "-1", "１", "", "1e3"])
def test_an_event_id_that_nobody_gave_resumes_the_clients_own_stream(number: str) -> None:
    streams = Streams()
    answer = streams.answer()
    answer.add({"n": 1})
    assert streams.resume(f"{answer.id}-{number}") == (streams.own, 0)
    assert streams.resume(f"{answer.id}-0") == (answer, 0)


def small(stream: int = 1024, session: int = 4096) -> ClientLimits:
    return ClientLimits(stream_bytes=stream, session_bytes=session)


TEXT = {"text": "x" * 200}


@pytest.mark.promise("gateway.back-pressure")
def test_what_is_kept_is_bounded_in_bytes_of_a_stream_a_session_and_all() -> None:
    everything = Room(10_000)
    sessions = [Streams(small(), everything) for _ in range(4)]
    for streams in sessions:
        answers = [streams.answer() for _ in range(8)]
        for _ in range(50):
            for stream in (streams.own, *answers):
                stream.add(TEXT)
                assert stream.size <= 1024 + 300
                assert streams.room.used <= 4096
                assert everything.used <= 10_000
    for streams in sessions:
        streams.forget()
    assert everything.used == 0


@pytest.mark.promise("gateway.back-pressure")
async def test_one_large_answer_stays_for_its_reader_and_goes_with_it() -> None:
    streams = Streams(small())
    stream = streams.answer()
    stream.expect_reader()
    stream.add({"text": "x" * 10_000})
    stream.finish()
    assert b"x" * 10_000 in b"".join([event async for event in stream.after(0, until_whole=True)])
    assert not stream.cut_off
    assert streams.room.used == 0  # more than a session may keep


@pytest.mark.promise("gateway.back-pressure")
async def test_a_reader_that_is_too_far_behind_is_cut_off_and_none_waits_for_one_that_left() -> None:
    stream = Streams(small()).answer()
    stream.expect_reader()
    reading = stream.after(0)
    stream.add(TEXT)
    assert b'"text"' in await anext(reading)
    for _ in range(20):
        stream.add(TEXT)
    writer = asyncio.create_task(stream.keep_up())
    assert [event async for event in reading] == []
    assert stream.cut_off
    await asyncio.wait_for(writer, patience(5))
    assert [event async for event in _ended(stream, 1)] != []  # whoever comes back has what is kept


def _ended(stream: Stream, number: int) -> AsyncGenerator[bytes]:
    stream.end()
    return stream.after(number)


@pytest.mark.promise("gateway.front-2025")
async def test_events_of_another_process_are_not_mistaken_for_ours() -> None:
    old, new = Streams(), Streams()
    for number in range(5):
        old.own.add({"n": number})
    event = old.own.id + "-5"
    new.own.add({"n": "new"})
    assert new.resume(event) == (new.own, 0)
    assert new.resume("nonsense") == (new.own, 0)
    answer = old.answer()
    answer.add({})
    assert old.resume(f"{answer.id}-1") == (answer, 1)
    assert old.resume(f"{answer.id}-99")[0] is old.own
