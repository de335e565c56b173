"""The SQLite store passes the whole suite, and says clearly what is wrong with a file."""

from pathlib import Path

import pytest

import holdfast
from holdfast.core.clock import Clock
from holdfast.testing import StoreSuite


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/suite.db"

    def open(self, clock: Clock):
        return holdfast.open_store(self.url, clock=clock)
