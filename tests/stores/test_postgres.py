"""The store on a real PostgreSQL passes the whole suite, and says clearly what is wrong with a server."""

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.testing import StoreSuite
from tests.servers import Postgres

pytestmark = pytest.mark.anyio


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, postgres: Postgres) -> None:
        self.url = postgres.url

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)
