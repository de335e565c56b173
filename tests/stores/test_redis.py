"""The store on a real Valkey passes the whole suite, and says clearly what is wrong with a server."""

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
