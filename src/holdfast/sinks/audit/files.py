"""The file of the audit trail: lines are appended whole, and a file that is full gets a number.

Several processes may append to one file. A line that a killed process began is ended before the next one.
"""

import contextlib
import os
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: one process a file
    fcntl = None  # type: ignore[assignment]

MODE = 0o600  # who called what is nobody else's business


class AuditFile:
    """Appends to a file. Errors of the disk are `OSError`."""

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None

    def write(self, lines: bytes) -> None:
        """Append lines, all of them or, after an error, none that counts: what was written in part is taken back."""
        fd = self._open()
        with _locked(fd):
            before = os.fstat(fd).st_size
            try:
                _write_all(fd, lines)
            except OSError:
                try:
                    os.ftruncate(fd, before)
                except OSError:
                    self.close()  # opened again, the file gets an end of the line that stands there in part
                raise
            full = before + len(lines) >= self._max_bytes
        if full:
            self._rotate()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        """The file that has the name now: another process may have given the one that is open here a number."""
        if self._fd is not None:
            if self._is_current(self._fd):
                return self._fd
            self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
        with _locked(fd):
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                _write_all(fd, b"\n")
        return fd

    def _is_current(self, fd: int) -> bool:
        try:
            there, here = self._path.stat(), os.fstat(fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _rotate(self) -> None:
        """Give the file the number 1, the one before it 2, and so on; the oldest goes."""
        assert self._fd is not None
        with _locked(self._fd):
            if not self._is_current(self._fd):
                return  # another process was first
            numbered = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._keep + 1))]
            for newer, older in reversed(list(pairwise(numbered))):
                with contextlib.suppress(FileNotFoundError):
                    newer.replace(older)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _locked(fd: int) -> Generator[None]:
    if fcntl is None:
        yield
        return
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
