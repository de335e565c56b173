"""What a step costs on the wire: a commit one round trip, an edit two."""

import secrets

import pytest

import holdfast
from holdfast.stores import Record
from tests.servers import Postgres, Valkey

pytestmark = pytest.mark.anyio


@pytest.mark.promise("store.round-trips")
@pytest.mark.parametrize("server", ["postgres", "valkey"])
async def test_a_commit_is_one_round_trip_and_an_edit_two(server: str, request: pytest.FixtureRequest) -> None:
    running: Postgres | Valkey = request.getfixturevalue(server)
    kind = f"trips-{secrets.token_hex(4)}"
    async with holdfast.open_store(running.url) as store:
        record = await store.commit(Record(kind, "a", data=0), expect=0)
        await holdfast.stores.update(
            store, kind, "a", lambda data: data
        )  # from here on the server knows the statements
        pool = store._pool  # type: ignore[attr-defined]
        name = "commands" if server == "valkey" else "row"
        ask, trips = getattr(pool, name), 0

        async def counted(*given: object, **how: object) -> object:
            nonlocal trips
            trips += 1
            return await ask(*given, **how)

        setattr(pool, name, counted)
        record = await store.commit(record.with_data(1), expect=2, entries=["logged"])
        assert trips == 1
        claim = await store.claim(kind, "a", owner="me", ttl=10)
        assert trips == 2
        await store.commit(record.with_data(2), expect=3, fence=claim.token)
        assert trips == 3
        await holdfast.stores.update(store, kind, "a", lambda data: data, entries=["again"])
        assert trips == 5
        await store.get(kind, "a")
        await store.touch(kind, "a")
        assert trips == 7
