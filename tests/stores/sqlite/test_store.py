"""The SQLite store passes the whole suite, and says clearly what is wrong with an address or a lock."""

import sqlite3
from pathlib import Path

import pytest

import holdfast
from holdfast import events
from holdfast.core.clock import Clock
from holdfast.stores import Record, Write
from holdfast.stores.sql import schema
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import StoreSuite
from tests.deadlines import patience
from tests.stores.sqlite.files import open_and_close

pytestmark = pytest.mark.anyio


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/suite.db?timeout={min(60, patience(5)):.0f}"

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)


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
    with pytest.raises(holdfast.errors.ConfigError) as caught:
        await open_and_close(url.format(tmp=tmp_path))
    assert says in str(caught.value)
    assert remedy in str(caught.value)
    assert (tmp_path / "letter.txt").read_text().startswith("Dear")


@pytest.mark.promise("sqlite.bad-file")
async def test_a_file_that_must_exist_is_not_created(path: Path, url: str) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="there is no store"):
        await open_and_close(url, create=False)
    assert not path.exists()


@pytest.mark.promise("sqlite.schema")
async def test_an_older_schema_is_migrated_and_a_newer_one_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    async with holdfast.open_store(url, on_event=seen.append) as store:
        made = await store.commit(Record("k", "a", data=1), expect=0)
    kinds = [type(event) for event in seen if not isinstance(event, events.StoreAnswered)]
    assert kinds == [events.StoreMigrated, events.StoreOpened, events.StoreClosed]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda _: ["CREATE TABLE holdfast_extra (x INTEGER)"]])
        seen.clear()
        async with holdfast.open_store(url, on_event=seen.append) as store:
            assert await store.get("k", "a") == made
        assert [(e.before, e.after) for e in seen if isinstance(e, events.StoreMigrated)] == [(2, 3)]
    with pytest.raises(holdfast.errors.ConfigError, match=r"schema version 3; .* up to 2; upgrade Holdfast"):
        await open_and_close(url)


@pytest.mark.promise("sqlite.schema")
async def test_a_migration_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with holdfast.open_store(url) as store:
        made = await store.commit(Record("k", "a", data=1), expect=0)
    with monkeypatch.context() as patch:
        broken = ["CREATE TABLE holdfast_extra (x INTEGER)", "this is not SQL"]
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda _: broken])
        with pytest.raises(holdfast.errors.StoreDown):
            await open_and_close(url)
    async with holdfast.open_store(url) as store:
        assert await store.get("k", "a") == made


@pytest.mark.promise("store.settled")
async def test_a_commit_whose_answer_was_lost_is_settled_by_its_nonce(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.sqlite import steps as sqlite_steps
    from holdfast.stores.sqlite import store as sqlite

    def commit_and_lose(db, clock, writes, release, notice):
        sqlite_steps_commit(db, clock, writes, release, notice)
        raise _io_error()

    def lose(db, clock, writes, release, notice):
        raise _io_error()

    def lose_any(*_: object):
        raise _io_error()

    def commit_lose_and_be_overwritten(db, clock, writes, release, notice):
        sqlite_steps_commit(db, clock, writes, release, notice)
        overwrite(db, clock, writes[0])
        raise _io_error()

    def overwrite(db, clock, write):
        sqlite_steps_commit(db, clock, [write._replace(expect=write.rev, nonce="another")], [], bytes)

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
        with pytest.raises(holdfast.errors.WriteUnsettled):  # it had, and another wrote over it
            await store.commit(record.with_data(3), expect=2)
        record = await store.get("k", "a")
        assert record is not None
        monkeypatch.setattr(sqlite_steps, "commit", sqlite_steps_commit)
        other = await store.commit(Record("k", "b"), expect=0)
        monkeypatch.setattr(sqlite_steps, "commit", commit_lose_and_be_overwritten)
        both = [Write(record.with_data(4), expect=record.rev), Write(other.with_data(1), expect=1, entries=["x"])]
        found = await store.commit_all(both)  # it had, and the second record still shows it
        assert [(each.rev, each.data) for each in found] == [(record.rev + 1, 4), (2, 1)]
        record = await store.get("k", "a")
        assert record is not None
        monkeypatch.setattr(sqlite_steps, "commit", lose)
        with pytest.raises(holdfast.errors.StoreDown):  # it had not
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
                with pytest.raises(holdfast.errors.WriteUnsettled):
                    await call()

        async def no_read(self, sql, given):
            raise holdfast.errors.StoreDown("gone")

        monkeypatch.setattr(sqlite.SqliteStore, "_read", no_read)
        with pytest.raises(holdfast.errors.WriteUnsettled, match="rev 7 is unknown"):
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
                with pytest.raises(holdfast.errors.StoreDown, match="locked by another process"):
                    await call
            assert await store.get("k", "a") == record  # readers go on
            other.execute("ROLLBACK")
        other.close()
        assert (await store.commit(record, expect=1)).rev == 2


@pytest.mark.promise("sqlite.locked")
async def test_opening_a_locked_database_waits_and_then_says_so(path: Path, url: str) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(holdfast.errors.StoreDown, match="locked"):
            await open_and_close(f"{url}?timeout=0.2")
        other.execute("ROLLBACK")
    other.close()
    await open_and_close(url)


@pytest.mark.promise("sqlite.replaced")
async def test_a_file_removed_under_an_open_store_is_noticed(path: Path, url: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit(Record("k", "a"), expect=0)
        path.unlink()
        with pytest.raises(holdfast.errors.StoreDown, match="removed or replaced"):
            await store.commit(Record("k", "b"), expect=0)


@pytest.mark.promise("sqlite.durable")
async def test_commits_are_synced_to_disk_unless_told_otherwise(url: str) -> None:
    for setting, expected in (("", 2), ("?synchronous=normal", 1)):
        async with holdfast.open_store(url + setting) as store:
            assert isinstance(store, SqliteStore)
            assert (await store._writer.read("PRAGMA synchronous", ()))[0][0] == expected
