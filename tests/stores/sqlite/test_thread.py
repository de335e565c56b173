"""The threads of a store: none is left behind by whoever is cancelled or never closes."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import aiosqlite
import pytest

import holdfast
from holdfast.stores import Record
from tests.stores.sqlite.files import open_and_close

pytestmark = pytest.mark.anyio


@pytest.mark.promise("store.cancel")
async def test_a_cancelled_open_leaves_no_thread_behind(url: str) -> None:
    for steps in range(12):
        task = asyncio.create_task(open_and_close(url))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await open_and_close(url)


@pytest.mark.promise("store.cancel")
async def test_an_open_cancelled_twice_under_a_lock_leaves_no_thread_behind(path: Path, url: str) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        task = asyncio.create_task(open_and_close(f"{url}?timeout=0.3"))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        other.execute("ROLLBACK")
    other.close()


@pytest.mark.promise("store.cancel")
async def test_a_write_whose_caller_has_gone_is_not_done_any_more(path: Path, url: str) -> None:
    async with holdfast.open_store(f"{url}?timeout=1") as store:
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = [
                asyncio.create_task(store.commit(Record("k", str(n)), expect=0)) for n in range(20)
            ]  # the first waits for the lock, the others for the first
            await asyncio.sleep(0)
            for task in waiting[1:]:
                task.cancel()
            await asyncio.wait(waiting[1:])
            other.execute("ROLLBACK")
        other.close()
        await waiting[0]
        await store.commit(Record("k", "last"), expect=0)
        assert [r.id for r in (await store.scan(kind="k")).records] == ["0", "last"]


@pytest.mark.promise("sqlite.exit")
def test_a_store_that_was_never_closed_does_not_hang_the_exit(path: Path) -> None:
    code = f"""
import asyncio, holdfast
async def main():
    store = holdfast.open_store("sqlite:///{path}")
    await store.__aenter__()
    await store.commit(holdfast.stores.Record("k", "a"), expect=0)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


@pytest.mark.promise("store.loop")
def test_a_store_belongs_to_the_loop_that_opened_it(url: str) -> None:
    store = holdfast.open_store(url)
    with asyncio.Runner() as one, asyncio.Runner() as two:
        one.run(store.__aenter__())
        with pytest.raises(holdfast.UsageError, match="another event loop"):
            two.run(store.get("k", "a"))
        one.run(store.__aexit__(None, None, None))

    async def listen_again() -> None:
        async with store, store.listen("t") as heard:
            await store.publish("t", 1)
            assert await anext(heard) == holdfast.stores.Notice("t", 1)

    asyncio.run(listen_again())
    asyncio.run(listen_again())


@pytest.mark.promise("sqlite.door")
async def test_aiosqlite_still_has_the_door_that_we_use(path: Path) -> None:
    async with aiosqlite.connect(path) as connection:
        assert (
            await connection._execute(lambda db, n: db.execute("SELECT ?", (n,)).fetchone()[0], connection._conn, 7)
            == 7
        )
