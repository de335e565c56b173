"""The servers that tests start go away with the tests, even if those are killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import time
from tests.servers import Postgres, Valkey
servers = Postgres(), Valkey()
print(*(f"{s.pid}:{s.folder}" for s in servers), flush=True)
time.sleep(600)
"""


@pytest.mark.promise("house.servers")
def test_servers_do_not_outlive_a_killed_test_run() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    assert child.stdout
    said = [part.split(":", 1) for part in child.stdout.readline().split()]
    child.stdout.close()
    assert len(said) == 2
    child.send_signal(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 30
    for pid, folder in said:
        while Path(f"/proc/{pid}").exists() or Path(folder).exists():
            assert time.monotonic() < deadline, f"{pid} or {folder} is still there"
