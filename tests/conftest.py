"""What every test stands on: no leaked thread, task, child or file descriptor; asyncio as the event loop."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.links.lifecycle import peer
from holdfast.links.wires.stdio.warden import warden
from tests import servers

_FDS = Path("/proc/self/fd")


def _open_files() -> dict[str, str]:
    """What is open, but for the pipes to servers that stay for the whole run."""
    kept = {*servers.pipes(), warden.pipe()}
    found: dict[str, str] = {}
    for fd in _FDS.iterdir() if _FDS.exists() else ():
        try:
            if int(fd.name) not in kept:
                found[fd.name] = str(fd.readlink())
        except OSError:
            continue  # the descriptor of the listing itself
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def new_servers() -> None:
    """What the servers of earlier tests offered is forgotten: another one may have got the same port."""
    peer._offers.clear()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    before = _open_files()
    threads = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - threads
    for thread in left:
        thread.join(5)  # a thread that was told to stop may need a moment to do so
    assert not {t.name for t in left if t.is_alive()}, "threads left behind"
    new = {fd: name for fd, name in _open_files().items() if before.get(fd) != name}
    if new:
        gc.collect()
        new = {fd: name for fd, name in _open_files().items() if before.get(fd) != name}
    assert not new, "files left open"
