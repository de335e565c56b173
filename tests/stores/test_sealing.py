"""Sealed stores: nothing readable at rest, nothing moved, put back or planted, keys that rotate."""

import base64
import secrets
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.stores import Record
from holdfast.stores.archive import archive_of, reseal_store
from holdfast.stores.sealing import SealingCodec, new_key
from holdfast.testing import StoreSuite
from tests.deadlines import patience
from tests.servers import Postgres, Valkey

pytestmark = pytest.mark.anyio


class TestSealedSqlite(StoreSuite):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.url, self.key = f"sqlite:///{tmp_path}/sealed.db?timeout={min(60, patience(5)):.0f}", new_key()

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock, keys=[self.key])


@pytest.fixture(scope="module")
def suite_database(postgres: Postgres) -> str:
    postgres.psql("CREATE DATABASE suite_sealed")
    return postgres.url.replace("/holdfast", "/suite_sealed")


class TestSealedPostgres(StoreSuite):
    key = new_key()

    @pytest.fixture(autouse=True)
    def server(self, suite_database: str) -> None:
        self.url = suite_database

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock, keys=[self.key])


class TestSealedValkey(StoreSuite):
    key = new_key()

    @pytest.fixture(autouse=True)
    def server(self, valkey: Valkey) -> None:
        self.url = f"{valkey.url}?prefix=suite-sealed"

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock, keys=[self.key])


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def any_url(request: pytest.FixtureRequest, url: str) -> str:
    """Of each kind of store, in a place of its own: sealed and plain records do not mix in one."""
    if url.startswith("redis"):
        return f"{url}?prefix=t{secrets.token_hex(4)}"
    if url.startswith("postgresql"):
        name = f"t{secrets.token_hex(4)}"
        request.getfixturevalue("postgres").psql(f"CREATE DATABASE {name}")
        return url.replace("/holdfast", f"/{name}")
    return url


@pytest.mark.promise("sealing.secret")
async def test_nothing_of_the_data_is_readable_at_rest(tmp_path: Path, key: str) -> None:
    path = tmp_path / "s.db"
    async with holdfast.open_store(f"sqlite:///{path}", keys=[key]) as store:
        made = await store.commit(Record("k", "a", data={"text": "s3cret-data"}), expect=0, entries=["s3cret-entry"])
        assert await store.get("k", "a") == made
    raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"s3cret" not in raw
    assert b"holdfast_records" in raw


@pytest.mark.promise("sealing.bound")
async def test_a_sealed_body_is_good_only_where_it_was_sealed(any_url: str, key: str) -> None:
    async with holdfast.open_store(any_url, keys=[key]) as store:
        archive = archive_of(store)
        first = await store.commit(Record("k", "a", data="first"), expect=0, entries=["e1"])
        older = await archive.row("k", "a")
        await store.commit(first.with_data("second"), expect=1, entries=["e2"])
        await store.commit(Record("k", "b", data="other"), expect=0, entries=["o1"])
        current, other = await archive.row("k", "a"), await archive.row("k", "b")
        assert older
        assert current
        assert other
        assert older.body
        assert other.body
        for planted in (older.body, other.body, b'"planted"', current.body[:-1] if current.body else b"", b"\x01hf"):
            assert await archive.swap(current, planted)
            with pytest.raises((holdfast.errors.CorruptRecord, holdfast.errors.ConfigError)) as caught:
                await store.get("k", "a")
            assert caught.value.id == "a"
        assert current.body
        assert await archive.swap(current, current.body)
        assert (await store.get("k", "a")).data == "second"  # type: ignore[union-attr]
        e1, e2 = await archive.log("k", "a", 0, 10)
        assert await archive.swap_log("k", "a", e2, e1.body)
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.log("k", "a")


@pytest.mark.promise("sealing.bound")
async def test_a_record_given_to_another_principal_does_not_open(tmp_path: Path, key: str) -> None:
    path = tmp_path / "s.db"
    async with holdfast.open_store(f"sqlite:///{path}", keys=[key]) as store:
        await store.commit(Record("k", "a", holdfast.Principal("alice"), "hers"), expect=0)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE holdfast_records SET principal = 'bob'")
        db.close()
        with pytest.raises(holdfast.errors.CorruptRecord, match="changed, copied or put back"):
            await store.get("k", "a")


@pytest.mark.promise("sealing.keys")
async def test_wrong_keys_and_no_keys_are_told_apart_and_never_shown(any_url: str, key: str) -> None:
    other = new_key()
    async with holdfast.open_store(any_url, keys=[key]) as store:
        await store.commit(Record("k", "a", data=1), expect=0)
    async with holdfast.open_store(any_url, keys=[other]) as store:
        with pytest.raises(
            holdfast.errors.ConfigError, match=r"k/a is sealed with key \w{8}, which is not among the 1 keys"
        ):
            await store.get("k", "a")
    async with holdfast.open_store(any_url) as store:
        with pytest.raises(holdfast.errors.ConfigError, match="opened without keys"):
            await store.get("k", "a")
    for bad in ("short", "", "!" * 44, b"x" * 31, base64.b64encode(b"x" * 33).decode()):
        with pytest.raises(holdfast.errors.ConfigError) as caught:
            holdfast.open_store(any_url, keys=[key, bad])
        assert "sealing key 2" in str(caught.value)
        assert key not in str(caught.value)
        assert not bad or str(bad) not in str(caught.value)
    with pytest.raises(holdfast.errors.ConfigError, match="empty"):
        holdfast.open_store(any_url, keys=[])


@pytest.mark.promise("sealing.rotate")
async def test_keys_rotate_while_others_write(any_url: str, key: str) -> None:
    new = new_key()
    async with holdfast.open_store(any_url) as store:
        for n in range(5):
            await store.commit(Record("k", f"plain{n}", data=n), expect=0, entries=[n, n])
    async with holdfast.open_store(any_url, keys=[key]) as store:
        for n in range(5):
            record = await store.commit(Record("k", f"old{n}", data=n), expect=0, entries=[n])
            await store.commit(record, expect=1, entries=["again"])
        await store.commit(Record("k", "ended"), expect=0)
        await store.end("k", "ended")
    ring = [new, key]
    async with holdfast.open_store(any_url, keys=ring) as store:
        await store.commit(Record("k", "new", data="new"), expect=0)
        written = False
        moves = []
        async for move in reseal_store(store, SealingCodec(1 << 20, ring), plaintext=True):
            moves.append(move)
            if not written:  # somebody else's write, in the middle
                record = await store.get("k", "old4")
                assert record is not None
                await store.commit(record.with_data("meanwhile"), expect=record.rev, entries=["meanwhile"])
                written = True
        assert len(moves) == 12
        assert sum(move.copied for move in moves) == 10
        assert [m async for m in reseal_store(store, SealingCodec(1 << 20, ring)) if m.copied] == []
    async with holdfast.open_store(any_url, keys=[new]) as store:
        found: dict[str, Any] = {r.id: r.data for r in (await store.scan(kind="k")).records}
        assert found == {
            **{f"plain{n}": n for n in range(5)},
            **{f"old{n}": n for n in range(4)},
            "old4": "meanwhile",
            "new": "new",
        }
        assert [e.data for e in await store.log("k", "old4")] == [4, "again", "meanwhile"]
        assert [e.data for e in await store.log("k", "plain3")] == [3, 3]


@pytest.mark.promise("sealing.rotate")
async def test_rotating_does_not_turn_planted_plaintext_into_sealed_data(any_url: str, key: str) -> None:
    ring = [new_key(), key]
    async with holdfast.open_store(any_url, keys=[key]) as store:
        await store.commit(Record("k", "a", data="true"), expect=0)
        row = await archive_of(store).row("k", "a")
        assert row is not None
        assert await archive_of(store).swap(row, b'"planted"')
        with pytest.raises(holdfast.errors.CorruptRecord, match="not sealed"):
            async for _ in reseal_store(store, SealingCodec(1 << 20, ring)):
                pass
    async with holdfast.open_store(any_url, keys=ring) as store:
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.get("k", "a")


@pytest.mark.promise("sealing.bound")
async def test_a_log_put_out_of_order_is_noticed(tmp_path: Path, key: str) -> None:
    path = tmp_path / "s.db"
    async with holdfast.open_store(f"sqlite:///{path}", keys=[key]) as store:
        record = await store.commit(Record("k", "a"), expect=0, entries=["first"])
        await store.commit(record, expect=1, entries=["second"])
        with sqlite3.connect(path) as db:
            db.execute("UPDATE holdfast_log SET last = last + 10")
            db.execute("UPDATE holdfast_log SET last = 13 - last")
        db.close()
        for newest in (False, True):
            with pytest.raises(holdfast.errors.CorruptRecord, match="out of order"):
                await store.log("k", "a", newest_first=newest)


@pytest.mark.promise("store.corrupt")
async def test_one_flipped_bit_in_a_sealed_body_hides_no_other_row(any_url: str, key: str) -> None:
    async with holdfast.open_store(any_url, keys=[key]) as store:
        for id in "abc":
            await store.commit(Record("k", id, data=id), expect=0)
        archive, seen = archive_of(store), 0
        row = await archive.row("k", "b")
        assert row is not None
        assert row.body is not None
        for place in range(len(row.body)):
            flipped = bytearray(row.body)
            flipped[place] ^= 1 << place % 8
            await archive.put(row._replace(body=bytes(flipped)))
            page = await store.scan(kind="k")
            told = [error.id for error in page.corrupt]
            assert sorted([*(record.id for record in page.records), *told]) == ["a", "b", "c"]
            assert [record.data for record in page.records if record.id == "b"] in ([], ["b"])
            seen += bool(told)
        assert seen > len(row.body) / 2
    # Another ring reads none of it, and that is an error of who opened it, not an empty store.
    async with holdfast.open_store(any_url, keys=[new_key()]) as store:
        with pytest.raises(holdfast.errors.ConfigError, match="not among the 1 keys"):
            await store.scan(kind="k")
