"""The warden: a small helper process that starts programs, and kills what is left of them when this process ends.

This module owns the helper process, the leash of each program, and the cookies by which descendants that left their
group are found where no keeper holds them. The other side is `warden_main.py`.

Linux: keepers, groups and cookies. macOS: groups only, since a process there can neither adopt the orphans below it nor
read another one's environment. Windows: none of them; children end when their pipes close.
"""

import asyncio
import atexit
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

COOKIE = "HOLDFAST_CHILD"
"""The environment variable that identifies a child in everything that it starts."""
OURS = "HOLDFAST_WARDEN"
"""The same for all children of one Holdfast process."""
_PROC = Path("/proc")


class Warden:
    """The helper process of this process, started with the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._leashes: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._token = secrets.token_hex(16)
        self._known: set[int] = set()

    def cookies(self) -> dict[str, str]:
        return {OURS: self._token}

    def start(self) -> None:
        """Start the helper, or restart it if it was killed."""
        if os.name != "posix":
            return
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._reap()
            script = str(Path(__file__).with_name("warden_main.py"))
            ours, theirs = socket.socketpair()
            with theirs:
                # In a session of its own: signals from a terminal or a supervisor to our group must not reach it.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", script, self._token],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    close_fds=True,
                    env={},
                    cwd="/",
                )
            self._control = ours
            for group in self._known:
                self._tell(f"+{group}")

    def leash(self, stdin: int, stdout: int, stderr: int) -> socket.socket:
        """The leash of a new keeper, which waits on it for a program to start with these descriptors.
        Raises OSError if the warden was killed.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._control is None:
                ours.close()
                raise BrokenPipeError("the warden is gone")
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [b"start\n"], [theirs.fileno(), stdin, stdout, stderr])
            except OSError:
                ours.close()
                raise
            self._leashes.add(ours)
        return ours

    def know(self, group: int) -> None:
        """Register a group that must not outlive this process."""
        with self._lock:
            self._known.add(group)
            self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """Unregister a group that has ended."""
        with self._lock:
            self._known.discard(group)
            self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if self._control is not None:
            with suppress(OSError):
                self._control.sendall(f"{line}\n".encode())

    def _reap(self) -> None:
        self._process = None
        control, self._control = self._control, None
        if control is not None:
            control.close()

    def stop(self) -> None:
        """Stop it; it kills what is still registered and ends.
        For tests, and for programs that must leave nothing behind.
        """
        with self._lock:
            process = self._process
            self._reap()
            self._known.clear()
        if process is not None:
            process.wait(5)

    def pipe(self) -> int | None:
        """The descriptor that it watches."""
        return None if self._control is None else self._control.fileno()

    def after_fork(self) -> None:
        """A forked copy of this process must not keep the sockets open, and has no children yet."""
        self._lock = threading.Lock()
        for each in (self._control, *self._leashes):
            if each is not None:
                with suppress(OSError):
                    each.close()
        self._process = self._control = None
        self._leashes = weakref.WeakSet()
        self._known = set()
        self._token = secrets.token_hex(16)


warden = Warden()
atexit.register(warden.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=warden.after_fork)


def _holders(mark: bytes) -> list[int]:
    """Processes with the mark in their environment."""
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
    """Terminate, then kill, what a child started outside its group. Returns how many processes there were."""
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
