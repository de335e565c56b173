"""The warden: one small helper per Holdfast process that kills what we started when we are gone, however we went.

It owns the helper process and the cookies by which descendants are found that left their group. It refuses to be more:
while we live, closing is our own work.

Linux: groups and cookies. macOS: groups only, the system shows nobody another process's environment. Windows: neither;
there children end with their pipes.
"""

import asyncio
import atexit
import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

COOKIE = "HOLDFAST_CHILD"
"""In the environment of a child and of everything that it starts: which child."""
OURS = "HOLDFAST_WARDEN"
"""The same for all children of one Holdfast process."""
_PROC = Path("/proc")


class Warden:
    """The helper of this process, started with the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._token = secrets.token_hex(16)
        self._known: set[int] = set()

    def cookies(self) -> dict[str, str]:
        return {OURS: self._token}

    def start(self) -> None:
        """Start it, or start it again if somebody killed it."""
        if os.name != "posix":
            return
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._reap()
            script = str(Path(__file__).with_name("warden_main.py"))
            # Its own session: what the terminal sends to our group, or a supervisor to all of it, must not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, self._token],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=True,
                env={},
                cwd="/",
            )
            for group in self._known:
                self._tell(f"+{group}")

    def know(self, group: int) -> None:
        """A group that must not outlive us."""
        with self._lock:
            self._known.add(group)
            self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """It is gone."""
        with self._lock:
            self._known.discard(group)
            self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def stop(self) -> None:
        """Let it go; it kills what is still known and ends. For tests, and for whoever must leave nothing at all."""
        with self._lock:
            process = self._process
            self._reap()
            self._known.clear()
        if process is not None:
            process.wait(5)

    def pipe(self) -> int | None:
        """The descriptor that it watches."""
        process = self._process
        return None if process is None or process.stdin is None or process.stdin.closed else process.stdin.fileno()

    def after_fork(self) -> None:
        """A forked copy of us is another process: it must not keep the pipe open, and has no children yet."""
        self._lock = threading.Lock()
        if (number := self.pipe()) is not None:
            with suppress(OSError):
                os.close(number)
        self._process = None
        self._known = set()
        self._token = secrets.token_hex(16)


warden = Warden()
atexit.register(warden.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=warden.after_fork)


def _holders(mark: bytes) -> list[int]:
    """Processes of ours that carry the mark in their environment."""
    found: list[int] = []
    me = os.getpid()
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != me:
            with suppress(OSError):
                descriptor = os.open(f"{entry.path}/environ", os.O_RDONLY)
                try:
                    environment = os.read(descriptor, 1 << 20)
                finally:
                    os.close(descriptor)
                if mark in environment.split(b"\0"):
                    found.append(int(entry.name))
    return found


async def kill_by_cookie(cookie: str, seconds: float) -> int:
    """Terminate, then kill, whatever a child started and its group does not hold. Returns how many there were."""
    mark = f"{COOKIE}={cookie}".encode()
    left = _holders(mark)
    count = len(left)
    for number in (signal.SIGTERM, signal.SIGKILL) if left else ():
        for pid in left:
            with suppress(OSError):
                os.kill(pid, number)
        for _ in range(10):
            await asyncio.sleep(seconds / 10)
            if not (left := _holders(mark)):
                return count
    return count
