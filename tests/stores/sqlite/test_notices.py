"""Notices between processes on one file: polled, never ended by a bad row, removed when old."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

import holdfast
from holdfast.stores import ManualClock, Record
from holdfast.stores.sqlite.store import SqliteStore
from tests.deadlines import patience
from tests.stores.sqlite.files import ask, tamper

pytestmark = pytest.mark.anyio


@pytest.mark.promise("store.notices")
async def test_nothing_ends_the_poller(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_sink(event: object) -> None:
        raise RuntimeError("a sink of somebody else's")

    async with holdfast.open_store(url, on_event=broken_sink) as store, store.listen("t") as heard:
        assert isinstance(store, SqliteStore)
        read = store._reader.read
        failures = [sqlite3.OperationalError("first"), OSError("second"), RuntimeError("third")]

        async def failing(sql: str, given: object) -> object:
            if failures:
                raise failures.pop()
            return await read(sql, given)  # type: ignore[arg-type]

        monkeypatch.setattr(store._reader, "read", failing)
        tamper(path, "INSERT INTO holdfast_notices (topic, body, at) VALUES ('other', x'00', 0), ('t', 'text', 0)")
        await store.publish("t", "still here")
        async with asyncio.timeout(patience(10)):
            found = [await anext(heard)]
            while found[-1] != holdfast.stores.Notice("t", "still here"):
                found.append(await anext(heard))
        assert found[0] == holdfast.stores.Gap()


@pytest.mark.promise("store.closed")
async def test_closing_ends_the_listeners_and_opening_again_works(url: str) -> None:
    store = holdfast.open_store(url)
    async with store:
        listening = store.listen("t")
        heard = await listening.__aenter__()
    with pytest.raises(holdfast.errors.LeaseClosed, match="closed while it was listened to"):
        await anext(heard)
    await listening.__aexit__(None, None, None)
    async with store:
        await store.commit(Record("k", "a"), expect=0)


@pytest.mark.promise("store.gap")
async def test_a_poller_that_missed_rows_says_so(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store, store.listen("t") as heard:
        await store.publish("t", 1)
        assert await anext(heard) == holdfast.stores.Notice("t", 1)
        with sqlite3.connect(path) as other:  # what a publisher does when the table has grown long
            other.execute("INSERT INTO holdfast_notices (seq, topic, body, at) VALUES (100, 't', x'32', 0)")
        other.close()
        async with asyncio.timeout(patience(10)):
            assert [await anext(heard), await anext(heard)] == [holdfast.stores.Gap(), holdfast.stores.Notice("t", 2)]


@pytest.mark.promise("store.notices")
async def test_old_notices_do_not_pile_up(path: Path, url: str) -> None:
    clock = ManualClock()
    async with holdfast.open_store(f"{url}?synchronous=normal", clock=clock) as store:
        for n in range(20):
            await store.publish("t", n)
        clock.advance(7200)
        await store.publish("t", "new")
        await store.reap()
        assert ask(path, "SELECT count(*) FROM holdfast_notices") == 1
