"""Runs a server for the tests and outlives them by a moment: `python supervise.py FOLDER COMMAND…`.

It owns the server's process group and folder. When its standard input closes, because the tests ended or were
killed, it kills the group and removes the folder, so nothing stays behind. A line "restart" starts the server anew.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def _start(command: list[str], folder: str, user: str | None) -> subprocess.Popen[bytes]:
    log = open(os.path.join(folder, "server.log"), "ab")  # noqa: SIM115, PTH118, PTH123  # the child keeps it
    extra = {"user": user, "group": user and "nogroup", "extra_groups": []} if user else {}
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder, **extra
    )
    log.close()
    print(server.pid, flush=True)
    return server


def family(pid: int) -> list[int]:
    """The process and its children: PostgreSQL's backends have sessions of their own, so no group holds them all."""
    found = [pid]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found.append(int(entry.name))
    return found


def _kill(server: subprocess.Popen[bytes]) -> None:
    members = family(server.pid)
    for member in members:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)
    server.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{member}").exists() for member in members) and time.monotonic() < deadline:
        time.sleep(0.005)  # the orphans are the system's to bury


def main() -> None:
    user, folder, *command = sys.argv[1:]
    # The terminal's Ctrl-C is for the tests; their end reaches us through the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _start(command, folder, user or None)
    for line in sys.stdin:
        if line.strip() == "kill":
            _kill(server)
            print("killed", flush=True)
        elif line.strip() == "restart":
            _kill(server)
            server = _start(command, folder, user or None)
    _kill(server)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
