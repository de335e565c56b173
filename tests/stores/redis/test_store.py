"""The store on a real Valkey passes the whole suite, and hides nothing behind keys that it did not write."""

import secrets

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.testing import StoreSuite
from tests.servers import Valkey

pytestmark = pytest.mark.anyio


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, valkey: Valkey) -> None:
        self.url = valkey.url

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)


@pytest.mark.promise("store.corrupt")
async def test_something_else_under_our_keys_is_corrupt(valkey: Valkey) -> None:
    url = f"{valkey.url}?prefix=t{secrets.token_hex(4)}"
    async with holdfast.open_store(url) as store:
        made = await store.commit(holdfast.stores.Record("k", "a", data=1), expect=0, entries=["e"])
        pool, prefix = store._pool, store._prefix  # type: ignore[attr-defined]
        key = f"{prefix}:r:k\x1fa"
        for field, value in (("r", "many"), ("b", b"\x00"), ("c", "noon"), ("p", ""), ("i", "-1")):
            before = await pool.command("HGET", key, field)
            await pool.command("HSET", key, field, value)
            with pytest.raises(holdfast.errors.CorruptRecord):
                await store.get("k", "a")
            page = await store.scan(kind="k", state=None)
            assert [error.id for error in page.corrupt] == ["a"]
            await pool.command("HSET", key, field, before)
        assert await store.get("k", "a") == made
        await pool.command("DEL", key)
        await pool.command("SET", key, "a string")
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.get("k", "a")


@pytest.mark.promise("store.corrupt")
async def test_damaged_names_and_owners_hide_no_other_record(valkey: Valkey) -> None:
    url = f"{valkey.url}?prefix=t{secrets.token_hex(4)}"
    async with holdfast.open_store(url) as store:
        for id in "abc":
            await store.commit(holdfast.stores.Record("k", id, holdfast.Principal("me")), expect=0)
        pool, prefix = store._pool, store._prefix  # type: ignore[attr-defined]
        await pool.command("HSET", f"{prefix}:r:k\x1fb", "p", b"m\xe5")
        await pool.command("RENAME", f"{prefix}:r:k\x1fb", f"{prefix}:r:k\x1f".encode() + b"b\xff")
        for index in ("ids", "own:me"):
            await pool.command("ZADD", f"{prefix}:{index}", "0", b"k\x1fb\xff")
        found: list[str] = []
        corrupt = 0
        after: str | None = None
        for _ in range(4):
            page = await store.scan(limit=1, after=after)
            found += [record.id for record in page.records]
            corrupt += len(page.corrupt)
            after = page.next
            if after is None:
                break
        assert after is None
        assert (found, corrupt) == (["a", "c"], 1)
        mine = await store.scan(principal="me")
        assert [record.id for record in mine.records] == ["a", "c"]
