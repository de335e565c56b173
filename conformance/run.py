"""`make conformance`: the official suite against our client, in both eras, then servers that nobody here wrote.

It owns the order and the summary. What it needs of npm it installs beside the virtual environment, by version.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOME = BIN.parent / "npm"
SUITE = HOME / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2025-11-25", "2026-07-28")
TIMEOUT = "180000"  # milliseconds a client: the suite starts forty at once, and machines have two cores
# The wheel's node and npm come first; the suite needs Node 22, which many systems do not have.
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


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


def suite(revision: str) -> bool:
    """One run of the suite: every scenario that the revision requires, and those it only knows."""
    print(f"conformance {revision} …", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        [
            "node", str(SUITE), "client", "--command", f"{sys.executable} {HERE / 'client.py'}",
            "--requirements", revision, "--timeout", TIMEOUT, "--expected-failures", str(HERE / "expected-failures.yml"),
        ],
        cwd=HOME, env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    (HOME / f"conformance-{revision}.log").write_text(plain)
    summary = plain[plain.rfind("=== SUITE SUMMARY") :] if "=== SUITE SUMMARY" in plain else plain[-3000:]
    print(
        "\n".join(
            line for line in summary.splitlines() if re.match(r"\s*(✗|Total|Expected|Not scored|Unexpected)", line)
        )
    )
    print(
        f"  {summary.count('✓')} scenarios passed, exit {done.returncode}, {time.monotonic() - start:.0f} s", flush=True
    )
    if done.returncode:
        print(f"  the whole output: {HOME.name}/conformance-{revision}.log", flush=True)
    return done.returncode == 0


def servers() -> bool:
    """Interoperation, as tests."""
    packages = json.loads((HERE / "package.json").read_text())["dependencies"]
    print("servers: " + ", ".join(f"{name.split('/')[1]} {version}" for name, version in packages.items()), flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)]
    return subprocess.run(command, cwd=HERE.parent, env={**ENVIRONMENT, "HOLDFAST_NPM": str(HOME)}).returncode == 0


def main() -> None:
    install()
    passed = [suite(revision) for revision in REVISIONS]
    passed.append(servers())
    sys.exit(not all(passed))


main()
