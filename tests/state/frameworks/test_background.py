"""Background tasks of FastMCP: each works in a transaction of its own, for its caller, and a key gets the same task."""

import json
import subprocess
import sys

import pytest

from tests.deadlines import patience
from tests.state.replicas import ROOT

pytest.importorskip("fastmcp_tasks")


@pytest.mark.promise("state.keys")
def test_a_background_task_is_a_transaction_and_a_key_gets_the_same_task() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.state.frameworks.tasks"],
        capture_output=True,
        text=True,
        timeout=patience(60),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["plain"] == [{"items": ["a"]}, {"items": ["a", "a"]}]
    assert said["keyed"] == [{"items": ["a", "a", "b"]}] * 10
    assert "used for another call of 'add'" in said["another"][0]
    assert "it is broken" in said["broken"][0]
    assert said["kept"] == ["a", "a", "b"]  # nothing of the one that failed
    assert said["alice"] == [{"items": ["d"]}] * 2
    assert "there is no such session" in said["bob"][0]
    assert said["runs"] == ["a", "a", "b", "broken", "d"]
