"""Process 1 reaps what others left, and takes no child from whoever waits for it."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, signal, subprocess, sys, time
from holdfast.gateway.process.orphans import Orphans, _zombies_of

def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # as process 1 is: orphans below us become our children
parent = subprocess.run(["sh", "-c", "sh -c 'kill -9 $$' > /dev/null 2>&1 & exec true"])
own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
until(lambda: len(_zombies_of(os.getpid())) == 2)
orphans = Orphans()
assert orphans.reap() == 0  # somebody may be about to fetch them
assert own.wait() == 7
assert orphans.reap() == 1
assert _zombies_of(os.getpid()) == set()
"""


@pytest.mark.promise("gateway.orphans")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process that is not 1 adopt orphans")
def test_orphans_are_reaped_and_children_that_somebody_waits_for_are_not() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
