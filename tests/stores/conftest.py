"""The URLs that tests of several stores run against."""

from pathlib import Path

import pytest

from tests.deadlines import patience


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes share, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db?timeout={min(60, patience(5)):.0f}"
    return request.getfixturevalue(request.param).url
