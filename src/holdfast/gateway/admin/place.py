"""Where the admin socket of a gateway process is: in a folder that only its user may enter, under a short path.

A process that was killed leaves its socket; the next gateway of the same user removes it.
"""

import logging
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("holdfast.gateway")

PATH_BYTES = 96  # the path of a unix socket has 108 bytes on Linux, 104 on macOS; it is bound under a longer name first
BACKLOG = 16
_NEW = ".new"
_NEW_SECONDS = 60.0  # after which a socket that was bound and not renamed is left over from a kill


def listening(name: str) -> tuple[socket.socket, Path] | None:
    """A socket that listens, and its path; None where there can be none, which is logged."""
    if sys.platform == "win32":
        log.info(
            "there is no admin socket on Windows: `holdfast top` and `holdfast tail` show only the store's records"
        )
        return None
    why: OSError | None = None
    for folder in _folders():
        path = folder / f"{name}.sock"
        if len(os.fsencode(path)) > PATH_BYTES:
            continue
        try:
            _make_private(folder)
            remove_dead(folder)
            return _bound(path), path
        except OSError as error:
            why = error
    log.warning("there is no admin socket, which `holdfast top` and `holdfast tail` read: %s", why)
    return None


def _folders() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute():
        yield Path(runtime) / "holdfast"
    for base in (tempfile.gettempdir(), "/tmp"):
        yield Path(base) / f"holdfast-{os.getuid()}"


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():  # another user made it first
        raise PermissionError(f"{folder} is no folder of this user")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _bound(path: Path) -> socket.socket:
    """Bound and listening before it has its name: `remove_dead` takes one that does not listen for a dead one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = Path(f"{path}{_NEW}")
    try:
        fresh.unlink(missing_ok=True)
        sock.bind(str(fresh))
        fresh.chmod(0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        fresh.rename(path)
    except BaseException:
        sock.close()
        raise
    return sock


def remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that were killed: nothing listens there."""
    for path in folder.iterdir():
        with suppress(OSError):
            left_over = path.suffix == _NEW and time.time() - path.lstat().st_mtime > _NEW_SECONDS
            if left_over or (path.suffix == ".sock" and _is_dead(path)):
                path.unlink()


def remove(path: str | Path) -> None:
    """Remove the socket of this process."""
    with suppress(OSError):
        Path(path).unlink(missing_ok=True)


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # its queue of connections is full, so it lives
            return False
    return False
