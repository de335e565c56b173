"""The store on a real PostgreSQL passes the whole suite, and says clearly what is wrong with a server."""

import secrets
from collections.abc import Sequence

import asyncpg
import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.stores import Record
from holdfast.stores.postgres import several
from holdfast.stores.postgres import statements as postgres_sql
from holdfast.stores.postgres import store as postgres_store
from holdfast.stores.postgres.pool import AnswerLost
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import StoreSuite
from tests.servers import Postgres

pytestmark = pytest.mark.anyio


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, postgres: Postgres) -> None:
        self.url = postgres.url

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)


@pytest.mark.promise("store.settled")
async def test_a_backend_that_will_not_die_leaves_the_write_unsettled(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the row shows: while the old backend lives, it may still write, so nothing is safe to repeat."""
    kind = f"undead-{secrets.token_hex(4)}"
    async with holdfast.open_store(postgres.url) as store:
        assert isinstance(store, PostgresStore)
        record = await store.commit(Record(kind, "a", data=0), expect=0)
        ask, asked = store._pool._ask, []

        async def counted(method: str, statement: str, given: Sequence[object]) -> object:
            asked.append(statement)
            if statement == postgres_sql.STOP_BACKEND:
                return (False,)
            if len(asked) == 1:  # the commit, which never reaches the server
                raise AnswerLost("the connection broke", store.url, (1, None))
            return await ask(method, statement, given)

        monkeypatch.setattr(store._pool, "_ask", counted)
        with pytest.raises(holdfast.errors.WriteUnsettled):
            await store.commit(record.with_data(1), expect=1)
        assert asked[1:] == [postgres_sql.STOP_BACKEND, several.GET_ALL]


@pytest.mark.promise("store.open")
async def test_opening_behind_somebody_elses_migration_is_bounded(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"t{secrets.token_hex(4)}"
    postgres.psql(f"CREATE DATABASE {name}")
    url = postgres.url.replace("/holdfast", f"/{name}")
    monkeypatch.setattr(postgres_store, "MIGRATION_SECONDS", 0.3)
    other = await asyncpg.connect(url)
    try:
        await other.execute("SELECT pg_advisory_lock($1)", postgres_store._MIGRATION_LOCK)
        with pytest.raises(holdfast.errors.StoreDown, match="did not finish opening"):
            async with holdfast.open_store(url):
                pass
    finally:
        await other.close()
    monkeypatch.undo()
    async with holdfast.open_store(url) as store:
        assert await store.count() == 0
