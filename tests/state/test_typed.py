"""Pyright knows the state behind every access that an author writes."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.promise("state.typed")
def test_pyright_sees_the_types_that_are_claimed() -> None:
    from tests.state import typed_use  # it runs, too

    assert typed_use.sessions.kind is typed_use.Basket
    checker = Path(sys.executable).parent / "basedpyright"
    file = Path(typed_use.__file__)
    done = subprocess.run(
        [str(checker), "--level", "error", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    wrong = [line for line in done.stdout.splitlines() if "assert_type" in line or "error:" in line]
    assert not wrong, "\n".join(wrong)
    assert "0 errors" in done.stdout
