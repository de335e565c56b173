"""The SQLite store passes the whole suite, and says clearly what is wrong with a file."""

import asyncio
import resource
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import aiosqlite
import pytest

import holdfast
from holdfast import ManualClock, Record
from holdfast.core import events
from holdfast.core.clock import Clock
from holdfast.stores.sql import schema
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import StoreSuite

pytestmark = pytest.mark.anyio


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/suite.db"

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def _open(url: str, **settings: object) -> None:
    async with holdfast.open_store(url, **settings):  # type: ignore[arg-type]
        pass


@pytest.mark.promise("store.survives")
async def test_records_outlive_the_store_object(url: str) -> None:
    async with holdfast.open_store(url) as store:
        made = await store.commit(Record("k", "a", data={"n": 1}), expect=0, entries=["e"])
    async with holdfast.open_store(url) as store:
        assert await store.get("k", "a") == made
        assert [e.data for e in await store.log("k", "a")] == ["e"]


@pytest.mark.promise("sqlite.bad-file")
@pytest.mark.parametrize(
    ("url", "says", "remedy"),
    [
        ("sqlite:///{tmp}/missing/s.db", "does not exist", "mkdir -p"),
        ("sqlite:///{tmp}", "is a folder", "name a file"),
        ("sqlite:////proc/s.db", "can't be opened", "right to write"),
        ("sqlite:///{tmp}/letter.txt", "not an SQLite database", "another file"),
        ("sqlite:///", "names no file", "memory:"),
        ("sqlite:///:memory:", "names no file", "memory:"),
        ("sqlite://host/s.db", "takes no host", "sqlite:///file.db"),
        ("sqlite:s.db", "no slashes", "sqlite:///s.db"),
        ("sqlite:///./:memory:", "names no file", "memory:"),
        ("sqlite:///jobs#1.db", "has a #", "%23"),
        ("sqlite:///~/s.db", "only a shell", "whole path"),
        ("sqlite:///tmp/s.db", "does not exist", "four slashes"),
        ("sqlite:///{tmp}/s.db?timeout=3600", "timeout=3600", "timeout=5"),
        ("sqlite:///{tmp}/s.db?timeout=soon", "timeout=soon", "timeout=5"),
        ("sqlite:///{tmp}/s.db?synchronous=off", "synchronous=off", "full or normal"),
        ("sqlite:///{tmp}/s.db?colour=red", "'colour'", "known are"),
        ("mongodb://x", "'mongodb'", "sqlite:///"),
        ("just words", "not the URL", "sqlite:///"),
    ],
)
async def test_a_bad_address_is_explained(tmp_path: Path, url: str, says: str, remedy: str) -> None:
    (tmp_path / "letter.txt").write_text("Dear database, " * 100)
    with pytest.raises(holdfast.ConfigError) as caught:
        await _open(url.format(tmp=tmp_path))
    assert says in str(caught.value)
    assert remedy in str(caught.value)
    assert (tmp_path / "letter.txt").read_text().startswith("Dear")


@pytest.mark.promise("sqlite.bad-file")
async def test_a_file_that_must_exist_is_not_created(path: Path, url: str) -> None:
    with pytest.raises(holdfast.ConfigError, match="there is no store"):
        await _open(url, create=False)
    assert not path.exists()


@pytest.mark.promise("sqlite.schema")
async def test_an_older_schema_is_migrated_and_a_newer_one_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    async with holdfast.open_store(url, on_event=seen.append) as store:
        made = await store.commit(Record("k", "a", data=1), expect=0)
    assert [type(event) for event in seen] == [events.StoreMigrated, events.StoreOpened, events.StoreClosed]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda _: ["CREATE TABLE holdfast_extra (x INTEGER)"]])
        seen.clear()
        async with holdfast.open_store(url, on_event=seen.append) as store:
            assert await store.get("k", "a") == made
        assert [(e.before, e.after) for e in seen if isinstance(e, events.StoreMigrated)] == [(1, 2)]
    with pytest.raises(holdfast.ConfigError, match=r"schema version 2; .* up to 1; upgrade Holdfast"):
        await _open(url)


@pytest.mark.promise("sqlite.schema")
async def test_a_migration_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with holdfast.open_store(url) as store:
        made = await store.commit(Record("k", "a", data=1), expect=0)
    with monkeypatch.context() as patch:
        broken = ["CREATE TABLE holdfast_extra (x INTEGER)", "this is not SQL"]
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda _: broken])
        with pytest.raises(holdfast.StoreDown):
            await _open(url)
    async with holdfast.open_store(url) as store:
        assert await store.get("k", "a") == made


@pytest.mark.promise("store.corrupt")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE holdfast_records SET principal = ''",
        "UPDATE holdfast_records SET idle = -1.0",
        "UPDATE holdfast_records SET body = x'7b'",
        "UPDATE holdfast_records SET body = x'ff00'",
        "UPDATE holdfast_records SET body = NULL",
        "UPDATE holdfast_records SET body = 'text'",
        "UPDATE holdfast_records SET rev = 'many'",
        "UPDATE holdfast_records SET rev = 0",
        "UPDATE holdfast_records SET created = 'yesterday'",
        "UPDATE holdfast_records SET principal = x'00'",
        "UPDATE holdfast_records SET body = CAST('[NaN]' AS BLOB)",
    ],
)
async def test_a_damaged_row_is_corrupt_and_never_absent(path: Path, url: str, damage: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit(Record("k", "a", data=[1]), expect=0)
        _tamper(path, damage)
        await store.commit(Record("k", "b", data="fine"), expect=0)
        with pytest.raises(holdfast.CorruptRecord) as caught:
            await store.get("k", "a")
        assert (caught.value.kind, caught.value.id) == ("k", "a")
        page = await store.scan(kind="k", state=None)
        assert [record.id for record in page.records] == ["b"]
        assert [error.id for error in page.corrupt] == ["a"]
        assert await store.end("k", "a") is True  # what can't be read can still be ended
        assert await store.get("k", "a") is None


@pytest.mark.promise("store.corrupt")
async def test_a_damaged_log_or_claim_is_corrupt(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit(Record("k", "a"), expect=0, entries=["e"])
        await store.claim("k", "a", owner="me", ttl=100)
        _tamper(path, "UPDATE holdfast_log SET body = x'00'")
        with pytest.raises(holdfast.CorruptRecord):
            await store.log("k", "a")
        _tamper(path, "UPDATE holdfast_log SET at = 'noon'")
        with pytest.raises(holdfast.CorruptRecord):
            await store.log("k", "a")
        _tamper(path, "UPDATE holdfast_claims SET token = 'high'")
        with pytest.raises(holdfast.CorruptRecord):
            await store.holder("k", "a")
        assert await store.end("k", "a") is True
        assert await store.holder("k", "a") is None


def _plain_file(path: Path, url: str) -> None:
    """Everything in the one file, so that a bit of it can be flipped."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


@pytest.mark.promise("store.corrupt")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE holdfast_records SET id = CAST(x'62ff' AS TEXT) WHERE id = 'b'",
        "UPDATE holdfast_records SET id = CAST('b' AS BLOB) WHERE id = 'b'",
        "UPDATE holdfast_records SET kind = CAST('k' AS BLOB) WHERE id = 'b'",
        "UPDATE holdfast_records SET id = 'b' || char(7) WHERE id = 'b'",
        "UPDATE holdfast_records SET principal = CAST(x'ff' AS TEXT) WHERE id = 'b'",
        "UPDATE holdfast_records SET rev = CAST(x'ff' AS TEXT) WHERE id = 'b'",
    ],
)
async def test_a_row_with_damaged_text_is_told_once_and_paged_over(path: Path, url: str, damage: str) -> None:
    async with holdfast.open_store(url) as store:
        for id in "abc":
            await store.commit(Record("k", id), expect=0, entries=["e"])
        _tamper(path, damage)
        found: list[str] = []
        corrupt: list[holdfast.CorruptRecord] = []
        after: str | None = None
        for _ in range(4):
            page = await store.scan(state=None, limit=1, after=after)
            found += [record.id for record in page.records]
            corrupt += page.corrupt
            after = page.next
            if after is None:
                break
        assert after is None
        assert (found, len(corrupt)) == (["a", "c"], 1)
        _tamper(path, "UPDATE holdfast_records SET ended = 1.0, body = NULL")
        assert (await store.reap(ended_for=0)).tombstones == 3
        assert await store.count(state=None) == 0


@pytest.mark.promise("store.corrupt")
async def test_any_flipped_bit_is_told_in_an_error_of_ours(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store:
        for id in "abc":
            await store.commit(Record("k", id, data=1, idle=1e9), expect=0, entries=["e"])
    _plain_file(path, url)
    whole = path.read_bytes()
    random = Random(15)
    schema_text = whole.find(b"CREATE TABLE holdfast_meta")
    places = [schema_text - 100, *(whole.find(text) for text in (b"CREATE", b"holdfast_records", b"token"))]
    spots = [place + random.randrange(60) for place in places for _ in range(12)]
    spots += [random.randrange(len(whole)) for _ in range(30)]
    for spot in spots:
        flipped = bytearray(whole)
        flipped[spot] ^= random.choice((1, 2, 4, 8, 16, 32, 64, 128))
        path.write_bytes(flipped)
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
        with suppress(holdfast.HoldfastError):
            async with holdfast.open_store(url) as store:
                for work in (store.scan(state=None), store.get("k", "a"), store.log("k", "b"), store.reap()):
                    with suppress(holdfast.HoldfastError):
                        await work


@pytest.mark.promise("store.corrupt")
async def test_a_damaged_file_is_said_to_be_damaged(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store:
        for n in range(200):
            await store.commit(Record("k", str(n), data="x" * 1000), expect=0)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    with pytest.raises(holdfast.CorruptRecord, match="damaged"):
        async with holdfast.open_store(url) as store:
            await store.get("k", "7")


@pytest.mark.promise("sqlite.full-disk")
async def test_a_full_disk_is_said_and_nothing_is_lost(url: str) -> None:
    async with holdfast.open_store(url) as store:
        assert isinstance(store, SqliteStore)
        record = await store.commit(Record("k", "a", data="before"), expect=0)
        pages = (await store._writer.read("PRAGMA page_count", ()))[0][0]
        await store._writer.read(f"PRAGMA max_page_count = {pages + 2}", ())
        with pytest.raises(holdfast.StoreDown, match="full; free some space"):
            await store.commit(record.with_data("x" * 500_000), expect=1)
        assert await store.get("k", "a") == record
        await store._writer.read("PRAGMA max_page_count = 1000000", ())
        assert (await store.commit(record.with_data("after"), expect=1)).rev == 2


@pytest.mark.promise("sqlite.failing-disk")
async def test_a_disk_that_fails_under_a_commit_is_settled_by_reading_back(url: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with holdfast.open_store(url) as store:
        record = await store.commit(Record("k", "a", data="before"), expect=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # the kernel fails every write beyond this
        try:
            with pytest.raises(holdfast.StoreDown, match="failed"):
                await store.commit(record.with_data("x" * 500_000), expect=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await store.get("k", "a") == record
        assert (await store.commit(record.with_data("after"), expect=1)).rev == 2


@pytest.mark.promise("store.settled")
async def test_a_commit_whose_answer_was_lost_is_settled_by_its_nonce(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.sqlite import steps as sqlite_steps
    from holdfast.stores.sqlite import store as sqlite

    def commit_and_lose(db, clock, write):
        sqlite_steps_commit(db, clock, write)
        raise _io_error()

    def lose(db, clock, write):
        raise _io_error()

    def lose_any(*_: object):
        raise _io_error()

    def commit_lose_and_be_overwritten(db, clock, write):
        sqlite_steps_commit(db, clock, write)
        sqlite_steps_commit(db, clock, write._replace(expect=write.rev, nonce="another"))
        raise _io_error()

    def _io_error() -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        return error

    sqlite_steps_commit = sqlite_steps.commit
    async with holdfast.open_store(url) as store:
        record = await store.commit(Record("k", "a", data=1), expect=0)
        monkeypatch.setattr(sqlite_steps, "commit", commit_and_lose)
        record = await store.commit(record.with_data(2), expect=1)  # it had happened
        assert (record.rev, record.data) == (2, 2)
        monkeypatch.setattr(sqlite_steps, "commit", commit_lose_and_be_overwritten)
        with pytest.raises(holdfast.WriteUnsettled):  # it had, and another wrote over it
            await store.commit(record.with_data(3), expect=2)
        record = await store.get("k", "a")
        assert record is not None
        monkeypatch.setattr(sqlite_steps, "commit", lose)
        with pytest.raises(holdfast.StoreDown):  # it had not
            await store.commit(record.with_data(3), expect=record.rev)

        for call in (
            lambda: store.end("k", "a"),
            lambda: store.claim("k", "a", owner="me", ttl=1),
            lambda: store.publish("t", 1),
            lambda: store.touch("k", "a"),
        ):
            with monkeypatch.context() as patch:
                for step in ("end", "claim", "publish", "touch"):
                    patch.setattr(sqlite_steps, step, lose_any)
                with pytest.raises(holdfast.WriteUnsettled):
                    await call()

        async def no_read(self, sql, given):
            raise holdfast.StoreDown("gone")

        monkeypatch.setattr(sqlite.SqliteStore, "_read", no_read)
        with pytest.raises(holdfast.WriteUnsettled, match="rev 5 is unknown"):
            await store.commit(record.with_data(3), expect=record.rev)


@pytest.mark.promise("sqlite.locked")
async def test_a_database_locked_for_too_long_is_down_and_not_absent(path: Path, url: str) -> None:
    async with holdfast.open_store(f"{url}?timeout=0.2") as store:
        record = await store.commit(Record("k", "a", data=1), expect=0)
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            for call in (
                store.commit(record, expect=1),
                store.touch("k", "a"),
                store.end("k", "a"),
                store.claim("k", "a", owner="me", ttl=1),
                store.publish("t", 1),
                store.reap(),
            ):
                with pytest.raises(holdfast.StoreDown, match="locked by another process"):
                    await call
            assert await store.get("k", "a") == record  # readers go on
            other.execute("ROLLBACK")
        other.close()
        assert (await store.commit(record, expect=1)).rev == 2


@pytest.mark.promise("sqlite.locked")
async def test_opening_a_locked_database_waits_and_then_says_so(path: Path, url: str) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(holdfast.StoreDown, match="locked"):
            await _open(f"{url}?timeout=0.2")
        other.execute("ROLLBACK")
    other.close()
    await _open(url)


@pytest.mark.promise("store.cancel")
async def test_a_cancelled_open_leaves_no_thread_behind(url: str) -> None:
    for steps in range(12):
        task = asyncio.create_task(_open(url))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await _open(url)


@pytest.mark.promise("store.cancel")
async def test_an_open_cancelled_twice_under_a_lock_leaves_no_thread_behind(path: Path, url: str) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        task = asyncio.create_task(_open(f"{url}?timeout=0.3"))
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
    await store.commit(holdfast.Record("k", "a"), expect=0)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


@pytest.mark.promise("sqlite.replaced")
async def test_a_file_removed_under_an_open_store_is_noticed(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit(Record("k", "a"), expect=0)
        path.unlink()
        with pytest.raises(holdfast.StoreDown, match="removed or replaced"):
            await store.commit(Record("k", "b"), expect=0)


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
            assert await anext(heard) == holdfast.Notice("t", 1)

    asyncio.run(listen_again())
    asyncio.run(listen_again())


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
        _tamper(path, "INSERT INTO holdfast_notices (topic, body, at) VALUES ('other', x'00', 0), ('t', 'text', 0)")
        await store.publish("t", "still here")
        async with asyncio.timeout(10):
            found = [await anext(heard)]
            while found[-1] != holdfast.Notice("t", "still here"):
                found.append(await anext(heard))
        assert found[0] == holdfast.Gap()


@pytest.mark.promise("store.closed")
async def test_closing_ends_the_listeners_and_opening_again_works(url: str) -> None:
    store = holdfast.open_store(url)
    async with store:
        listening = store.listen("t")
        heard = await listening.__aenter__()
    with pytest.raises(holdfast.LeaseClosed, match="closed while it was listened to"):
        await anext(heard)
    await listening.__aexit__(None, None, None)
    async with store:
        await store.commit(Record("k", "a"), expect=0)


@pytest.mark.promise("store.gap")
async def test_a_poller_that_missed_rows_says_so(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store, store.listen("t") as heard:
        await store.publish("t", 1)
        assert await anext(heard) == holdfast.Notice("t", 1)
        with sqlite3.connect(path) as other:  # what a publisher does when the table has grown long
            other.execute("INSERT INTO holdfast_notices (seq, topic, body, at) VALUES (100, 't', x'32', 0)")
        other.close()
        async with asyncio.timeout(10):
            assert [await anext(heard), await anext(heard)] == [holdfast.Gap(), holdfast.Notice("t", 2)]


@pytest.mark.promise("store.notices")
async def test_old_notices_do_not_pile_up(path: Path, url: str) -> None:
    clock = ManualClock()
    async with holdfast.open_store(f"{url}?synchronous=normal", clock=clock) as store:
        for n in range(20):
            await store.publish("t", n)
        clock.advance(7200)
        await store.publish("t", "new")
        await store.reap()
        assert _ask(path, "SELECT count(*) FROM holdfast_notices") == 1


@pytest.mark.promise("sqlite.door")
async def test_aiosqlite_still_has_the_door_that_we_use(path: Path) -> None:
    async with aiosqlite.connect(path) as connection:
        assert (
            await connection._execute(lambda db, n: db.execute("SELECT ?", (n,)).fetchone()[0], connection._conn, 7)
            == 7
        )


@pytest.mark.promise("sqlite.durable")
async def test_commits_are_synced_to_disk_unless_told_otherwise(url: str) -> None:
    for setting, expected in (("", 2), ("?synchronous=normal", 1)):
        async with holdfast.open_store(url + setting) as store:
            assert isinstance(store, SqliteStore)
            assert (await store._writer.read("PRAGMA synchronous", ()))[0][0] == expected


def _tamper(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql)
    db.close()


def _ask(path: Path, sql: str) -> object:
    with sqlite3.connect(path) as db:
        found = db.execute(sql).fetchone()[0]
    db.close()
    return found
