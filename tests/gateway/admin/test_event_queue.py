"""What waits for a reader of events: bounded, in order, with what was lost."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from holdfast import events
from holdfast.events import BackendChanged, Event
from holdfast.gateway.admin.event_queue import EventQueue
from holdfast.gateway.admin.shown import Wanted
from tests.deadlines import patience


def changed(why: str = "", backend: str = "counter") -> BackendChanged:
    return BackendChanged(time.time(), backend, "down", why)


async def taken(queue: EventQueue) -> list[dict[str, Any]]:
    async with asyncio.timeout(patience(5)):
        return [json.loads(line) for line in (await queue.take()).splitlines()]


@pytest.mark.promise("observe.events-stream")
async def test_what_does_not_fit_is_counted_and_reported_in_its_place() -> None:
    queue = EventQueue(Wanted(), most=1000)
    for number in range(50):
        queue(changed(f"{number} {'x' * 100}"))
    lines = await taken(queue)
    kept = [line for line in lines if "event" in line]
    assert 1 <= len(kept) < 10
    assert lines[-1] == {"lost": 50 - len(kept)}
    assert [line["event"]["why"].split()[0] for line in kept] == [str(number) for number in range(len(kept))]
    queue(changed("again"))
    [line] = await taken(queue)
    assert line["event"]["why"] == "again"


@pytest.mark.promise("observe.events-stream")
async def test_events_of_many_threads_arrive_or_are_counted() -> None:
    queue = EventQueue(Wanted(), most=10_000)

    def send() -> None:
        for _ in range(500):
            queue(changed())

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    count = 0
    async with asyncio.timeout(patience(20)):
        while count < 2000:
            count += sum(line.get("lost", 1) for line in await taken(queue))
    for thread in threads:
        thread.join()
    assert count == 2000


@pytest.mark.promise("observe.events-stream")
@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ({}, ["BackendChanged", "GatewaySessionBegan", "RequestSent", "CallerRefused"]),
        ({"kinds": ["BackendChanged"]}, ["BackendChanged"]),
        ({"backend": "counter"}, ["BackendChanged", "RequestSent"]),
        ({"session": "0123456789abcdef"}, ["GatewaySessionBegan"]),
        ({"caller": "alice"}, ["GatewaySessionBegan", "CallerRefused"]),
        ({"caller": "alice", "session": "ffff"}, []),
    ],
)
async def test_a_reader_gets_what_it_wants(wanted: dict[str, Any], kinds: list[str]) -> None:
    queue = EventQueue(Wanted.parse(wanted))
    for event in (
        changed(),
        events.GatewaySessionBegan(1.0, "0123456789abcdef", "alice", "2025"),
        sent("0123456789abcdef"),
        events.CallerRefused(1.0, 401, "no", "alice", None),
        changed(backend="other") if wanted.get("backend") else events.RunEnded(1.0, "r", "bob", 1.0, True),
    ):
        queue(event)
    queue(events.ConfigurationRead(1.0, "", None, (), (), ()))
    queue._filled.set()
    found = [line["event"]["kind"] for line in await taken(queue)]
    assert [kind for kind in found if kind not in ("RunEnded", "ConfigurationRead")] == kinds


def sent(session: str) -> events.RequestSent:
    return events.RequestSent(
        1.0, "counter", "tools/call", "t", 0.1, "ok", None, None, 1, session, "2025", "v", "tcp", None
    )


SECRET = "s3cret-of-somebody-else"


@pytest.mark.promise("observe.events-stream")
@pytest.mark.parametrize(
    "event",
    [
        sent(SECRET),
        events.HandshakeDone(1.0, "s", 1, "2025", "v", SECRET, False),
        events.LinkClosed(1.0, "s", SECRET, True, 0),
        events.LinkSessionReplaced(1.0, "s", SECRET, SECRET, 2, True, False),
        events.ChildStderr(1.0, "s", 1, f"token={SECRET}"),
        events.StrayMessage(1.0, "s", SECRET),
        events.RequestServed(
            1.0, "tools/call", "t", "s", 0.1, "ok", None, None, "k" * 32, "p", "c", 1, "2025", "v", "tcp", None,
            {"argument": SECRET},
        ),
    ],
)  # fmt: skip
async def test_no_event_shows_ids_of_servers_sessions_arguments_or_what_programs_print(event: Event) -> None:
    queue = EventQueue(Wanted())
    queue(event)
    [line] = await taken(queue)
    assert line["event"]["kind"] == type(event).__name__
    assert SECRET not in json.dumps(line)
    assert SECRET[:5] not in json.dumps(line)


@pytest.mark.promise("observe.events-stream")
async def test_texts_of_others_are_cut_and_every_event_can_be_shown() -> None:
    queue = EventQueue(Wanted())
    queue(changed("\ud800\x1b[31m" + "x" * 100_000))
    data = await queue.take()
    assert len(data) < 1000
    assert b"\x1b" not in data
    assert data.isascii()
