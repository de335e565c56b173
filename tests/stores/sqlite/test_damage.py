"""Damaged rows, files and disks: told in errors of ours, never absent, and nothing else is lost."""

import resource
import sqlite3
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.stores import Record
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.sqlite.files import tamper

pytestmark = pytest.mark.anyio


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
        tamper(path, damage)
        await store.commit(Record("k", "b", data="fine"), expect=0)
        with pytest.raises(holdfast.errors.CorruptRecord) as caught:
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
        tamper(path, "UPDATE holdfast_log SET body = x'00'")
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.log("k", "a")
        tamper(path, "UPDATE holdfast_log SET at = 'noon'")
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.log("k", "a")
        tamper(path, "UPDATE holdfast_claims SET token = 'high'")
        with pytest.raises(holdfast.errors.CorruptRecord):
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
        tamper(path, damage)
        found: list[str] = []
        corrupt: list[holdfast.errors.CorruptRecord] = []
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
        tamper(path, "UPDATE holdfast_records SET ended = 1.0, body = NULL")
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
    with pytest.raises(holdfast.errors.CorruptRecord, match="damaged"):
        async with holdfast.open_store(url) as store:
            await store.get("k", "7")


@pytest.mark.promise("sqlite.full-disk")
async def test_a_full_disk_is_said_and_nothing_is_lost(url: str) -> None:
    async with holdfast.open_store(url) as store:
        assert isinstance(store, SqliteStore)
        record = await store.commit(Record("k", "a", data="before"), expect=0)
        pages = (await store._writer.read("PRAGMA page_count", ()))[0][0]
        await store._writer.read(f"PRAGMA max_page_count = {pages + 2}", ())
        with pytest.raises(holdfast.errors.StoreDown, match="full; free some space"):
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
            with pytest.raises(holdfast.errors.StoreDown, match="failed"):
                await store.commit(record.with_data("x" * 500_000), expect=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await store.get("k", "a") == record
        assert (await store.commit(record.with_data("after"), expect=1)).rev == 2
