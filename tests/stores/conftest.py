"""Real servers, started once for the whole run, and the URLs that tests of several stores run against."""

from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.deadlines import patience
from tests.servers import Postgres, Valkey


@pytest.fixture(scope="session", autouse=True)
def forking() -> None:
    """Started before the first leak check looks, since it stays for the whole run."""
    forkserver.ensure_running()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes share, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db?timeout={min(60, patience(5)):.0f}"
    return request.getfixturevalue(request.param).url
