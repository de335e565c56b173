"""`make conformance`: run the official suite on our client and our gateway in both eras, also in front of other projects'
servers, then other projects' programs.

The npm packages that it needs are installed beside the virtual environment, by version.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import foreign

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOME = BIN.parent / "npm"
SUITE = HOME / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2025-11-25", "2026-07-28")
TIMEOUT = "180000"  # milliseconds a client: the suite starts forty at once, and machines have two cores
# The wheel's node and npm come first; the suite needs Node 22, which many systems do not have.
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1",  # Debian's Chromium is used
}


def install() -> None:
    """The packages of package.json, once per version."""
    HOME.mkdir(exist_ok=True)
    wanted, stamp = (HERE / "package.json").read_text(), HOME / "package.json"
    if stamp.exists() and stamp.read_text() == wanted and SUITE.exists():
        return
    print("installing the suite and the servers from npm (once) …", flush=True)
    shutil.rmtree(HOME / "node_modules", ignore_errors=True)
    stamp.write_text(wanted)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(command, cwd=HOME, env=ENVIRONMENT, check=True, timeout=600)


def client_suite(revision: str) -> bool:
    """Our client: every scenario that the revision requires, and those it only knows."""
    command = ["client", "--command", f"{sys.executable} {HERE / 'suite' / 'client.py'}", "--requirements", revision]
    return suite(f"client {revision}", [*command, "--timeout", TIMEOUT])


def gateway_suite(revision: str) -> bool:
    """Our gateway as a server, with the fixture behind it in the same era; names un-prefixed, as the suite wants."""
    with tempfile.TemporaryDirectory() as folder, started_gateway(Path(folder), revision[:4]) as url:
        passed = suite(f"gateway {revision}", ["server", "--url", url, "--requirements", revision])
        if revision == "2025-11-25":
            scenario = ["server", "--url", url, "--scenario", "server-session-lifecycle"]
            passed = suite("gateway server-session-lifecycle", scenario, lines=r"\s*(Passed|✗)") and passed
        return passed


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def started_gateway(folder: Path, era: str) -> Iterator[str]:
    port = _free_port()
    config = {
        "mcpServers": {"fixture": {"url": f"http://127.0.0.1:{port}/mcp", "era": era}},
        "naming": {"mode": "none"},
        "store": "memory:",
    }
    fixture = subprocess.Popen([sys.executable, "-m", "conformance.suite.fixture", str(port)], cwd=HERE.parent)
    try:
        _wait_for(port)
        with serving_gateway(folder, json.dumps(config)) as url:
            yield url
    finally:
        fixture.terminate()
        fixture.wait(timeout=30)


@contextmanager
def serving_gateway(folder: Path, config: str) -> Iterator[str]:
    (folder / "gateway.json").write_text(config)
    gateway = subprocess.Popen(
        [str(BIN / "holdfast"), "serve", str(folder / "gateway.json"), "--port", "0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert gateway.stderr is not None
        line = ""
        while " at http" not in line:
            line = gateway.stderr.readline()
            assert line, "the gateway ended"
        yield line.split(" at ")[1].strip()
    finally:
        gateway.terminate()
        print(
            "".join(f"  gateway: {line}" for line in gateway.communicate(timeout=30)[1].splitlines(True)[-5:]), end=""
        )


def _wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the server does not listen")


def suite(name: str, command: list[str], lines: str = r"\s*(✗|Total|Expected|Not scored|Unexpected)") -> bool:
    """One run of the suite."""
    print(f"conformance {name} …", flush=True)
    start = time.monotonic()
    expected = ["--expected-failures", str(HERE / "expected-failures.yml")]
    done = subprocess.run(
        ["node", str(SUITE), *command, *expected],
        cwd=HOME, env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    log = f"conformance-{name.replace(' ', '-')}.log"
    (HOME / log).write_text(plain)
    summary = plain[plain.rfind("=== SUITE SUMMARY") :] if "=== SUITE SUMMARY" in plain else plain[-3000:]
    print("\n".join(line for line in summary.splitlines() if re.match(lines, line)))
    print(
        f"  {summary.count('✓')} scenarios passed, exit {done.returncode}, {time.monotonic() - start:.0f} s", flush=True
    )
    if done.returncode:
        print(f"  the whole output: {HOME.name}/{log}", flush=True)
    return done.returncode == 0


def foreign_servers() -> bool:
    """The suite on servers of others, directly and through the gateway: it may lose nothing."""
    passed = True
    found = foreign.servers(HOME, ENVIRONMENT, foreign.path_from("TYPESCRIPT"), foreign.path_from("SUITE"))
    for server in found:
        with server.serving(_free_port(), _wait_for) as url:
            for revision in REVISIONS:
                direct = foreign.outcome(_output(url, revision))
                with tempfile.TemporaryDirectory() as folder:
                    config = foreign.configuration(url, revision)
                    with serving_gateway(Path(folder), config) as gateway:
                        through = foreign.outcome(_output(gateway, revision))
                lost = foreign.worse(direct, through)
                counts = [
                    f"{sum(each[0] for each in one.values())} of {sum(map(sum, one.values()))}"
                    for one in (direct, through)
                ]
                print(
                    f"{server.name} {revision}: {counts[0]} checks directly, {counts[1]} through the gateway",
                    flush=True,
                )
                print("".join(f"  lost: {each}\n" for each in lost), end="")
                passed = passed and bool(direct) and not lost
    return passed


def _output(url: str, revision: str) -> str:
    command = ["node", str(SUITE), "server", "--url", url, "--requirements", revision]
    done = subprocess.run(command, cwd=HOME, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def interop() -> bool:
    """Test other projects' servers behind links and the gateway, and their clients in front of it."""
    packages = json.loads((HERE / "package.json").read_text())["dependencies"]
    print(
        "from npm: " + ", ".join(f"{name.rpartition('/')[2]} {version}" for name, version in packages.items()),
        flush=True,
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interop")]
    return subprocess.run(command, cwd=HERE.parent, env={**ENVIRONMENT, "HOLDFAST_NPM": str(HOME)}).returncode == 0


def main() -> None:
    install()
    chosen = sys.argv[1:]
    parts = {
        "client": lambda: all(client_suite(revision) for revision in REVISIONS),
        "gateway": lambda: all(gateway_suite(revision) for revision in REVISIONS),
        "foreign": foreign_servers,
        "interop": interop,
    }
    if unknown := set(chosen) - set(parts):
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    passed = [part() for name, part in parts.items() if not chosen or name in chosen]
    sys.exit(not all(passed))


main()
