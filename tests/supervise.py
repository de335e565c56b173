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


def _start(command: list[str], folder: str, user: str | None) -> subprocess.Popen[bytes]:
    log = open(os.path.join(folder, "server.log"), "ab")  # noqa: SIM115, PTH118, PTH123  # the child keeps it
    extra = {"user": user, "group": user and "nogroup", "extra_groups": []} if user else {}
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder, **extra
    )
    log.close()
    print(server.pid, flush=True)
    return server


def _kill(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGCONT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
    server.wait()


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


main()
