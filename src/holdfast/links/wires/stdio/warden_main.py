"""The warden's program: starts programs for Holdfast, each under a keeper, and kills what is left when Holdfast ends.

Run as `python -I -S warden_main.py TOKEN` with a Unix socket as stdin. For each program it forks a *keeper*, the parent
and subreaper of the program: on Linux every descendant stays below it in the tree, whatever session, group or
environment that gives itself. A keeper kills all of them when its leash (a socket to Holdfast) closes.

It imports as little as possible and ignores signals until its work is done.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

ROUNDS = 20  # searches for survivors: a process may fork while others are killed
PAUSE = 0.05  # seconds between two
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl
FILES = 4  # of one program, in this order: leash, stdin, stdout, stderr
HEAD = 8  # bytes that hold the length of a request


def _prctl() -> Callable[..., object] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None  # descendants that leave the group are then found by their environment


def main(token: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    prctl = _prctl()
    groups: set[int] = set()
    files: list[int] = []
    rest = b""
    while True:
        data, received, _, _ = socket.recv_fds(control, 65536, 16 * FILES)
        for file in received:
            os.set_inheritable(file, False)
        files += received
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == b"start":
                own, files = files[:FILES], files[FILES:]
                if len(own) == FILES and _fork(own[0]) == 0:
                    control.close()
                    keep(own, prctl)  # does not return
                for file in own:
                    os.close(file)
            elif line[:1] == b"+":
                groups.add(int(line[1:]))
            else:
                groups.discard(int(line[1:]))
    _kill_what_is_left(groups, f"HOLDFAST_WARDEN={token}".encode())


def _fork(leash: int) -> int | None:
    """Fork a keeper; if the system allows no more processes, report that."""
    try:
        return os.fork()
    except OSError as error:
        with suppress(OSError):
            os.write(leash, b"failed %d\n" % (error.errno or 0))
        return None


def _kill_what_is_left(groups: set[int], mark: bytes) -> None:
    for _ in range(ROUNDS):
        for group in groups:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        marked = _marked(mark)
        _kill(marked, signal.SIGKILL)
        if not marked:
            return
        time.sleep(PAUSE)


def _marked(mark: bytes) -> list[int]:
    """Processes with the mark in their environment."""
    found: list[int] = []
    for pid in _pids():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as opened:
            if mark in opened.read().split(b"\0"):
                found.append(pid)
    return found


def _pids() -> list[int]:
    if not os.path.isdir("/proc/self"):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _kill(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


# The keeper


def keep(files: list[int], prctl: Callable[..., object] | None) -> None:
    """Start one program and hold all of its descendants until the leash closes. Ends the process."""
    try:
        leash = socket.socket(fileno=files[0])
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)  # otherwise a dead warden would seem alive to its writers
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if prctl is not None:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        request = _request(leash)
        if request is not None:
            _hold(leash, _start(leash, request, files[1:]), files[1:])
    finally:
        os._exit(0)


def _request(leash: socket.socket) -> list[bytes] | None:
    """Read a request: file, folder, number of arguments, arguments, environment. Returns None at the end."""
    head = leash.recv(HEAD, socket.MSG_WAITALL)
    if len(head) < HEAD:
        return None
    size, whole = int(head), b""
    while len(whole) < size:
        part = leash.recv(size - len(whole))
        if not part:
            return None
        whole += part
    return whole.split(b"\0")


def _start(leash: socket.socket, request: list[bytes], files: list[int]) -> int | None:
    file, folder, count, *rest = request
    args, environment = rest[: int(count)], dict(entry.split(b"=", 1) for entry in rest[int(count) :])
    try:
        os.chdir(folder)
        pid = os.posix_spawn(
            file,
            [file, *args],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, each, place) for place, each in enumerate(files)],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        _say(leash, b"failed %d\n" % (error.errno or 0))
        return None
    _say(leash, b"started %d\n" % pid)
    return pid


def _say(leash: socket.socket, word: bytes) -> None:
    """Send a message to Holdfast. If Holdfast has ended, the end of the leash shows that."""
    with suppress(OSError):
        leash.sendall(word)


def _hold(leash: socket.socket, pid: int | None, files: list[int]) -> None:
    """Wait until Holdfast closes the leash, sends `end SECONDS`, or ends."""
    for file in files:
        os.close(file)
    if pid is None:
        return
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _woken)
    seconds = 0.0
    has_children = _reap(leash, pid)
    while True:
        ready, _, _ = select.select([leash, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            has_children = _reap(leash, pid)
        if leash in ready:
            with suppress(OSError):
                if (request := leash.recv(64)) and request.startswith(b"end "):
                    seconds = float(request[4:])
            break
    if seconds and has_children:
        _kill(_descendants(), signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while _reap(leash, pid) and time.monotonic() < deadline:
        select.select([woken], [], [], PAUSE)
    for _ in range(ROUNDS):
        if not _reap(leash, pid):
            break
        _kill(_descendants(), signal.SIGKILL)
        time.sleep(PAUSE / 10)


def _woken(number: int, frame: object) -> None:
    """The wake-up descriptor is written only if a handler is installed."""


def _reap(leash: socket.socket, program: int) -> bool:
    """Collect exit codes, and report the program's. Returns False if no process is left below this one."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == program:
                _say(leash, b"exited %d\n" % os.waitstatus_to_exitcode(found[1]))
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """All processes below this one that have not ended yet."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as opened:
            state, parent = opened.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[pid] = int(parent)
    found: list[int] = []
    for pid in parents:
        above = pid
        while above in parents:
            above = parents[above]
        if above == os.getpid():
            found.append(pid)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
