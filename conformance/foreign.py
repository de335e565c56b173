"""`make conformance ARGS=foreign`: the official suite on everything servers of others, reached directly and through the gateway.

Through the gateway, no scenario may have more failed checks than directly. The server of python-sdk comes with its source
distribution, in the version that is installed; those of typescript-sdk and of the suite itself stand only in their
repositories: TYPESCRIPT=path and SUITE=path are checkouts, and what they import comes from npm.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REVISIONS = ("2025-11-25", "2026-07-28")
OPTIONAL = {"server-sse-multiple-streams", "server-sse-polling"}
"""Scenarios with checks that are made only of servers which answer by event streams, or which close them in mid-call."""


@dataclass(frozen=True)
class Everything:
    """One everything server: the program that serves at the port in its environment variable or after its words."""

    name: str
    command: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str]
    port_as_argument: bool = False

    @contextmanager
    def serving(self, port: int, wait: Callable[[int], None]) -> Iterator[str]:
        command = [*self.command, *(["--port", str(port)] if self.port_as_argument else [])]
        variables = {**self.variables, "PORT": str(port)}
        process = subprocess.Popen(
            command, cwd=self.folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait(port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
            process.wait(timeout=30)


def of_python_sdk(home: Path, variables: Mapping[str, str]) -> Everything:
    """The server of the installed version's source distribution, fetched once."""
    version = importlib.metadata.version("mcp")
    folder = home / f"mcp-{version}" / "examples" / "servers" / "everything-server"
    if not folder.exists():
        print(f"fetching the source distribution of mcp {version} (once) …", flush=True)
        with tempfile.TemporaryDirectory() as fetched:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                 "--dest", fetched, f"mcp=={version}"],
                check=True, timeout=600,
            )  # fmt: skip
            with tarfile.open(next(Path(fetched).glob("*.tar.gz"))) as packed:
                packed.extractall(home, filter="data")
    command = (sys.executable, "-m", "mcp_everything_server")
    return Everything(f"python-sdk {version}", command, folder, variables, port_as_argument=True)


def of_typescript(name: str, file: Path, home: Path, variables: Mapping[str, str]) -> Everything:
    """A server in TypeScript, beside the packages that it imports."""
    copied = home / f"{name}-everything.ts"
    shutil.copyfile(file, copied)
    return Everything(name, ("node", "--import", "tsx", copied.name), home, variables)


def servers(home: Path, variables: Mapping[str, str], typescript: Path | None, suite: Path | None) -> list[Everything]:
    """Those that can be had."""
    found = [of_python_sdk(home, variables)]
    for name, checkout, file in (
        ("typescript-sdk", typescript, "test/conformance/src/everythingServer.ts"),
        ("suite", suite, "examples/servers/typescript/everything-server.ts"),
    ):
        if checkout is None:
            print(f"foreign: the server of {name} is left out, as no checkout was given")
        else:
            found.append(of_typescript(name, checkout / file, home, variables))
    return found


def configuration(url: str, revision: str) -> str:
    """The gateway's file: `era` is left to it. Clients of both eras are not steered to 2025 where the suite wants 2026."""
    return json.dumps(
        {
            "mcpServers": {"everything": {"url": url}},
            "naming": {"mode": "none"},
            "sessions": {"steer": revision == "2025-11-25"},
            "store": "memory:",
        }
    )


def outcome(output: str) -> dict[str, tuple[int, int]]:
    """Passed and failed checks of each scenario."""
    lines = re.findall(r"^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed", output, re.MULTILINE)
    return {name: (int(passed), int(failed)) for name, passed, failed in lines}


def worse(direct: Mapping[str, tuple[int, int]], through: Mapping[str, tuple[int, int]]) -> list[str]:
    """The scenarios with more failed checks through the gateway, or with fewer passed ones that are not optional."""
    found: list[str] = []
    for name, (passed, failed) in direct.items():
        own = through.get(name)
        if own is None:
            found.append(f"{name}: not run")
        elif own[1] > failed or (own[0] < passed and name not in OPTIONAL):
            found.append(f"{name}: {own[0]} passed, {own[1]} failed; directly {passed} and {failed}")
    return found


def path_from(variable: str) -> Path | None:
    """The checkout that a variable of the environment names."""
    given = os.environ.get(variable)
    return Path(given).resolve() if given else None
