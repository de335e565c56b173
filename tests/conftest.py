"""What every test stands on: no leaked thread, task, child or file descriptor; asyncio as the event loop; servers."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from holdfast.links.lifecycle import peer
from holdfast.links.wires.stdio.warden import warden
from tests import preloaded, servers
from tests.servers import Postgres, Valkey

# Loaded here, so that `--hypothesis-profile=thorough`, which is read later, has the last word.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("quick")

_FDS = "/proc/self/fd"
_MEMORY = "/dev/shm"
_ROOM = 2_000_000_000  # bytes; the tests need a hundredth of them


def pytest_configure() -> None:
    """Files of tests are kept in memory if there is room: SQLite syncs every commit, and on a disk that takes long."""
    try:
        memory = os.statvfs(_MEMORY)
    except OSError:
        return
    runs_programs = not memory.f_flag & os.ST_NOEXEC  # tests write scripts and start them
    if memory.f_bavail * memory.f_frsize > _ROOM and runs_programs and os.access(_MEMORY, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: a collection of garbage need not look at it again."""
    gc.collect()
    gc.freeze()


def _open_files() -> dict[str, str]:
    """What is open, but for the pipes to servers that stay for the whole run."""
    kept = {*servers.pipes(), *preloaded.pipes(), warden.pipe()}
    found: dict[str, str] = {}
    for fd in os.listdir(_FDS) if os.path.isdir(_FDS) else ():  # noqa: PTH112, PTH208  # twice a test: paths cost more
        try:
            if int(fd) not in kept:
                found[fd] = os.readlink(f"{_FDS}/{fd}")  # noqa: PTH115
        except OSError:
            continue  # the descriptor of the listing itself
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One for all tests of a process; a test that stops or kills its server starts its own."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for the admin sockets of gateways, with a path that is short enough for them."""
    with TemporaryDirectory(prefix="holdfast-test-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


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
